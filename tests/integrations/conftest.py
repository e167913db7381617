"""What has to be so before a host is imported."""

import importlib.util

import torch

if importlib.util.find_spec("sglang") is not None:
    # SGLang imports torchvision, whose wheel for CUDA finds no C++ of its own beside torch for the
    # CPU. Its Python wants that these two ops be there.
    VISION = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        VISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
