"""The ops as calls that XLA makes: inside jax.jit, or by themselves.

From a row of the table follow the shapes of the results, the checks and the call. The checks are
the library's own, made as a program is traced, of tensors without memory. Then XLA calls the
library's function with the arrays that there are. Options are no attributes of the call, as
jax-tvm-ffi 0.1.3 frees the text of an attribute before the function reads it, and keeps the memory
of its numbers for ever: they are bound to the function, and each combination is a target.
"""

import functools
import hashlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp
import jax_tvm_ffi
import numpy as np

from .._core.errors import UnsupportedError, invalid_argument
from .._core.formats import BY_COLUMNS, NUMPY_DTYPES, SPELLINGS
from .._core.frameworks import Array, Framework, StreamLike
from .._core.library import library
from .._core.ops import TABLE, Arrays, Options, Row

ARRAYS: Final = "a JAX or NumPy array"
_PLATFORMS: Final = ("cpu", "gpu")
_MOST_FUNCTIONS: Final = 1024
"""For so many jax-tvm-ffi has room, of all libraries together."""

_REGISTERED: Final[set[str]] = set()
_REGISTERING: Final = threading.Lock()

# How library.bind() is told where an array lies.
_ABSENT, _BY_ROWS, _BY_COLUMNS = "-", "r", "c"


def call(
    op: Row,
    inputs: Arrays,
    options: Options,
    dtype: str,
    out: Arrays | None,
    stream: StreamLike | None,
) -> Arrays:
    """The results of an op, as JAX's arrays; memory that the library works in is none of them."""
    flags = dict(zip(op.inputs, inputs, strict=True)).get("arrivals.flags?")
    for argument, given in (("out", out), ("stream", stream), ("arrivals", flags)):
        if given is not None:
            raise UnsupportedError(
                f"{op.name}: argument {argument!r}: expected None, because XLA allocates the "
                "results, has a stream of its own, and changes no array; got one beside JAX's "
                "arrays"
            )
    arrays = [
        array_of(op.name, name.removesuffix("?"), array)
        for name, array in zip(op.inputs, inputs, strict=True)
        if array is not None or not name.endswith("?")
    ]
    given_inputs = tuple(array is not None for array in inputs)
    results: Arrays = _compiled(op.name, given_inputs, op.checked_options(options), dtype)(*arrays)
    return results


def array_of(operation: str, argument: str, value: Any) -> Array:
    """JAX's array of JAX's or NumPy's."""
    if not isinstance(value, jax.Array | np.ndarray):
        got = "None" if value is None else f"{type(value).__module__}.{type(value).__qualname__}"
        raise invalid_argument(operation, argument, ARRAYS, got)
    array = jnp.asarray(value)
    if axes := _manual_axes(array, "unreduced"):
        expected = "what jax.lax.psum has added up, as casts of parts are not a cast of their sum"
        raise invalid_argument(operation, argument, expected, f"one unreduced along {[*axes]}")
    return array


def whole(arrays: Arrays) -> Arrays:
    """The arrays, without the sharding that a mesh of explicit axes has given to their types: XLA
    gathers them for a call anyway. Backward, JAX gives it to their gradients again."""

    def gather(array: Array) -> Array:
        sharding = jax.typeof(array).sharding
        if not any(sharding.spec):
            return array
        spec = jax.sharding.PartitionSpec()
        return jax.sharding.reshard(array, jax.sharding.NamedSharding(sharding.mesh, spec))

    gathered: Arrays = jax.tree.map(gather, arrays)
    return gathered


def vary_alike(arrays: Arrays) -> Arrays:
    """The arrays, each varying along all manual axes of jax.shard_map along which one of them does.
    XLA computes nothing for it; backward, JAX adds a gradient up along axes that are new."""
    states = ("varying", "reduced")
    leaves = jax.tree.leaves(arrays)
    every = {axis for leaf in leaves for state in states for axis in _manual_axes(leaf, state)}

    def vary(array: Array) -> Array:
        varying, reduced = (_manual_axes(array, state) for state in states)
        for axes in (reduced, every - reduced - varying):  # pcast() takes axes of one state
            array = jax.lax.pcast(array, tuple(axes), to="varying")
        return array

    varied: Arrays = jax.tree.map(vary, arrays)
    return varied


def _manual_axes(array: Array, state: str) -> frozenset[Any]:
    """Returns the mesh axes along which an array is "varying", "reduced" or "unreduced", as its
    type in JAX says: none outside of jax.shard_map, and none with its check_vma=False."""
    kind = jax.typeof(array)
    if state == "varying" and hasattr(kind, "vma"):  # before JAX 0.10
        return frozenset(kind.vma)
    return frozenset(getattr(getattr(kind, "manual_axis_type", kind.sharding.spec), state))


@functools.cache
def _compiled(
    name: str, given: tuple[bool, ...], options: Options, dtype: str
) -> Callable[..., Arrays]:
    """The op as a function of the arrays that there are, compiled once for each of their shapes."""
    op = TABLE[name]

    def run(*arrays: Array) -> Arrays:
        present = iter(arrays := vary_alike(arrays))
        inputs = tuple(next(present) if there else None for there in given)
        results = _traced(op, inputs, options, dtype)  # which vary along no axis for ffi_call()
        return vary_alike(results + arrays)[: len(results)]

    run.__name__ = f"octofold_{name}"
    mapped = jax.custom_batching.custom_vmap(run)
    mapped.def_vmap(functools.partial(_refuse_vmap, name))
    differentiated = jax.custom_jvp(mapped)
    differentiated.defjvp(functools.partial(_refuse_gradient, name))
    compiled: Callable[..., Arrays] = jax.jit(differentiated, inline=True)
    return compiled


