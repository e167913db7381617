"""A mixture of experts: a router, experts, and a shared expert."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.recipe import Recipe
from ..autograd.experts import expert_recipe_of
from .experts import Experts
from .mlp import MLP
from .router import TopKRouter

_NAME: Final = "octofold.nn.MixtureOfExperts"

Beside = Callable[[Module, Tensor], Callable[[], Tensor]]


def _afterwards(layer: Module, x: Tensor) -> Callable[[], Tensor]:
    return lambda: layer(x)


class MixtureOfExperts(Module):
    """The feed-forward block of a mixture-of-experts model: `gate` (octofold.nn.TopKRouter),
    `experts` (octofold.nn.Experts) and, if wanted, `shared_experts` (octofold.nn.MLP), whose result
    is added. state_dict() has "gate.weight", "experts.gate_up_proj" and so on.

    hidden_features, inner_features, experts: as in octofold.nn.Experts.
    top_k: the number of experts to which a token goes.
    shared_features: the inner features of an expert to which all tokens go; None: there is none.
    scoring, normalize, groups, top_groups, scaling_factor, choice_bias: as in
        octofold.nn.TopKRouter.
    bias, activation, device, dtype, recipe: as in octofold.nn.Experts, for the shared expert too.
    router_dtype: of the router's weight; None: `dtype`.

    forward: x [..., hidden] to [..., hidden] in the dtype of x, or in autocast's. A forward hook on
    `gate` sees the router's results, for a loss that balances them.
    Raises InvalidArgumentError, which names the argument.
    """

    _beside: Beside = staticmethod(_afterwards)
    """How the shared expert is computed beside the others: gives what gives the result."""

    def __init__(
        self,
        hidden_features: int,
        inner_features: int,
        experts: int,
        top_k: int,
        shared_features: int | None = None,
        scoring: str = "softmax",
        normalize: bool = True,
        groups: int = 1,
        top_groups: int = 1,
        scaling_factor: float = 1.0,
        choice_bias: bool = False,
        bias: bool = False,
        activation: str = "swiglu",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
        router_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        recipe = expert_recipe_of(_NAME, recipe)
        options: dict[str, Any] = {"bias": bias, "activation": activation, "device": device}
        options |= {"dtype": dtype, "recipe": recipe}
        self.experts = Experts(hidden_features, inner_features, experts, **options)
        self.gate = TopKRouter(
            hidden_features,
            experts,
            top_k,
            scoring=scoring,
            normalize=normalize,
            groups=groups,
            top_groups=top_groups,
            scaling_factor=scaling_factor,
            choice_bias=choice_bias,
            device=device,
            dtype=dtype if router_dtype is None else router_dtype,
        )
        self.shared_experts = (
            None if shared_features is None else MLP(hidden_features, shared_features, **options)
        )

    def forward(self, input: Tensor) -> Tensor:
        _, weights, ids = self.gate(input)
        if self.shared_experts is None:
            routed: Tensor = self.experts(input, ids, weights)
            return routed
        shared = self._beside(self.shared_experts, input)
        y: Tensor = self.experts(input, ids, weights)
        return y + shared()
