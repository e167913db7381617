"""The operations as registered torch ops, with what torch.compile has to know of their results."""

from typing import Final

import torch
from torch import Tensor

from ._operations import CastOptions, ScaledParts, quick_scale_shape, require_matrix
from ._torch_framework import NAMES, on_device_of, scale_strides

_SCALED: Final = "Tensor {0}, Tensor {0}_scale, str {0}_granularity"
_OPERANDS: Final = f"{_SCALED.format('a')}, {_SCALED.format('b')}, Tensor? c, Tensor? bias"


@torch.library.custom_op(
    "octofold::quantize",
    mutates_args=(),
    schema="(Tensor x, ScalarType dtype, str granularity, bool? power_of_two, str overflow, "
    "str profile, bool transpose) -> (Tensor, Tensor)",
)
def quantize(
    x: Tensor,
    dtype: torch.dtype,
    granularity: str,
    power_of_two: bool | None,
    overflow: str,
    profile: str,
    transpose: bool,
) -> tuple[Tensor, Tensor]:
    options = CastOptions(granularity, power_of_two, overflow, profile)
    return on_device_of(x).quantize(x, NAMES[dtype], options, transpose)


@quantize.register_fake
def _(
    x: Tensor,
    dtype: torch.dtype,
    granularity: str,
    power_of_two: bool | None,
    overflow: str,
    profile: str,
    transpose: bool,
) -> tuple[Tensor, Tensor]:
    rows, cols = require_matrix("quantize", "x", x.shape)
    if transpose:
        rows, cols = cols, rows
    return _fake_cast(x, rows, cols, dtype, granularity)


@torch.library.custom_op(
    "octofold::quantize_both",
    mutates_args=(),
    schema="(Tensor x, ScalarType dtype, str granularity, bool? power_of_two, str overflow, "
    "str profile) -> (Tensor, Tensor, Tensor, Tensor)",
)
def quantize_both(
    x: Tensor,
    dtype: torch.dtype,
    granularity: str,
    power_of_two: bool | None,
    overflow: str,
    profile: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = CastOptions(granularity, power_of_two, overflow, profile)
    return on_device_of(x).quantize_both(x, NAMES[dtype], options)


@quantize_both.register_fake
def _(
    x: Tensor,
    dtype: torch.dtype,
    granularity: str,
    power_of_two: bool | None,
    overflow: str,
    profile: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, cols = require_matrix("quantize_both", "x", x.shape)
    return (
        *_fake_cast(x, rows, cols, dtype, granularity),
        *_fake_cast(x, cols, rows, dtype, granularity),
    )


def _fake_cast(
    x: Tensor, rows: int, cols: int, dtype: torch.dtype, granularity: str
) -> tuple[Tensor, Tensor]:
    shape = quick_scale_shape(granularity, rows, cols)
    strides = scale_strides(granularity, shape, x.device)
    scale = x.new_empty_strided(shape, strides, dtype=torch.float32)
    return x.new_empty((rows, cols), dtype=dtype), scale


@torch.library.custom_op(
    "octofold::dequantize",
    mutates_args=(),
    schema=f"({_SCALED.format('x')}, ScalarType dtype) -> Tensor",
)
def dequantize(x: Tensor, x_scale: Tensor, x_granularity: str, dtype: torch.dtype) -> Tensor:
    result: Tensor = on_device_of(x).dequantize(
        ScaledParts(x, x_scale, x_granularity), NAMES[dtype]
    )
    return result


@dequantize.register_fake
def _(x: Tensor, x_scale: Tensor, x_granularity: str, dtype: torch.dtype) -> Tensor:
    return x.new_empty(require_matrix("dequantize", "x", x.shape), dtype=dtype)


@torch.library.custom_op(
    "octofold::convert",
    mutates_args=(),
    schema="(Tensor x, ScalarType dtype, str overflow) -> Tensor",
)
def convert(x: Tensor, dtype: torch.dtype, overflow: str) -> Tensor:
    result: Tensor = on_device_of(x).convert(x, NAMES[dtype], overflow)
    return result


@convert.register_fake
def _(x: Tensor, dtype: torch.dtype, overflow: str) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op(
    "octofold::gemm",
    mutates_args=(),
    schema=f"({_OPERANDS}, ScalarType out_dtype, bool fast_accumulation) -> Tensor",
)
def gemm(
    a: Tensor,
    a_scale: Tensor,
    a_granularity: str,
    b: Tensor,
    b_scale: Tensor,
    b_granularity: str,
    c: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    fast_accumulation: bool,
) -> Tensor:
    result: Tensor = on_device_of(a).gemm(
        ScaledParts(a, a_scale, a_granularity),
        ScaledParts(b, b_scale, b_granularity),
        c,
        bias,
        NAMES[out_dtype],
        fast_accumulation,
    )
    return result


@gemm.register_fake
def _(
    a: Tensor,
    a_scale: Tensor,
    a_granularity: str,
    b: Tensor,
    b_scale: Tensor,
    b_granularity: str,
    c: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    fast_accumulation: bool,
) -> Tensor:
    m, _ = require_matrix("gemm", "a", a.shape)
    n, _ = require_matrix("gemm", "b", b.shape)
    return a.new_empty((m, n), dtype=out_dtype)


# `accumulate` stands for c = out: an op may not take what it mutates a second time.
@torch.library.custom_op(
    "octofold::gemm_out",
    mutates_args=("out",),
    schema=f"(Tensor(a!) out, {_OPERANDS}, bool accumulate, bool fast_accumulation) -> ()",
)
def gemm_out(
    out: Tensor,
    a: Tensor,
    a_scale: Tensor,
    a_granularity: str,
    b: Tensor,
    b_scale: Tensor,
    b_granularity: str,
    c: Tensor | None,
    bias: Tensor | None,
    accumulate: bool,
    fast_accumulation: bool,
) -> None:
    on_device_of(a).gemm_out(
        out,
        ScaledParts(a, a_scale, a_granularity),
        ScaledParts(b, b_scale, b_granularity),
        out if accumulate else c,
        bias,
        fast_accumulation,
    )


@gemm_out.register_fake
def _(*_arguments: object) -> None:
    return None
