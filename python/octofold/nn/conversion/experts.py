"""The conversion of the expert blocks of transformers' models, in place."""

import functools
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import linear

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..autograd.expert_fitting import expert_recipe_of
from ..layers.experts import Experts
from ..layers.linear import Linear
from ..layers.mlp import MLP
from ..layers.router import route
from .linear import replaced
from .picking import ModuleFilter
from .report import Conversion

_NAME: Final = "octofold.nn.convert_experts"
GATES: Final = {
    "SiLU": "swiglu",
    "SiLUActivation": "swiglu",
    "GELUActivation": "geglu",
    "GELUTanh": "geglu-tanh",
}
"""Classes of act_fn, which a gate goes through."""

_LAYOUT: Final = ("_apply_gate", "has_gate", "is_transposed", "is_concatenated")
_LIMITS: Final = ("swiglu_alpha", "swiglu_limit", "gate_softcap", "up_softcap")
_OWN_LIMITS: Final = ("alpha", "limit")
"""What gates of a model's own call theirs."""

_Routed = tuple[Tensor, Tensor, Tensor]


def convert_experts(
    model: Module,
    recipe: Recipe | str = "blockwise",
    module_filter_fn: ModuleFilter | None = None,
    *,
    main_grad: bool = False,
) -> Conversion:
    """Make the expert blocks of a transformers model (5.x) compute in FP8 with octofold's
    operations (docs/experts.md has the families that were tried).

    model: changed in place. It may also be one block, or the module of the experts, which is left
        as it is.
    recipe, main_grad: as in octofold.nn.Experts.
    module_filter_fn: (module, fully qualified name) → whether to convert it, asked for each module
        of experts; None: all.

    In each block

    - the experts become octofold.nn.Experts with the same parameters: any of transformers' modules
      that hold gate_up_proj and down_proj as Mixtral's does. FP8 weights with 128x128 scales, as a
      checkpoint came with them, are used as they are;
    - the router of one of three models stays the module that it is, so that its outputs are
      recorded as before. It chooses by octofold.ops.top_k(), with the same logits; routing weights
      stay float32;
    - DeepSeek-V3's shared experts, if they are plain linear layers, become octofold.nn.MLP.

    The block keeps its forward, and the names in state_dict() are the same. octofold.nn.convert()
    converts the other linear layers, before or after. Convert before fully_shard() and
    torch.compile. Experts that transformers has spread over devices are not converted.

    Returns a report that holds the model (for a module of experts, the new one) and says what
    became of experts, routers and shared experts.
    Raises InvalidArgumentError, which names the argument: for a model without such experts, or a
    filter that picks none, with the reason for each class of experts that computes something else
    (gpt-oss, Llama-4). The model is then as it was.
    """
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    recipe = expert_recipe_of(_NAME, recipe)
    if module_filter_fn is not None and not callable(module_filter_fn):
        expected = "a function (module, fqn) -> bool, or None"
        raise invalid_argument(_NAME, "module_filter_fn", expected, repr(module_filter_fn))
    new: dict[int, Module] = {}
    converted: dict[str, str] = {}
    left_alone: dict[str, str] = {}
    for name, module in model.named_modules():
        if not holds_experts(module):
            continue
        if reasons := refusals(module):
            left_alone[name] = "; ".join(reasons)
        elif module_filter_fn is not None and not module_filter_fn(module, name):
            left_alone[name] = "module_filter_fn does not pick it"
        else:
            new[id(module)] = _experts_of(module, name, recipe, main_grad)
            converted[name] = f"octofold.nn.Experts, recipe={recipe}"
    if not new:
        argument = "model" if module_filter_fn is None else "module_filter_fn"
        expected = "experts that hold gate_up_proj and down_proj, as transformers' Mixtral has them"
        expected = expected if module_filter_fn is None else f"to pick {expected}"
        refused = _refused(model)
        got = f"{type(model).__qualname__}{f' with {refused}' if refused else ''}"
        raise invalid_argument(_NAME, argument, expected, got)
    shared = _convert_around(model, new, recipe, converted, left_alone)
    return Conversion(replaced(model, new | shared), converted, left_alone)


def _convert_around(
    model: Module,
    experts: dict[int, Module],
    recipe: Recipe,
    converted: dict[str, str],
    left_alone: dict[str, str],
) -> dict[int, Module]:
    """Of the blocks that hold these experts: the routers, in place, and the layers that take the
    place of shared experts. Enters both into the report."""
    new: dict[int, Module] = {}
    for path, block in model.named_modules():
        if not any(id(child) in experts for child in block._modules.values()):
            continue
        below = f"{path}." if path else ""
        gate, shared = block._modules.get("gate"), block._modules.get("shared_experts")
        if gate is not None and convert_router(gate):
            converted[f"{below}gate"] = "a router by octofold.ops.top_k()"
        elif gate is not None:
            left_alone[f"{below}gate"] = "a router of its own"
        if shared is not None and _is_plain_mlp(shared):
            new[id(shared)] = _mlp_of(shared, recipe)
            converted[f"{below}shared_experts"] = f"octofold.nn.MLP, recipe={recipe}"
    return new