def _refuse_vmap(name: str, *arguments: Any) -> NoReturn:
    raise UnsupportedError(
        f"octofold.{name} has no jax.vmap: leading dimensions count as rows, grouped_gemm has a "
        "weight for each group, and jax.lax.map calls one by one"
    )


def _refuse_gradient(name: str, *arguments: Any) -> NoReturn:
    raise UnsupportedError(
        f"octofold.{name} has no gradient, and differentiation came through it: "
        "octofold.jax.linear has one, jax.lax.stop_gradient leaves it out"
    )


@dataclass(frozen=True)
class _Result:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool = False


class _Framework(Framework):
    """The framework by which rows of the table allocate shapes, of which XLA makes arrays. It knows
    no gaps between rows of codes."""

    def empty(self, shape: Sequence[int], dtype: str) -> _Result:
        return _Result(tuple(shape), NUMPY_DTYPES[dtype])

    def empty_scale(self, shape: Sequence[int], granularity: str) -> _Result:
        return _Result(tuple(shape), NUMPY_DTYPES["float32"], _lies_by_columns(shape, granularity))


_FRAMEWORK: Final = _Framework()


def _lies_by_columns(scale_shape: Sequence[int], granularity: str | None) -> bool:
    """True if scales lie by columns, as products read them fastest. XLA keeps them so between two
    calls of one program; in JAX's own terms the array is the same."""
    return granularity in BY_COLUMNS and len(scale_shape) > 1


def _traced(op: Row, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    """The call in a program that is being traced."""
    results = op.allocate(_FRAMEWORK, inputs, options, dtype)
    _check(op, inputs, results, options)
    named = dict(zip(op.options, options, strict=True))
    input_signs = [
        _sign(array, _is_scale_by_columns(name, array, named))
        for name, array in zip(op.inputs, inputs, strict=True)
    ]
    result_signs = [_sign(result, result is not None and result.by_columns) for result in results]
    target = _target(op.name, "".join(input_signs + result_signs), options)
    written = [result for result in results if result is not None]
    returned: Iterator[Array] = iter(
        jax.ffi.ffi_call(
            target,
            [jax.ShapeDtypeStruct(result.shape, result.dtype) for result in written],
            input_layouts=_layouts(inputs, input_signs),
            output_layouts=_layouts(results, result_signs),
        )(*(array for array in inputs if array is not None))
    )
    arrays = [None if result is None else next(returned) for result in results]
    return tuple(array if index in op.returned else None for index, array in enumerate(arrays))


def _check(op: Row, inputs: Arrays, results: Arrays, options: Options) -> None:
    """Raises the library's errors for arguments like these."""
    places = itertools.count(1)
    names = (*op.inputs, *op.results)
    tensors = [
        None if array is None else _without_memory(op, name, next(places), array)
        for name, array in zip(names, inputs + results, strict=True)
    ]
    op.function(*tensors, *options, None)


def _without_memory(op: Row, name: str, place: int, array: Array) -> Any:
    dtype = str(np.dtype(array.dtype))
    if dtype not in SPELLINGS and dtype != "int32":
        expected = f"one of {', '.join(NUMPY_DTYPES)}"
        raise invalid_argument(op.name, name.removesuffix("?"), f"dtype {expected}", dtype)
    return library.without_memory(place, tuple(array.shape), dtype)


def _is_scale_by_columns(name: str, array: Array, options: dict[str, Any]) -> bool:
    """True if the input is a scale `x.scale` that lies by columns, by the granularity of x."""
    parameter, dot, part = name.removesuffix("?").rpartition(".")
    if array is None or not dot or part != "scale":
        return False
    return _lies_by_columns(array.shape, options.get(f"{parameter}.granularity"))


def _sign(array: Array, by_columns: bool) -> str:
    return _ABSENT if array is None else _BY_COLUMNS if by_columns else _BY_ROWS


def _layouts(arrays: Arrays, signs: Sequence[str]) -> list[tuple[int, ...]]:
    """The layout of each array that is there: dimensions from the slowest to the fastest."""
    ranks = [
        (len(array.shape), sign)
        for array, sign in zip(arrays, signs, strict=True)
        if array is not None
    ]
    return [
        (rank - 1, *range(rank - 1)) if sign == _BY_COLUMNS else tuple(range(rank))
        for rank, sign in ranks
    ]


@functools.cache
def _target(name: str, signs: str, options: Options) -> str:
    """The library's function with these options, as XLA knows it: a name that depends on nothing
    else. The function may be captured in a CUDA graph, as all of the library."""
    digest = hashlib.sha256(repr((signs, options)).encode()).hexdigest()[:16]
    target = f"octofold.{name}.{digest}"
    with _REGISTERING:
        if target not in _REGISTERED:
            _register(target, library.bind(inspect.unwrap(TABLE[name].function), signs, options))
            _REGISTERED.add(target)
    return target


def _register(target: str, function: Any) -> None:
    if jax_tvm_ffi.registered_count() + len(_PLATFORMS) > _MOST_FUNCTIONS:
        raise UnsupportedError(
            f"octofold.jax: expected at most {_MOST_FUNCTIONS} functions in one process, for which "
            "jax-tvm-ffi has room, two for each combination of an operation and its options; "
            f"got one more, {target}"
        )
    for platform in _PLATFORMS:
        jax_tvm_ffi.register_ffi_target(
            target, function, ["args", "rets"], platform, allow_cuda_graph=True
        )
