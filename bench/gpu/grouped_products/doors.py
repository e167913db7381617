"""Octofold's grouped products, as they are planned or by a candidate of that name."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import octofold
import torch
from octofold import ScaledTensor
from octofold._library import library
from octofold_tool.gpu.timing import Call
from torch import Tensor

CAST = (None, "saturate", "deepgemm")  # options of a gated product's cast


def candidates(section: str, pair: Sequence[str]) -> list[str]:
    """Names of what can compute such a product, as the sections ask for it."""
    if section == "gated":
        return [str(name) for name in library.gated_gemm_candidates()]
    out = "float32" if section == "k" else "bfloat16"
    operands = {"a": "e4m3", "a_granularity": pair[0], "b": "e4m3", "b_granularity": pair[1]}
    sizes = {"m": 1, "n": 1, "k": 1}  # which do not matter
    form = {**sizes, **operands, "out": out, "c": out if section == "k" else None, "bias": None}
    in_depth = section in ("k", "gradients")
    return [str(name) for name in library.grouped_gemm_candidates(form, in_depth)]


def by_candidate(function: Any, tensors: Sequence[Any], options: Sequence[Any], name: str) -> Call:
    """On whatever stream is the current one as it is called."""

    def call() -> None:
        function(*tensors, *options, torch.cuda.current_stream().cuda_stream, name)

    return call


def contiguous(
    a: ScaledTensor, b: ScaledTensor, offsets: Tensor, out: Tensor, candidate: str | None
) -> Call:
    if candidate is None:
        return partial(octofold.grouped_gemm, a, b, offsets, out=out)
    tensors = (a.data, a.scale, b.data, b.scale, offsets, None, None, out)
    options = (a.granularity, b.granularity, False)
    return by_candidate(library.grouped_gemm_by_candidate, tensors, options, candidate)


def masked(
    a: ScaledTensor,
    b: ScaledTensor,
    counts: Tensor,
    expected: int,
    out: Tensor,
    candidate: str | None,
) -> Call:
    if candidate is None:
        return partial(octofold.masked_gemm, a, b, counts, out=out, expected_rows=expected)
    tensors = (a.data, a.scale, b.data, b.scale, counts, None, out)
    options = (a.granularity, b.granularity, False, expected)
    return by_candidate(library.masked_gemm_by_candidate, tensors, options, candidate)


def k_groups(
    a: ScaledTensor,
    b: ScaledTensor,
    offsets: Tensor,
    out: Tensor,
    c: Tensor | None,
    candidate: str | None,
) -> Call:
    if candidate is None:
        return partial(octofold.grouped_gemm_k, a, b, offsets, out=out, c=c)
    tensors = (a.data, a.scale, b.data, b.scale, offsets, c, out)
    options = (a.granularity, b.granularity, False)
    return by_candidate(library.grouped_gemm_k_by_candidate, tensors, options, candidate)


def gated(
    a: ScaledTensor,
    b: ScaledTensor,
    offsets: Tensor,
    activation: str,
    out: ScaledTensor,
    candidate: str | None,
) -> Call:
    """Into `out`, which grouped_gated_gemm() itself does not take."""
    tensors = (a.data, a.scale, b.data, b.scale, offsets, out.data, out.scale)
    options = (a.granularity, b.granularity, activation, *CAST)
    if candidate is not None:
        return by_candidate(library.grouped_gated_gemm_by_candidate, tensors, options, candidate)
    return partial(octofold.grouped_gated_gemm, a, b, offsets, activation)