def convert_router(gate: Any) -> bool:
    """Let a router of transformers choose by octofold.ops.top_k(), in place. Whether it is one."""
    if not _is_of_transformers(gate) or type(gate).__name__ not in _ROUTERS:
        return False
    kind: Any = type(gate)
    if kind.forward is not _ROUTERS[kind.__name__]:
        gate.__class__ = _choosing(kind)
    return True


def _is_of_transformers(module: Module) -> bool:
    return type(module).__module__.startswith("transformers.")


def holds_experts(module: Any) -> bool:
    """Whether this is a module of experts of transformers, of whatever kind."""
    if not _is_of_transformers(module):
        return False
    stacks = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    three = all(isinstance(stack, Tensor) and stack.dim() == 3 for stack in stacks)
    return three or all(hasattr(module, name) for name in _LAYOUT)


def refusals(module: Any) -> list[str]:
    """Why experts compute something else than octofold.experts() does, by the marks that
    transformers puts on classes of experts for the sake of its own implementations; empty: they
    compute the same."""
    if not all(hasattr(module, name) for name in _LAYOUT):
        found = ["it lacks the marks of transformers' implementations of experts (_apply_gate)"]
        return found + ["its weights are transposed"] * _look_transposed(module)
    act, own_gate = getattr(module, "act_fn", None), _own_gate(module)
    facts = {
        "it has no gate": module.has_gate is not True,
        "it has no stacks gate_up_proj and down_proj": not _has_stacks(module),
        "its weights are transposed (is_transposed)": module.is_transposed is not False,
        "gate and up are interleaved (is_concatenated)": module.is_concatenated is not True,
        f"its gate is its own, {own_gate}": bool(own_gate),
        f"its gate is {type(act).__name__}, none of {', '.join(GATES)}": (
            act is not None and type(act).__name__ not in GATES
        ),
        "it has no act_fn": act is None and not own_gate,
        "each expert's result is normed": getattr(module, "has_post_expert_norm", False),
        "its experts are spread over devices": getattr(module, "_is_expert_parallel", False),
        "its activations have static scales": (
            getattr(module, "activation_scheme", "dynamic") != "dynamic"
        ),
    }
    names = _LIMITS + _OWN_LIMITS if own_gate else _LIMITS
    limits = [(name, getattr(module, name, None)) for name in names]
    clamps = [f"its gate has {name}={value}" for name, value in limits if value is not None]
    return [words for words, holds in facts.items() if holds] + clamps


def _own_gate(module: Any) -> str:
    """The name of what takes gate and up, where it is not transformers' for all."""
    gate = module._apply_gate
    own = not gate.__module__.startswith("transformers.integrations.")
    return str(gate.__qualname__) if own else ""


def _has_stacks(module: Any) -> bool:
    return hasattr(module, "gate_up_proj") and hasattr(module, "down_proj")


def _look_transposed(module: Any) -> bool:
    """Whether gate_up_proj is [experts, hidden, 2·inner], not [experts, 2·inner, hidden]."""
    _, rows, columns = module.gate_up_proj.shape
    _, inner, hidden = module.down_proj.shape
    return bool((rows, columns) == (hidden, 2 * inner))


def _refused(model: Module) -> str:
    """Which experts of a model are not converted, and why; the first of each class."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind not in found and holds_experts(module) and (reasons := refusals(module)):
            where = f" at {name!r}" if name else ""
            found[kind] = f"{kind}{where}: {', '.join(reasons)}"
    return "; ".join(found.values())


def _experts_of(module: Any, name: str, recipe: Recipe, main_grad: bool) -> Experts:
    experts = Experts.from_weights(
        _weight_of(module, "gate_up_proj", name),
        _weight_of(module, "down_proj", name),
        getattr(module, "gate_up_proj_bias", None),
        getattr(module, "down_proj_bias", None),
        GATES[type(module.act_fn).__name__],
        recipe,
        main_grad=main_grad,
    )
    return experts.train(module.training)


def _weight_of(module: Any, key: str, name: str) -> Tensor | ScaledTensor:
    weight: Tensor = getattr(module, key)
    scale = getattr(module, f"{key}_scale_inv", None)
    if scale is None:
        return weight
    if tuple(module.block_size or ()) != (128, 128):
        expected = f"scales of 128x128 in {name!r}"
        raise invalid_argument(_NAME, "model", expected, f"block_size={module.block_size}")
    return ScaledTensor(weight.detach(), scale.detach().float(), "128x128")


def _is_plain_mlp(module: Module) -> bool:
    parts = [module._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    return (
        _is_of_transformers(module)
        and type(module).__name__ == "DeepseekV3MLP"
        and all(type(part) is torch.nn.Linear or isinstance(part, Linear) for part in parts)
        and type(getattr(module, "act_fn", None)).__name__ in GATES
    )


def _mlp_of(module: Any, recipe: Recipe) -> MLP:
    linears = module.gate_proj, module.up_proj, module.down_proj
    own = None if any(isinstance(layer, Linear) for layer in linears) else recipe
    activation = GATES[type(module.act_fn).__name__]
    return MLP.from_linears(*linears, activation=activation, recipe=own).train(module.training)


@functools.cache
def _choosing(router: Any) -> Any:
    """A router's class with the forward of the table. What looks for the class it was finds it."""
    members = {"forward": _ROUTERS[router.__name__], "__module__": router.__module__}
    return type(router.__name__, (router,), members)


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
