"""Octofold: FP8 linear algebra. Casts with fine-grained scales, matrix products, checkpoints.

>>> x8 = octofold.quantize(x)                             # activations [M, K], a scale per 1x128
>>> w8 = octofold.quantize(w, granularity="128x128")      # weights [N, K], a scale per 128x128
>>> y = octofold.gemm(x8, w8, out_dtype="bfloat16")       # [M, N]

Arrays are NumPy's (with ml_dtypes), torch's, or any that speak DLPack; results come back in kind.

With torch, octofold.linear(), mlp() and norm_linear() are differentiable layers, octofold.nn holds
modules of them, and

>>> octofold.nn.convert(model)                            # every torch.nn.Linear

makes a model train in FP8;

>>> plan = octofold.models.advise(model, inputs)          # which layers gain by it, measured
>>> octofold.models.apply(model, plan)

makes one quicker or smaller at inference.
"""

import importlib
from typing import TYPE_CHECKING

from . import kernel_cache, ops, tuning
from ._capabilities import Capabilities, Capability, Support, Tried, capabilities
from ._checkpoint import (
    CheckpointContents,
    CheckpointReport,
    CheckpointTensor,
    CheckpointWeight,
    checkpoint_families,
    convert_checkpoint,
    default_skip_patterns,
    inspect_checkpoint,
    quantize_checkpoint,
)
from ._core import torch_import
from ._core.errors import (
    BadFormatError,
    Error,
    InternalError,
    InvalidArgumentError,
    IoError,
    UnavailableError,
    UnsupportedError,
)
from ._core.formats import Format, Rule
from ._core.log import set_log_handler
from ._core.ops import scale_shape
from ._core.scaled_tensor import ScaledTensor
from ._info import Component, Gpu, Info, info
from ._load_checkpoint import Checkpoint, load_checkpoint
from ._ops.attention import attention
from ._ops.dot import dot
from ._ops.dynamic_gemm import dynamic_gemm
from ._ops.gated_gemm import gated_gemm
from ._ops.gemm import gemm
from ._ops.gemm_weight_only import gemm_weight_only, gemm_weight_only_gradient
from ._ops.gemv import gemv
from ._ops.grouped_gemm import grouped_gated_gemm, grouped_gemm, grouped_gemm_k, masked_gemm
from ._ops.quantize import quantize
from ._ops.routing import (
    Routing,
    TopK,
    combine,
    combine_gradient,
    sort_by_expert,
    top_k,
    top_k_gradient,
)
from ._ops.words import as_words, from_words, pack, unpack

if TYPE_CHECKING:
    from . import models as models
    from . import nn as nn
    from .nn.autograd.blocks import mlp as mlp
    from .nn.autograd.blocks import norm_linear as norm_linear
    from .nn.autograd.experts import experts as experts
    from .nn.autograd.linear import linear as linear

__version__: str


def __getattr__(name: str) -> object:
    """What takes longer to import than the rest of this file; nn, models and layers need torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("octofold")
    if name in ("models", "nn"):
        return importlib.import_module(f".{name}", __name__)
    if name == "linear":
        return importlib.import_module(".nn.autograd.linear", __name__).linear
    if name == "experts":
        return importlib.import_module(".nn.autograd.experts", __name__).experts
    if name in ("mlp", "norm_linear"):
        return getattr(importlib.import_module(".nn.autograd.blocks", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BadFormatError",
    "Capabilities",
    "Capability",
    "Checkpoint",
    "CheckpointContents",
    "CheckpointReport",
    "CheckpointTensor",
    "CheckpointWeight",
    "Component",
    "Error",
    "Format",
    "Gpu",
    "Info",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "Routing",
    "Rule",
    "ScaledTensor",
    "Support",
    "TopK",
    "Tried",
    "UnavailableError",
    "UnsupportedError",
    "as_words",
    "attention",
    "capabilities",
    "checkpoint_families",
    "combine",
    "combine_gradient",
    "convert_checkpoint",
    "default_skip_patterns",
    "dot",
    "dynamic_gemm",
    "from_words",
    "gated_gemm",
    "gemm",
    "gemm_weight_only",
    "gemm_weight_only_gradient",
    "gemv",
    "grouped_gated_gemm",
    "grouped_gemm",
    "grouped_gemm_k",
    "info",
    "inspect_checkpoint",
    "kernel_cache",
    "load_checkpoint",
    "masked_gemm",
    "ops",
    "pack",
    "quantize",
    "quantize_checkpoint",
    "scale_shape",
    "set_log_handler",
    "sort_by_expert",
    "top_k",
    "top_k_gradient",
    "tuning",
    "unpack",
]

# Known by their public names: in messages, and in what pickle and torch.save() write.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = __name__

torch_import.introduce()
