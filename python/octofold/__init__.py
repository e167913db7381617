"""Octofold: FP8 linear algebra. Casts with fine-grained scales, matrix products, checkpoints.

>>> x8 = octofold.quantize(x)                             # activations [M, K], a scale per 1x128
>>> w8 = octofold.quantize(w, granularity="128x128")      # weights [N, K], a scale per 128x128
>>> y = octofold.gemm(x8, w8, out_dtype="bfloat16")       # [M, N]

Arrays are NumPy's (with ml_dtypes), torch's, or any that speak DLPack; results come back in kind.
"""

from . import kernel_cache
from ._checkpoint import CheckpointReport, default_skip_patterns, quantize_checkpoint
from ._core import torch_import
from ._core.ops import scale_shape
from ._info import Component, Gpu, Info, info
from ._log import set_log_handler
from .activations import quantize_activation, quantize_activation_gradient
from .casts import convert, quantize, quantize_both
from .errors import (
    BadFormatError,
    Error,
    InternalError,
    InvalidArgumentError,
    IoError,
    UnavailableError,
    UnsupportedError,
)
from .gemm import gemm
from .scaled_tensor import ScaledTensor

torch_import.introduce()

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # takes longer than the rest of this file

    return version("octofold")


__all__ = [
    "BadFormatError",
    "CheckpointReport",
    "Component",
    "Error",
    "Gpu",
    "Info",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "ScaledTensor",
    "UnavailableError",
    "UnsupportedError",
    "convert",
    "default_skip_patterns",
    "gemm",
    "info",
    "kernel_cache",
    "quantize",
    "quantize_activation",
    "quantize_activation_gradient",
    "quantize_both",
    "quantize_checkpoint",
    "scale_shape",
    "set_log_handler",
]
