"""The operations on the arrays of one framework: allocate results, call the library.

Values are checked by the library; here, only what is needed to know the results' shapes.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final, NamedTuple, Protocol

from ._frameworks import Array, Framework
from ._library import library
from ._tvm_ffi import tvm_ffi
from .errors import Error, invalid_argument

# What frameworks raise for an array that they cannot export.
_EXPORT_ERRORS: Final = (BufferError, RuntimeError, TypeError, ValueError)


def require_matrix(operation: str, argument: str, shape: Sequence[int]) -> tuple[int, int]:
    """The two sizes of a matrix."""
    if len(shape) != 2:
        raise invalid_argument(operation, argument, "a matrix (2 dimensions)", f"{len(shape)}")
    return shape[0], shape[1]


def scale_shape(granularity: str, rows: int, cols: int) -> tuple[int, ...]:
    """Shape of the scale tensor of a matrix [rows, cols].

    | granularity | shape                             |
    |-------------|-----------------------------------|
    | "tensor"    | [1]                               |
    | "channel"   | [rows]                            |
    | "1x128"     | [rows, ceil(cols / 128)]          |
    | "128x128"   | [ceil(rows / 128), ceil(cols / 128)] |
    """
    return tuple(library.scale_shape(granularity, rows, cols))


def quick_scale_shape(granularity: str, rows: int, cols: int) -> tuple[int, ...]:
    """scale_shape() without a call of the library: faster, and for torch's symbolic sizes too."""
    if granularity == "1x128":
        return (rows, (cols + 127) // 128)
    if granularity == "128x128":
        return ((rows + 127) // 128, (cols + 127) // 128)
    if granularity == "channel":
        return (rows,)
    if granularity != "tensor":
        scale_shape(granularity, 0, 0)  # raises the library's error
    return (1,)


class Scaled(Protocol):
    """A scaled matrix: a ScaledTensor, or its parts."""

    @property
    def data(self) -> Array: ...

    @property
    def scale(self) -> Array: ...

    @property
    def granularity(self) -> str: ...


class ScaledParts(NamedTuple):
    """A Scaled in the making."""

    data: Array
    scale: Array
    granularity: str


class CastOptions(NamedTuple):
    """What quantize() and quantize_both() have in common, in the order of the library."""

    granularity: str
    power_of_two: bool | None
    overflow: str
    profile: str


class Operations:
    """The operations for one framework."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    def quantize(
        self, x: Array, dtype: str, options: CastOptions, transpose: bool
    ) -> tuple[Array, Array]:
        rows, cols = self._require_matrix("quantize", "x", x)
        if transpose:
            rows, cols = cols, rows
        results = self._empty_cast(rows, cols, dtype, options.granularity)
        arguments = ("x", "out", "out.scale")
        self._run(library.quantize, "quantize", arguments, (x, *results), *options, transpose)
        data, scale = map(self._framework.deliver, results)
        return data, scale

    def quantize_both(
        self, x: Array, dtype: str, options: CastOptions
    ) -> tuple[Array, Array, Array, Array]:
        rows, cols = self._require_matrix("quantize_both", "x", x)
        results = (
            *self._empty_cast(rows, cols, dtype, options.granularity),
            *self._empty_cast(cols, rows, dtype, options.granularity),
        )
        arguments = ("x", "out", "out.scale", "out_transposed", "out_transposed.scale")
        self._run(library.quantize_both, "quantize_both", arguments, (x, *results), *options)
        data, scale, transposed_data, transposed_scale = map(self._framework.deliver, results)
        return data, scale, transposed_data, transposed_scale

    def dequantize(self, x: Scaled, dtype: str) -> Array:
        out = self._framework.empty(self._require_matrix("dequantize", "x", x.data), dtype)
        arguments = ("x", "x.scale", "out")
        arrays = (x.data, x.scale, out)
        self._run(library.dequantize, "dequantize", arguments, arrays, x.granularity)
        return self._framework.deliver(out)

    def convert(self, x: Array, dtype: str, overflow: str) -> Array:
        out = self._framework.empty(self._shape("convert", "x", x), dtype)
        self._run(library.convert, "convert", ("x", "out"), (x, out), overflow)
        return self._framework.deliver(out)

    def gemm(
        self,
        a: Scaled,
        b: Scaled,
        c: Array | None,
        bias: Array | None,
        out_dtype: str,
        fast_accumulation: bool,
    ) -> Array:
        m, _ = self._require_matrix("gemm", "a", a.data)
        n, _ = self._require_matrix("gemm", "b", b.data)
        out = self._framework.empty((m, n), out_dtype)
        self._gemm(out, a, b, c, bias, fast_accumulation)
        return self._framework.deliver(out)

    def gemm_out(
        self,
        out: Array,
        a: Scaled,
        b: Scaled,
        c: Array | None,
        bias: Array | None,
        fast_accumulation: bool,
    ) -> None:
        self._gemm(out, a, b, c, bias, fast_accumulation)
        self._framework.mark_written(out)

    def _gemm(
        self,
        out: Array,
        a: Scaled,
        b: Scaled,
        c: Array | None,
        bias: Array | None,
        fast_accumulation: bool,
    ) -> None:
        self._run(
            library.gemm,
            "gemm",
            ("a", "a.scale", "b", "b.scale", "out", "c", "bias"),
            (a.data, a.scale, b.data, b.scale, out, c, bias),
            a.granularity,
            b.granularity,
            fast_accumulation,
        )

    def _run(
        self,
        function: Callable[..., None],
        operation: str,
        arguments: Sequence[str],
        arrays: Sequence[Array | None],
        *options: object,
    ) -> None:
        framework = self._framework
        if not framework.library_takes_arrays:
            exported = map(self._export, repeat(operation), arguments, arrays)
            function(*exported, *options, framework.stream)
            return
        try:
            function(*arrays, *options, framework.stream)
        except Error:
            raise
        except _EXPORT_ERRORS:
            for argument, array in zip(arguments, arrays, strict=True):
                self._export(operation, argument, array)  # raises for the one that is at fault
            raise

    def _export(
        self, operation: str, argument: str, array: Array | None
    ) -> "tvm_ffi.Tensor | None":
        if array is None:
            return None
        writable = argument.startswith("out")
        try:
            return self._framework.export(array, writable)
        except Error:
            raise
        except _EXPORT_ERRORS as error:
            expected = "a writable tensor" if writable else "a tensor"
            reason, *_ = str(error).splitlines() or [type(error).__name__]  # torch adds its stack
            raise invalid_argument(
                operation, argument, f"{expected} that DLPack can export", f"this: {reason}"
            ) from error

    def _shape(self, operation: str, argument: str, array: Array) -> tuple[int, ...]:
        if not hasattr(array, "shape"):  # DLPack asks for none
            array = self._export(operation, argument, array)
        return tuple(array.shape)

    def _require_matrix(self, operation: str, argument: str, array: Array) -> tuple[int, int]:
        return require_matrix(operation, argument, self._shape(operation, argument, array))

    def _empty_cast(
        self, rows: int, cols: int, dtype: str, granularity: str
    ) -> tuple[Array, Array]:
        shape = quick_scale_shape(granularity, rows, cols)
        return (
            self._framework.empty((rows, cols), dtype),
            self._framework.empty_scale(shape, granularity),
        )
