"""FP8 weights of experts [experts, out, in]."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.scaled_tensor import ScaledTensor


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
