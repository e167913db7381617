"""Octofold in JAX programs: operations on JAX's arrays, inside jax.jit or not, on CPU and GPU.

>>> import octofold.jax as fp8
>>> w8 = fp8.quantize(w, "128x128")                       # [N, K], a ScaledTensor
>>> y = jax.jit(lambda x: fp8.gemm(fp8.quantize(x), w8))(x)
>>> y = fp8.linear(x, w, b)                               # differentiable, both ways in FP8

XLA calls the library by jax-tvm-ffi: it allocates the results, and on a GPU the work is queued on
its stream. Nothing waits for the device. Arguments are checked as a program is traced. Importing
this module makes octofold.ScaledTensor a pytree, and the functions of `octofold` and `octofold.ops`
take JAX's arrays in the same way. docs/jax.md tells more.
"""

try:
    import jax
    import jax_tvm_ffi  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("jax", "jaxlib", "jax_tvm_ffi"):
        raise
    raise ModuleNotFoundError(
        f"octofold.jax needs {error.name}, which is not installed: pip install 'octofold[jax]'",
        name=error.name,
    ) from error

from .._core.calls import CALLERS
from .._core.formats import Format, Rule
from .._core.recipe import Product, Recipe
from .._core.scaled_tensor import ScaledTensor
from .._ops.grouped_gemm import Depth, Masked, Rows
from ._calls import call
from ._linear import linear
from ._operations import (
    attention,
    gemm,
    gemm_weight_only,
    grouped_gemm,
    grouped_gemm_weight_only,
    quantize,
)

__all__ = [
    "Depth",
    "Format",
    "Masked",
    "Product",
    "Recipe",
    "Rows",
    "Rule",
    "ScaledTensor",
    "attention",
    "gemm",
    "gemm_weight_only",
    "grouped_gemm",
    "grouped_gemm_weight_only",
    "linear",
    "quantize",
]

CALLERS[jax.Array] = call
jax.tree_util.register_dataclass(
    ScaledTensor, data_fields=["data", "scale"], meta_fields=["granularity"]
)
# Numbers and words that choose a kernel or a layout are no leaves.
jax.tree_util.register_dataclass(Masked, data_fields=["counts"], meta_fields=["expected_rows"])
jax.tree_util.register_dataclass(Depth, data_fields=["offsets"], meta_fields=["layout"])
