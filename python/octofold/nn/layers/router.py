"""The router of an expert layer, with a gradient."""

import math
from collections.abc import Callable
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.functional import linear

from ..._core.errors import invalid_argument
from ..._ops.routing import top_k, top_k_gradient
from ..autograd.experts import require_counts
from ..autograd.functions import differentiates, refuse_in_backward, save_tensors, saved_tensors

_NAME: Final = "octofold.nn.TopKRouter"


def route(
    logits: Tensor,
    k: int,
    scoring: str = "softmax",
    normalize: bool = False,
    bias: Tensor | None = None,
    groups: int = 1,
    top_groups: int = 1,
    scaling_factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """octofold.ops.top_k(), differentiable by logits: the weights have a gradient, the choice has
    none.

    logits: [..., experts] bfloat16, float16 or float32.
    The other arguments, the errors and the result, ids int32 [..., k] and weights float32 [..., k],
    are those of octofold.ops.top_k(). The gradient has the dtype of logits.
    """
    if differentiates("nn.route", logits):
        routed: tuple[Tensor, Tensor] = _Route.apply(  # type: ignore[no-untyped-call]
            logits, bias, k, scoring, normalize, groups, top_groups, scaling_factor
        )
        return routed
    ids, weights = top_k(
        logits,
        k,
        scoring=scoring,
        normalize=normalize,
        bias=bias,
        groups=groups,
        top_groups=top_groups,
        scaling_factor=scaling_factor,
    )
    return ids, weights


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        bias: Tensor | None,
        k: int,
        scoring: str,
        normalize: bool,
        groups: int,
        top_groups: int,
        scaling_factor: float,
    ) -> tuple[Tensor, Tensor]:
        ids, weights = top_k(
            logits,
            k,
            scoring=scoring,
            normalize=normalize,
            bias=bias,
            groups=groups,
            top_groups=top_groups,
            scaling_factor=scaling_factor,
        )
        ctx.mark_non_differentiable(ids)
        ctx.set_materialize_grads(False)  # zeros for ids would be a kernel
        save_tensors(ctx, logits, ids)
        ctx.options = scoring, normalize, scaling_factor
        return ids, weights

    @staticmethod
    def backward(ctx: Any, _: None, dw: Tensor | None) -> tuple[Tensor | None, ...]:
        if dw is None:
            return (None,) * 8
        refuse_in_backward("nn.route", dw)
        logits, ids = saved_tensors(ctx)
        scoring, normalize, scaling_factor = ctx.options
        dw = dw.contiguous()
        gradient = top_k_gradient(
            dw, logits, ids, scoring=scoring, normalize=normalize, scaling_factor=scaling_factor
        )
        return gradient, *[None] * 7


class TopKRouter(Module):
    """The router of an expert layer: x · weightᵀ, and for each token its best experts.

    hidden_features, experts: the features of a token, and the number of experts.
    top_k: the number of experts to which a token goes.
    scoring, normalize, groups, top_groups, scaling_factor: as in octofold.ops.top_k().
    choice_bias: whether there is a buffer e_score_correction_bias (float32 [experts], zeros), which
        affects the choice alone. It balances the load without a loss (DeepSeek-V3). For "sigmoid"
        scores.
    device, dtype: of the weight [experts, hidden]. The logits are computed in this dtype, whatever
        that of x: float32 tells experts apart that bfloat16 would not.

    forward: x [..., hidden] to (logits [..., experts], weights [..., k] float32, ids [..., k]
    int32), in this order, as transformers' routers return them. Raises InvalidArgumentError, which
    names the argument.
    """

    e_score_correction_bias: Tensor | None

    def __init__(
        self,
        hidden_features: int,
        experts: int,
        top_k: int,
        scoring: str = "softmax",
        normalize: bool = True,
        groups: int = 1,
        top_groups: int = 1,
        scaling_factor: float = 1.0,
        choice_bias: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_counts(_NAME, hidden_features=hidden_features, experts=experts, top_k=top_k)
        if top_k > experts:
            raise invalid_argument(_NAME, "top_k", f"at most {experts}, the experts", top_k)
        self.top_k = top_k
        self.scoring, self.normalize, self.scaling_factor = scoring, normalize, scaling_factor
        self.groups, self.top_groups = groups, top_groups
        weight = torch.empty((experts, hidden_features), device=device, dtype=dtype)
        self.weight = Parameter(weight)
        bias = torch.empty(experts, device=device, dtype=torch.float32) if choice_bias else None
        self.register_buffer("e_score_correction_bias", bias)
        self.reset_parameters()

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = linear(input.to(self.weight.dtype), self.weight)
        ids, weights = route(
            logits,
            self.top_k,
            self.scoring,
            self.normalize,
            self.e_score_correction_bias,
            self.groups,
            self.top_groups,
            self.scaling_factor,
        )
        return logits, weights, ids

    def reset_parameters(self) -> None:
        """Initialize the weight as torch.nn.Linear does, and the bias of the choice with zeros."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        torch.nn.init.uniform_(self.weight, -bound, bound)
        if self.e_score_correction_bias is not None:
            self.e_score_correction_bias.zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # half() and the like would round what balances the load.
        before = self.e_score_correction_bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        now = self.e_score_correction_bias
        if before is not None and now is not None and now.dtype != before.dtype:
            self.e_score_correction_bias = before.to(now.device)
        return self

    def extra_repr(self) -> str:
        experts, hidden = self.weight.shape
        text = f"hidden_features={hidden}, experts={experts}, top_k={self.top_k}"
        text += f", scoring={self.scoring}, normalize={self.normalize}"
        text += f", scaling_factor={self.scaling_factor}"
        return text if self.groups == 1 else f"{text}, groups={self.top_groups} of {self.groups}"
