"""Octofold in JAX programs: importing this module lets the functions of octofold and octofold.ops
take JAX's arrays, inside jax.jit or not, on CPU and GPU, and makes octofold.ScaledTensor a pytree.

>>> import octofold
>>> import octofold.jax
>>> w8 = octofold.quantize(w, "128x128")                  # [N, K], a ScaledTensor
>>> y = jax.jit(lambda x: octofold.gemm(octofold.quantize(x), w8))(x)
>>> y = octofold.jax.linear(x, w, b)                      # differentiable, both ways in FP8

XLA calls the library by jax-tvm-ffi: it allocates the results, and on a GPU the work is queued on
its stream. Nothing waits for the device. Arguments are checked as a program is traced; what only a
GPU refuses comes from XLA as it runs, and so do numbers of groups that make no sense on the CPU.
Operations refuse differentiation and jax.vmap with UnsupportedError. docs/jax.md tells more.
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
from .._core.recipe import Product, Recipe
from .._core.scaled_tensor import ScaledTensor
from .._ops.grouped_gemm import Depth, Masked
from ._calls import call
from ._linear import linear

__all__ = ["Product", "Recipe", "linear"]

CALLERS[jax.Array] = call
jax.tree_util.register_dataclass(
    ScaledTensor, data_fields=["data", "scale"], meta_fields=["granularity"]
)
# Numbers and words that choose a kernel or a layout are no leaves.
jax.tree_util.register_dataclass(Masked, data_fields=["counts"], meta_fields=["expected_rows"])
jax.tree_util.register_dataclass(Depth, data_fields=["offsets"], meta_fields=["layout"])
