"""The operations of `octofold` for JAX's arrays. The public functions take them as they are; here
NumPy's become JAX's too, others are refused, and what XLA has of its own is no argument."""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, ParamSpec, TypeVar, cast

import jax

from .._core.scaled_tensor import ScaledTensor
from .._ops import attention as _attention
from .._ops import gemm as _gemm
from .._ops import gemm_weight_only as _gemm_weight_only
from .._ops import grouped_gemm as _grouped_gemm
from .._ops import quantize as _quantize
from .._ops.cast_sources import Gathered
from ._calls import array_of

P = ParamSpec("P")
R = TypeVar("R")

_NO_ARGUMENTS: Final = {"arrivals", "out", "stream"}
_NOTE: Final = """
    In JAX programs XLA allocates the results, and has a stream of its own. Arguments are checked as
    the program is traced; what only a GPU refuses comes from XLA as it runs, and so do numbers of
    groups that make no sense on the CPU. Differentiation through this raises UnsupportedError, and
    so does jax.vmap. docs/jax.md tells more.
    """


def _for_jax(function: Callable[P, Any], result: type[R]) -> Callable[P, R]:
    """A public function whose first operand, by which an op is called, becomes JAX's."""
    signature = inspect.signature(function)
    name, first = function.__name__, next(iter(signature.parameters))

    @functools.wraps(function)
    def call(*operands: Any, **named: Any) -> Any:
        if named and (absent := _NO_ARGUMENTS & named.keys()):
            raise TypeError(f"octofold.jax.{name}() has no argument {min(absent)!r}")
        if operands:
            operands = _of_jax(name, first, operands[0]), *operands[1:]
        elif first in named:
            named[first] = _of_jax(name, first, named[first])
        return function(*operands, **named)

    kept = [p for p in signature.parameters.values() if p.name not in _NO_ARGUMENTS]
    vars(call)["__signature__"] = signature.replace(parameters=kept)
    call.__module__ = __name__
    of_xla = rf"\n    (?:{'|'.join(_NO_ARGUMENTS)}): .*(?:\n {{8}}.*)*"
    call.__doc__ = re.sub(of_xla, "", function.__doc__ or "") + _NOTE
    return cast(Callable[P, R], call)


def _of_jax(operation: str, argument: str, x: Any) -> Any:
    if isinstance(x, ScaledTensor):
        return ScaledTensor(_of_jax(operation, argument, x.data), x.scale, x.granularity)
    if isinstance(x, Gathered):
        return replace(x, x=_of_jax(operation, argument, x.x))
    return array_of(operation, argument, x)


_one_or_two: type[Any] = object

quantize = _for_jax(_quantize.quantize, ScaledTensor)
gemm = _for_jax(_gemm.gemm, jax.Array)
grouped_gemm = _for_jax(_grouped_gemm.grouped_gemm, jax.Array)
gemm_weight_only = _for_jax(_gemm_weight_only.gemm_weight_only, jax.Array)
grouped_gemm_weight_only = _for_jax(_gemm_weight_only.grouped_gemm_weight_only, jax.Array)
attention = _for_jax(_attention.attention, _one_or_two)
