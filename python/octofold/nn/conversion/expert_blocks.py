"""Modules of experts of transformers: which compute what octofold.experts() does, and how they have
their weights; and their routers, which choose by octofold.ops.top_k()."""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import linear

from ..autograd.activated import activated
from ..casting.weight_layouts import Stacks
from ..layers.patching import put_in_front
from ..layers.router import route
from .picking import is_of_transformers

GATES: Final = {
    "SiLU": "swiglu",
    "SiLUActivation": "swiglu",
    "GELUActivation": "geglu",
    "GELUTanh": "geglu-tanh",
}
"""Classes of act_fn, which a gate goes through."""

_OWN_GATES: Final = ("swiglu-oss",)
"""The activations that a gate of a model's own may be."""

_LAYOUT: Final = ("_apply_gate", "has_gate", "is_transposed", "is_concatenated")
_LIMITS: Final = ("swiglu_alpha", "swiglu_limit", "gate_softcap", "up_softcap")
_OWN_LIMITS: Final = ("alpha", "limit")
"""The names that gates of a model's own give to their limits."""


class Gate(NamedTuple):
    """The function that takes gate and up, and how their rows lie."""

    activation: str
    interleaved: bool
    """True if gate and up are neighbours among the rows of gate_up_proj; else they are halves."""


def holds_experts(module: Any) -> bool:
    """True if this is a module of experts of transformers, of whatever kind."""
    if not is_of_transformers(module):
        return False
    stacks = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    three = all(isinstance(stack, Tensor) and stack.dim() == 3 for stack in stacks)
    return three or all(hasattr(module, name) for name in _LAYOUT)


def gate_of(module: Any) -> Gate | None:
    """The gate of a module with the marks of transformers' implementations of experts; None: there
    is no such gate here. One of a model's own is known by what it computes."""
    if _own_gate(module):
        return _known(module._apply_gate)
    activation = GATES.get(type(getattr(module, "act_fn", None)).__name__)
    return None if activation is None else Gate(activation, False)


def refusals(module: Any) -> list[str]:
    """Why experts compute something else than octofold.experts() does, by the marks that
    transformers puts on classes of experts for the sake of its own implementations; empty: they
    compute the same."""
    if not all(hasattr(module, name) for name in _LAYOUT):
        found = ["it lacks the marks of transformers' implementations of experts (_apply_gate)"]
        return found + ["its weights are transposed"] * _look_transposed(module)
    act, own_gate, gate = getattr(module, "act_fn", None), _own_gate(module), gate_of(module)
    facts = {
        "it has no gate": module.has_gate is not True,
        "it has no stacks gate_up_proj and down_proj": not _has_stacks(module),
        "gate and up are interleaved (is_concatenated)": (
            module.is_concatenated is not True and gate is not None and not gate.interleaved
        ),
        f"its gate is its own, {own_gate}": bool(own_gate) and gate is None,
        f"its gate is {type(act).__name__}, none of {', '.join(GATES)}": (
            act is not None and not own_gate and gate is None
        ),
        "it has no act_fn": act is None and not own_gate,
        "each expert's result is normed": getattr(module, "has_post_expert_norm", False),
        "its experts are spread over devices": getattr(module, "_is_expert_parallel", False),
        "its activations have static scales": (
            getattr(module, "activation_scheme", "dynamic") != "dynamic"
        ),
    }
    names: tuple[str, ...] = () if own_gate and gate else _LIMITS
    names = _LIMITS + _OWN_LIMITS if own_gate and gate is None else names
    limits = [(name, getattr(module, name, None)) for name in names]
    clamps = [f"its gate has {name}={value}" for name, value in limits if value is not None]
    return [words for words, holds in facts.items() if holds] + clamps


def stacks_of(module: Any) -> Stacks:
    """How a module that refusals() has nothing against has its weights."""
    gate = gate_of(module)
    return Stacks(bool(module.is_transposed), gate is not None and gate.interleaved)


def _known(gate: Any) -> Gate | None:
    """Finds the activation that a function of gate and up is: it is tried beyond its limits too."""
    values = torch.linspace(-20, 20, 81, dtype=torch.float64)
    x = torch.cartesian_prod(values, values).reshape(1, -1)
    try:
        found = gate(x)
    except (RuntimeError, ValueError, TypeError, AttributeError):
        return None
    for activation in _OWN_GATES:
        for interleaved in (True, False):
            halves = torch.cat((x[:, ::2], x[:, 1::2]), dim=1) if interleaved else x
            expected = activated(halves, activation)
            same = isinstance(found, Tensor) and found.shape == expected.shape
            if same and torch.allclose(found.double(), expected, rtol=1e-6, atol=1e-9):
                return Gate(activation, interleaved)
    return None


def _own_gate(module: Any) -> str:
    """The name of what takes gate and up, where it is not transformers' for all."""
    gate = module._apply_gate
    own = not gate.__module__.startswith("transformers.integrations.")
    return str(gate.__qualname__) if own else ""


def _has_stacks(module: Any) -> bool:
    return hasattr(module, "gate_up_proj") and hasattr(module, "down_proj")


def _look_transposed(module: Any) -> bool:
    """True if gate_up_proj is [experts, hidden, 2·inner], not [experts, 2·inner, hidden]."""
    _, rows, columns = module.gate_up_proj.shape
    _, inner, hidden = module.down_proj.shape
    return bool((rows, columns) == (hidden, 2 * inner))


_Routed = tuple[Tensor, Tensor, Tensor]


def chooses_by_top_k(gate: Any) -> bool:
    """True if convert_router() has converted this router."""
    return isinstance(gate, ChoosingRouter)


def convert_router(gate: Any) -> bool:
    """Let a router of transformers choose by octofold.ops.top_k(), in place. Whether it is one."""
    if not is_of_transformers(gate) or type(gate).__name__ not in _ROUTERS:
        return False
    if not chooses_by_top_k(gate):
        put_in_front("routers", gate, ChoosingRouter)
    return True


class ChoosingRouter(Module):
    """The forward of the table, in front of a router's own class."""

    def forward(self, hidden_states: Tensor) -> _Routed:
        # torch.nn.utils.parametrize, by which peft adapts a router, makes classes of other names.
        kinds = (kind.__name__ for kind in type(self).__mro__)
        return next(_ROUTERS[kind] for kind in kinds if kind in _ROUTERS)(self, hidden_states)


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
