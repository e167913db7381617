"""The casts of a recipe: each tensor as rows, transposed, or both; from FP8 codes that are there
already too."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.formats import UNITS, Format
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts, Casts, Target, cast
from ..._ops.cast_sources import Source
from ..._ops.grouped_gemm import Rows
from ..._ops.words import transpose
from ..._ranks.wire import as_products_read
from .fp8_weight import Fp8Weight
from .weight_tensors import plain_weight

WeightCasts: TypeAlias = tuple[ScaledTensor | None, ScaledTensor | None]
"""The casts of a weight, and of its transpose; None where no product wants it."""


def as_operand(weight: Tensor | ScaledTensor) -> Tensor | ScaledTensor:
    """A weight as operations take it: codes and scales of a frozen Fp8Weight, whose attributes as a
    tensor take the host longer; any other as it is."""
    return weight.scaled if isinstance(weight, Fp8Weight) else weight


def walkable(x: Tensor) -> Tensor:
    """x [..., cols] as casts take it: contiguous columns, leading dimensions that one stride walks.
    Copied only where it is neither contiguous nor a matrix of contiguous columns."""
    if x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1):
        return x
    return x.contiguous()


def joined(weights: tuple[Tensor | None, ...]) -> Tensor:
    """Weights one below the other (None: nothing), without a gradient; a single one as it is."""
    parts = [plain_weight(weight.detach()) for weight in weights if weight is not None]
    if len(parts) == 1:
        return parts[0]
    coded = [part for part in parts if isinstance(part, Fp8Weight)]
    return below(coded) if len(coded) == len(parts) else torch.cat(parts)


def below(weights: list[Fp8Weight]) -> Fp8Weight:
    """Weights [out, in] one below the other, each of whole squares of 128x128."""
    codes = torch.cat([weight.codes.view(torch.uint8) for weight in weights])
    scale = torch.cat([weight.scale for weight in weights])
    return weights[0].like(codes.view(weights[0].codes.dtype), scale)


def cast_as_wanted(
    source: Tensor | Source,
    rows: Format | None,
    transposed: Format | None,
    *,
    columns: str | None = None,
    offsets: Tensor | None = None,
    matrices: int | Rows | None = None,
) -> AnyCasts:
    """cast() where it may be that no product wants a cast. offsets: where groups of rows begin, the
    layout of a transpose."""
    if rows is None and transposed is None:
        return Casts(None, None)
    return cast(
        source,
        rows=rows,
        transposed=transposed,
        columns=columns,
        offsets=None if transposed is None else offsets,
        matrices=matrices,
    )


def with_amax(format: Format | None, amax: Tensor) -> Target:
    """A cast of a part of a tensor: with the scales that the largest magnitudes [rows of the
    result] of the whole give."""
    assert format is not None
    if format.granularity == "tensor":
        amax = amax.amax(0, keepdim=True)
    return Target(format, amax=amax)


def cast_weight(
    weight: Tensor,
    recipe: Recipe,
    rows: bool,
    transposed: bool,
    used: Tensor | None = None,
) -> WeightCasts:
    """A weight [out, in] for x · weightᵀ, and its transpose [in, out] for dY · weight, as far as
    wanted and as the recipe has these products in FP8. It may require a gradient. Of experts
    [experts, out, in] each one's; with the offsets `used` [experts + 1] of their tokens, those of
    experts that have some: what is not cast is whatever memory held. An Fp8Weight of the product's
    scales is its cast already."""
    output, grad_input = recipe.output, recipe.grad_input
    if isinstance(weight, Fp8Weight):
        codes = weight.scaled
        return codes if rows else None, transposed_weight(codes, recipe) if transposed else None
    weight = plain_weight(weight).detach()
    of_rows = output.b if rows and output is not None else None
    of_transpose = grad_input.b if transposed and grad_input is not None else None
    matrices: int | Rows | None = None
    if weight.dim() == 3:
        weight, matrices = weight.contiguous(), weight.shape[0] if used is None else Rows(used)
    casts = cast_as_wanted(walkable(weight), of_rows, of_transpose, matrices=matrices)
    return casts.rows, casts.transposed


def transposed_weight(weight: ScaledTensor, recipe: Recipe) -> ScaledTensor:
    """The transpose of an FP8 weight [out, in], or of each of [experts, out, in], as the product
    dY · weight of the recipe takes it: the same values where squares or all numbers share a scale,
    else cast from the values in bfloat16."""
    assert recipe.grad_input is not None
    granularity = recipe.grad_input.b.granularity
    matrices = weight.shape[0] if len(weight.shape) == 3 else None
    if granularity != weight.granularity or granularity not in ("tensor", "128x128"):
        values: Tensor = weight.dequantize("bfloat16")
        transposed: Any = cast(values, transposed=recipe.grad_input.b, matrices=matrices).transposed
        assert isinstance(transposed, ScaledTensor)
        return transposed
    scale = weight.scale
    if granularity == "128x128":
        if matrices is not None and scale.dim() == 2:  # of a cast of all experts' rows, one below
            scale = scale.view(matrices, -1, scale.shape[1])  # the other
        scale = scale.transpose(-2, -1).contiguous()
    return ScaledTensor(transpose(weight.data), scale, granularity)


_is_compiling: Final = torch.compiler.is_compiling


def gather_codes(
    x: ScaledTensor, sources: Tensor, slots: int, factors: Tensor | None = None
) -> ScaledTensor:
    """The codes of the rows x[sources // slots], [rows, cols], as a cast of ops.Gathered orders
    them.

    x: [tokens, cols], a scale for each row or for 128 of its columns.
    sources: int32 [rows]; -1 stands for no row: some row is taken.
    factors: float32 [..., slots]: rows are multiplied by factors.flat[sources], which takes their
        scales alone.
    """
    assert UNITS[x.granularity].is_of_a_row
    places = sources.clamp(min=0)
    tokens = places if slots == 1 else places // slots
    data = _words(x.data).index_select(0, tokens).view(x.data.dtype)
    scale = x.scale.index_select(0, tokens)
    if factors is not None:
        of_rows = factors.reshape(-1).index_select(0, places)
        scale = scale * (of_rows if scale.dim() == 1 else of_rows.unsqueeze(-1))
    return ScaledTensor(data, as_products_read(scale, x.granularity), x.granularity)


def _words(codes: Tensor) -> Tensor:
    """Rows of codes as the widest words that they are made of: who copies rows copies these."""
    # Dynamo takes no offsets; those of what it traces here, messages of other ranks, are 0.
    offset = 0 if _is_compiling() else codes.storage_offset()
    for dtype in (torch.int64, torch.int32):
        if all(n % dtype.itemsize == 0 for n in (codes.shape[1], codes.stride(0), offset)):
            return codes.view(dtype)
    return codes.view(torch.uint8)


def stacked_experts(
    operation: str, name: str, matrices: Sequence[Tensor] | Sequence[ScaledTensor]
) -> Tensor | ScaledTensor:
    """Each expert's matrix [out, in] as one [experts, out, in]; FP8 ones as they are. Raises
    InvalidArgumentError that names the argument."""
    scaled = [matrix for matrix in matrices if isinstance(matrix, ScaledTensor)]
    kinds = {(tuple(matrix.shape), matrix.dtype) for matrix in matrices}
    kinds |= {(tuple(matrix.scale.shape), matrix.granularity) for matrix in scaled}
    if len(scaled) not in (0, len(matrices)) or len(kinds) != (2 if scaled else 1):
        expected = "at least one matrix, all of one shape, dtype and granularity"
        raise invalid_argument(operation, name, expected, sorted(map(str, kinds)))
    if not scaled:
        return torch.stack([matrix for matrix in matrices if isinstance(matrix, Tensor)])
    codes = torch.stack([matrix.data.view(torch.uint8) for matrix in scaled])
    scale = torch.stack([matrix.scale for matrix in scaled])
    granularity, data = scaled[0].granularity, codes.view(scaled[0].dtype)
    return ScaledTensor(data, scale.flatten() if granularity == "tensor" else scale, granularity)


def joined_experts(
    operation: str, gate: Tensor | ScaledTensor, up: Tensor | ScaledTensor
) -> Tensor | ScaledTensor:
    """The first layers of gated experts, of gate and up [experts, inner, hidden]. Raises
    InvalidArgumentError where these cannot be put below each other."""
    if isinstance(gate, Tensor) and isinstance(up, Tensor) and gate.shape == up.shape:
        return torch.cat((gate, up), dim=1)
    expected = f"what goes with gate {list(gate.shape)}: the same shape and granularity, no scales "
    expected += "of tensors, and of 128x128 where `inner` is a multiple of 128"
    if (
        isinstance(gate, Tensor)
        or isinstance(up, Tensor)
        or gate.shape != up.shape
        or gate.granularity != up.granularity
        or gate.granularity == "tensor"
        or (gate.granularity == "128x128" and gate.shape[1] % 128 != 0)
    ):
        raise invalid_argument(operation, "up", expected, list(up.shape))
    codes = torch.cat([part.data.view(torch.uint8) for part in (gate, up)], dim=1)
    scale = torch.cat((gate.scale, up.scale), dim=1)
    return ScaledTensor(codes.view(gate.dtype), scale, gate.granularity)
