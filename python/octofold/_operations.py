"""The operations on the arrays of one framework: allocate results, call the library.

Values are checked by the library; here, only what is needed to know the results' shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tvm_ffi

from ._frameworks import Array, Framework
from ._library import library
from .errors import invalid_argument


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


class Scaled(NamedTuple):
    """A scaled matrix in one argument."""

    data: Array
    scale: Array
    granularity: str


@dataclass(frozen=True)
class Operations:
    """The operations for one framework."""

    framework: Framework

    def _read(self, operation: str, argument: str, array: Array) -> tvm_ffi.Tensor:
        return self._export(operation, argument, array, writable=False)

    def _write(self, operation: str, argument: str, array: Array) -> tvm_ffi.Tensor:
        return self._export(operation, argument, array, writable=True)

    def _export(
        self, operation: str, argument: str, array: Array, writable: bool
    ) -> tvm_ffi.Tensor:
        try:
            return self.framework.export(array, writable)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            expected = "a writable tensor" if writable else "a tensor"
            raise invalid_argument(
                operation, argument, f"{expected} that DLPack can export", f"this: {error}"
            ) from error

    def quantize(
        self,
        x: Array,
        dtype: str,
        granularity: str,
        power_of_two: bool | None,
        overflow: str,
        profile: str,
        transpose: bool,
    ) -> tuple[Array, Array]:
        source = self._read("quantize", "x", x)
        rows, cols = require_matrix("quantize", "x", source.shape)
        if transpose:
            rows, cols = cols, rows
        data = self.framework.empty((rows, cols), dtype)
        scale = self.framework.empty(scale_shape(granularity, rows, cols), "float32")
        library.quantize(
            source,
            self._write("quantize", "out", data),
            self._write("quantize", "out.scale", scale),
            granularity,
            power_of_two,
            overflow,
            profile,
            transpose,
        )
        return self.framework.deliver(data), self.framework.deliver(scale)

    def dequantize(self, x: Scaled, dtype: str) -> Array:
        codes = self._read("dequantize", "x", x.data)
        out = self.framework.empty(require_matrix("dequantize", "x", codes.shape), dtype)
        library.dequantize(
            codes,
            self._read("dequantize", "x.scale", x.scale),
            x.granularity,
            self._write("dequantize", "out", out),
        )
        return self.framework.deliver(out)

    def convert(self, x: Array, dtype: str, overflow: str) -> Array:
        source = self._read("convert", "x", x)
        out = self.framework.empty(source.shape, dtype)
        library.convert(source, self._write("convert", "out", out), overflow)
        return self.framework.deliver(out)

    def gemm(
        self,
        a: Scaled,
        b: Scaled,
        c: Array | None,
        bias: Array | None,
        out_dtype: str,
        fast_accumulation: bool,
    ) -> Array:
        m, _ = require_matrix("gemm", "a", self._read("gemm", "a", a.data).shape)
        n, _ = require_matrix("gemm", "b", self._read("gemm", "b", b.data).shape)
        out = self.framework.empty((m, n), out_dtype)
        self.gemm_out(out, a, b, c, bias, fast_accumulation)
        return self.framework.deliver(out)

    def gemm_out(
        self,
        out: Array,
        a: Scaled,
        b: Scaled,
        c: Array | None,
        bias: Array | None,
        fast_accumulation: bool,
    ) -> None:
        library.gemm(
            self._read("gemm", "a", a.data),
            self._read("gemm", "a.scale", a.scale),
            a.granularity,
            self._read("gemm", "b", b.data),
            self._read("gemm", "b.scale", b.scale),
            b.granularity,
            self._write("gemm", "out", out),
            None if c is None else self._read("gemm", "c", c),
            None if bias is None else self._read("gemm", "bias", bias),
            fast_accumulation,
        )
