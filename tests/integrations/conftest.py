"""Conditions and fixtures that the hosts' tests have in common.

Tests of hosts that are not installed in this environment are left out, as each host has one of its
own (scripts/test_integrations.py, which fails where it could not install one).
"""

import importlib.util
import logging
from pathlib import Path

import pytest
import torch

NEEDS = {
    "test_accelerate": ("accelerate",),
    "test_lightning": ("lightning",),
    "test_transformers": ("transformers", "peft", "accelerate"),
    "test_diffusers": ("diffusers", "peft"),
    "test_vllm": ("vllm",),
    "test_sglang": ("sglang",),
    "test_comfyui": ("comfy_kitchen",),
    "test_torchao": ("torchao",),
    "test_torchtitan": ("torchtitan",),
    "test_kernels": ("huggingface_hub",),
}

if importlib.util.find_spec("sglang") is not None:
    # SGLang imports torchvision, whose wheel for CUDA finds no C++ of its own beside torch for the
    # CPU. Its Python wants that these two ops be there.
    VISION = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        VISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    from tests.integrations.sglang_support import LOG, gpu, plugged_in, untouched
elif importlib.util.find_spec("vllm") is not None:
    from tests.integrations.vllm_support import (  # noqa: F401
        LOG,
        gpu,
        one_rank,
        plugged_in,
        untouched,
    )
else:
    NEEDS["test_servers"] = ("vllm", "sglang")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    for beginning, modules in NEEDS.items():
        if collection_path.name.startswith(beginning):
            missing = [name for name in modules if importlib.util.find_spec(name) is None]
            return True if missing else None
    return None


@pytest.fixture(autouse=True)
def _plugs_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTOFOLD_INTEGRATIONS", raising=False)


@pytest.fixture
def said(caplog):
    """The log, which has what the plug into the server says."""
    caplog.set_level(logging.INFO, LOG)
    return caplog


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of transformers' small models."""
    from tests.integrations.transformers_support import Saved

    return Saved(tmp_path_factory)


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """A small Flux of Diffusers, its inputs, and its folder."""
    from tests.integrations import diffusers_models

    folder = tmp_path_factory.mktemp("flux")
    return *diffusers_models.saved(diffusers_models.flux, folder), folder
