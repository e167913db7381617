"""Octofold: FP8 linear algebra. Casts with fine-grained scales, matrix products, checkpoints.

>>> x8 = octofold.quantize(x)                             # activations [M, K], a scale per 1x128
>>> w8 = octofold.quantize(w, "128x128")                  # weights [N, K], a scale per 128x128
>>> y = octofold.gemm(x8, w8, out_dtype="bfloat16")       # [M, N]

Arrays are NumPy's (with ml_dtypes), torch's, or any others that speak DLPack. Results come back in
the framework of the inputs. octofold.ops holds the operations that layers are made of.

With torch, octofold.linear(), mlp(), norm_linear() and experts() are differentiable layers,
octofold.nn holds modules of them, and

>>> octofold.nn.convert(model)                            # every torch.nn.Linear

makes a model train in FP8;

>>> plan = octofold.models.advise(model, inputs)          # which layers gain by it, measured
>>> octofold.models.apply(model, plan)

makes a model faster or smaller at inference. octofold.jax has the operations and a layer for JAX.
"""

import importlib.util
from typing import TYPE_CHECKING

from . import kernel_cache, ops, tuning
from ._capabilities import Capabilities, Capability, capabilities
from ._checkpoint import (
    CheckpointContents,
    CheckpointReport,
    CheckpointTensor,
    CheckpointWeight,
    WeightChange,
    checkpoint_families,
    convert_checkpoint,
    default_skip_patterns,
    inspect_checkpoint,
    quantize_checkpoint,
)
from ._core.errors import (
    BadFormatError,
    Error,
    InternalError,
    InvalidArgumentError,
    IoError,
    OutOfMemoryError,
    UnavailableError,
    UnsupportedError,
)
from ._core.formats import Format, Rule
from ._core.frameworks import import_below, introduce
from ._core.library import is_batch_invariant, library, set_batch_invariant, set_log_handler
from ._core.scaled_tensor import ScaledTensor
from ._info import Component, Gpu, Info, Support, info
from ._load_checkpoint import Checkpoint, load_checkpoint
from ._ops import layer_ops as _layer_ops  # noqa: F401  # whose rows become ops of torch
from ._ops.attention import attention
from ._ops.gemm import Arrivals, gemm
from ._ops.gemm_weight_only import gemm_weight_only, grouped_gemm_weight_only
from ._ops.grouped_gemm import Depth, Masked, Rows, grouped_gemm
from ._ops.quantize import quantize

if TYPE_CHECKING:
    from . import distributed as distributed
    from . import jax as jax
    from . import models as models
    from . import nn as nn
    from .nn.autograd.blocks import mlp as mlp
    from .nn.autograd.blocks import norm_linear as norm_linear
    from .nn.autograd.experts import experts as experts
    from .nn.autograd.linear import linear as linear

__version__: str

__all__ = [
    "Arrivals",
    "BadFormatError",
    "Capabilities",
    "Capability",
    "Checkpoint",
    "CheckpointContents",
    "CheckpointReport",
    "CheckpointTensor",
    "CheckpointWeight",
    "Component",
    "Depth",
    "Error",
    "Format",
    "Gpu",
    "Info",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "Masked",
    "OutOfMemoryError",
    "Rows",
    "Rule",
    "ScaledTensor",
    "Support",
    "UnavailableError",
    "UnsupportedError",
    "WeightChange",
    "attention",
    "capabilities",
    "checkpoint_families",
    "convert_checkpoint",
    "default_skip_patterns",
    "gemm",
    "gemm_weight_only",
    "grouped_gemm",
    "grouped_gemm_weight_only",
    "info",
    "inspect_checkpoint",
    "is_batch_invariant",
    "kernel_cache",
    "load_checkpoint",
    "ops",
    "quantize",
    "quantize_checkpoint",
    "set_batch_invariant",
    "set_log_handler",
    "tuning",
]

# The names that messages, pickles and torch.save() have for these types.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = __name__

# Names that need torch or JAX are imported when they are asked for: torch takes longer than all the
# rest. A star import has no "jax", which would hide JAX itself.
_LAZY = {
    "distributed": "",
    "experts": "nn.autograd.experts",
    "jax": "",
    "linear": "nn.autograd.linear",
    "mlp": "nn.autograd.blocks",
    "models": "",
    "nn": "",
    "norm_linear": "nn.autograd.blocks",
}
if importlib.util.find_spec("torch") is not None:  # so that a star import works without torch
    __all__ += ["experts", "linear", "mlp", "models", "nn", "norm_linear"]


def __getattr__(name: str) -> object:
    """The lazy names, and the version."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("octofold")
        except PackageNotFoundError:  # a folder of files, which pip has not installed
            return str(library.version())
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = _LAZY[name]
    module = import_below(__name__, path or name)
    return getattr(module, name) if path else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


introduce(ScaledTensor)
