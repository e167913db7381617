"""Octofold's products by a kernel configuration that is named, else as they are planned (None)."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from octofold import Rows, ScaledTensor
from octofold._core.library import library
from octofold._ops.gated_gemm import multiply_gated
from octofold._ops.gemm import multiply
from octofold._ops.grouped_gemm import Groups, multiply_groups
from octofold._timing import Call
from octofold.tuning import ProductProblem
from torch import Tensor

PLAIN = "128x128.w2.c1x1x1.b1.early"
"""Does not sum K in slices: it rounds its sums as the gated kernels do."""


def names_of(
    pair: Sequence[str], out: str, c: str | None = None, aligned: bool = True, **fields: object
) -> list[str]:
    """Returns candidates of a tuning.ProductProblem of any size, with tensors aligned or not."""
    scales = {"a_granularity": pair[0], "b_granularity": pair[1]}
    problem = asdict(ProductProblem(1, 1, 1, out=out, c=c)) | scales | fields
    for tensors in ("operands_are", "out_is", "c_is"):
        problem[f"{tensors}_aligned"] = aligned
    return [str(name) for name in library.product_candidates(problem, "sm_90a", 132)]


def gemm_names(pair: Sequence[str], out: str, add: bool, fast: bool, aligned: bool) -> list[str]:
    return names_of(pair, out, out if add else None, aligned, fast_accumulation=fast)


def cast_gemm_names() -> list[str]:
    return names_of(("1x128", "128x128"), "bfloat16", cast_from="bfloat16")


def gated_gemm_names() -> list[str]:
    return names_of(("1x128", "128x128"), "e4m3", gated="swiglu")


def grouped_gemm_names(pair: Sequence[str], out: str, add: bool, in_depth: bool) -> list[str]:
    grouping = "depth" if in_depth else "rows"
    return names_of(pair, out, out if add else None, grouping=grouping)


def gemm(
    a: Tensor | ScaledTensor,
    b: ScaledTensor,
    out: Tensor,
    name: str | None,
    c: Tensor | None = None,
    fast: bool = False,
) -> Call:
    """Returns a call of the product, which casts `a` itself if that is a tensor."""
    return partial(multiply, a, b, c, None, "1x128", None, (fast, False), out, None, name)


def gated_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    activation: str,
    out: ScaledTensor,
    name: str | None,
    offsets: Tensor | None = None,
) -> Call:
    groups = None if offsets is None else Rows(offsets)
    return partial(multiply_gated, a, b, groups, activation, "1x128", False, out, None, name)


def grouped_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    groups: Groups,
    out: Tensor,
    name: str | None,
    c: Tensor | None = None,
) -> Call:
    return partial(multiply_groups, a, b, groups, c, None, None, (False, False), out, None, name)


def sensible_swapped(name: str, m: int) -> bool:
    """True if a kernel with swapped operands could be the fastest for so many rows."""
    columns = int(name.split(".")[0].split("x")[1])
    return columns <= max(16, 2 * m) and m <= 4 * columns


def of_texts(names: Sequence[str], texts: Sequence[str] | None) -> list[str]:
    """The names with one of the texts in them."""
    return [name for name in names if not texts or any(text in name for text in texts)]
