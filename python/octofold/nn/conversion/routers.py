"""Routers of transformers' models that choose by octofold.ops.top_k()."""

import functools
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..layers.router import route
from .expert_blocks import is_of_transformers
from .parts import in_front_of

_Routed = tuple[Tensor, Tensor, Tensor]


def chooses_by_top_k(gate: Any) -> bool:
    """True if convert_router() has converted this router."""
    kind: Any = type(gate)
    return kind.__name__ in _ROUTERS and kind.forward is _ROUTERS[kind.__name__]


def convert_router(gate: Any) -> bool:
    """Let a router of transformers choose by octofold.ops.top_k(), in place. Whether it is one."""
    if not is_of_transformers(gate) or type(gate).__name__ not in _ROUTERS:
        return False
    kind: Any = type(gate)
    if not chooses_by_top_k(gate):
        gate.__class__ = _choosing(kind)
    return True


@functools.cache
def _choosing(router: Any) -> Any:
    """A router's class with the forward of the table. What looks for the class it was finds it."""
    return in_front_of(_choosing, router, forward=_ROUTERS[router.__name__])


def _mixtral(self: Any, hidden_states: Tensor) -> _Routed:
    return _softmax(self, hidden_states, True)


def _qwen3_moe(self: Any, hidden_states: Tensor) -> _Routed:
    return _softmax(self, hidden_states, self.norm_topk_prob)


def _softmax(router: Any, hidden_states: Tensor, normalize: bool) -> _Routed:
    logits = linear(hidden_states.reshape(-1, router.hidden_dim), router.weight)
    ids, weights = route(logits, router.top_k, normalize=normalize)
    return logits, weights, ids


def _deepseek_v3(self: Any, hidden_states: Tensor) -> _Routed:
    x = hidden_states.reshape(-1, self.hidden_dim).to(torch.float32)
    logits = linear(x, self.weight.to(torch.float32))
    ids, weights = route(
        *(logits, self.top_k, "sigmoid", self.norm_topk_prob, self.e_score_correction_bias.float()),
        *(self.num_group, self.topk_group, self.routed_scaling_factor),
    )
    return logits, weights, ids


_ROUTERS: Final = {
    "MixtralTopKRouter": _mixtral,
    "Qwen3MoeTopKRouter": _qwen3_moe,
    "DeepseekV3TopkRouter": _deepseek_v3,
}
