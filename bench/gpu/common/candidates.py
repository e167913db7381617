"""Octofold's products by a kernel configuration that is named, else as they are planned (None)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import octofold
import torch
from octofold import ScaledTensor
from octofold._core.library import library
from octofold._timing import Call
from torch import Tensor

CAST = (None, "saturate", "deepgemm")  # options of the casts within products
PLAIN = "128x128.w2.c1x1x1.b1.early"
"""Does not sum K in slices: it rounds its sums as the gated kernels do."""


def problem(pair: Sequence[str], out: str, c: str | None = None, fast: bool = False) -> dict:
    operands = {"a": "e4m3", "a_granularity": pair[0], "b": "e4m3", "b_granularity": pair[1]}
    sizes = {"m": 1, "n": 1, "k": 1}  # which do not matter
    return {**sizes, **operands, "out": out, "c": c, "bias": None, "fast_accumulation": fast}


def gemm_names(pair: Sequence[str], out: str, add: bool, fast: bool, aligned: bool) -> list[str]:
    form = problem(pair, out, out if add else None, fast)
    return [str(name) for name in library.gemm_candidates(form, aligned, aligned, aligned)]


def dynamic_gemm_names() -> list[str]:
    return [str(name) for name in library.dynamic_gemm_candidates()]


def gated_gemm_names() -> list[str]:
    return [str(name) for name in library.gated_gemm_candidates()]


def grouped_gemm_names(pair: Sequence[str], out: str, add: bool, in_depth: bool) -> list[str]:
    form = problem(pair, out, out if add else None)
    return [str(name) for name in library.grouped_gemm_candidates(form, in_depth)]


def call_of(function: str, name: str | None, *arguments: Any) -> Call:
    """A call of the library, on whatever stream is the current one as it is called."""
    run = getattr(library, function if name is None else f"{function}_by_candidate")
    named = () if name is None else (name,)

    def call() -> None:
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else None
        run(*arguments, stream, *named)

    return call


def parts(a: ScaledTensor, b: ScaledTensor) -> tuple[Tensor, ...]:
    return a.data, a.scale, b.data, b.scale


def gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    out: Tensor,
    name: str | None,
    c: Tensor | None = None,
    fast: bool = False,
) -> Call:
    if name is None:
        return partial(octofold.gemm, a, b, c=c, out=out, fast_accumulation=fast)
    options = a.granularity, b.granularity, fast
    return call_of("gemm", name, *parts(a, b), c, None, None, out, *options)


def dynamic_gemm(x: Tensor, b: ScaledTensor, out: Tensor, name: str | None) -> Call:
    options = b.granularity, "e4m3", *CAST
    return call_of("dynamic_gemm", name, x, b.data, b.scale, None, out, *options)


def gated_gemm(
    a: ScaledTensor, b: ScaledTensor, activation: str, out: ScaledTensor, name: str | None
) -> Call:
    options = a.granularity, b.granularity, activation, *CAST
    return call_of("gated_gemm", name, *parts(a, b), out.data, out.scale, *options)


def grouped_gemm(
    a: ScaledTensor, b: ScaledTensor, offsets: Tensor, out: Tensor, name: str | None
) -> Call:
    if name is None:
        return partial(octofold.grouped_gemm, a, b, offsets, out=out)
    options = a.granularity, b.granularity, False
    return call_of("grouped_gemm", name, *parts(a, b), offsets, None, None, out, *options)


def masked_gemm(
    a: ScaledTensor, b: ScaledTensor, counts: Tensor, expected: int, out: Tensor, name: str | None
) -> Call:
    if name is None:
        return partial(octofold.masked_gemm, a, b, counts, out=out, expected_rows=expected)
    options = a.granularity, b.granularity, False, expected
    return call_of("masked_gemm", name, *parts(a, b), counts, None, out, *options)


def grouped_gemm_k(
    a: ScaledTensor,
    b: ScaledTensor,
    offsets: Tensor,
    out: Tensor,
    c: Tensor | None,
    name: str | None,
) -> Call:
    if name is None:
        return partial(octofold.grouped_gemm_k, a, b, offsets, out=out, c=c)
    options = a.granularity, b.granularity, False
    return call_of("grouped_gemm_k", name, *parts(a, b), offsets, c, out, *options)


def grouped_gated_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    offsets: Tensor,
    activation: str,
    out: ScaledTensor,
    name: str | None,
) -> Call:
    options = a.granularity, b.granularity, activation, *CAST
    tensors = (*parts(a, b), offsets, out.data, out.scale)
    return call_of("grouped_gated_gemm", name, *tensors, *options)


def sensible_swapped(name: str, m: int) -> bool:
    """Whether a kernel of swapped operands could be the fastest for so many rows."""
    columns = int(name.split(".")[0].split("x")[1])
    return columns <= max(16, 2 * m) and m <= 4 * columns


def of_texts(names: Sequence[str], texts: Sequence[str] | None) -> list[str]:
    """The names with one of the texts in them."""
    return [name for name in names if not texts or any(text in name for text in texts)]
