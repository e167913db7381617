"""The ways of an expert layer, and which one it goes."""

from collections.abc import Callable
from typing import Final

from torch import Tensor

from ..._core.ops import row_count
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._layer_ways import CAST, FP8, LEFT, NATIVE, TRAINED, WEIGHT_ONLY
from ..recipes.choice import FEW_TOKENS_OF_EXPERTS
from ..recipes.kernels import expert_way
from .expert_chain import Projection
from .expert_function import native_experts
from .expert_inputs import Tokens
from .expert_weight_only import weight_only_experts
from .expert_wide import wide_experts
from .linear import result_dtype

_WAYS: Final[dict[str, Callable[..., Tensor]]] = {
    NATIVE: native_experts,
    WEIGHT_ONLY: weight_only_experts,
    LEFT: wide_experts,
}


def chosen_way(
    x: Tensor, first: Tensor | ScaledTensor, second: Tensor | ScaledTensor, compute: str
) -> str:
    """NATIVE, WEIGHT_ONLY or LEFT: where x is, with these weights. compute: one of COMPUTE, for
    weights that both are FP8."""
    if not (isinstance(first, ScaledTensor) and isinstance(second, ScaledTensor)):
        return expert_way(x.device, TRAINED)
    few = compute == "auto" and row_count(x.shape) <= FEW_TOKENS_OF_EXPERTS
    if few or compute == WEIGHT_ONLY:
        return WEIGHT_ONLY
    how = expert_way(x.device, FP8)
    return WEIGHT_ONLY if how == CAST else how  # whose error says what there is no kernel for


def run_experts(
    x: Tensor,
    tokens: Tokens,
    first: Projection,
    second: Projection,
    activation: str,
    recipe: Recipe,
    way: str,
) -> Tensor:
    """experts() of arguments that fit, x and where its tokens go, by the way that chosen_way()
    gives. The projections have the casts that it takes: of LEFT none."""
    y = _WAYS[way](tokens, first, second, activation, recipe, result_dtype(x))
    return y[0] if x.dim() == 1 else y
