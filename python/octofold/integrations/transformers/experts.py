"""Expert blocks of transformers' models whose weights are FP8 as they are loaded."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.formats import Format
from ..._core.recipe import blockwise
from ..._info import EXPERTS, FP8, WEIGHT_ONLY
from ...nn.autograd.experts import chosen_compute, compute_of, layer_of_experts, run_experts
from ...nn.autograd.experts_composed import Adapters, terms_of
from ...nn.autograd.layer import Chain
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.casting.weight_layouts import Stacks
from ...nn.conversion.expert_blocks import GATES, convert_router, gate_of, holds_experts, refusals
from ...nn.conversion.linear import replaced
from ...nn.layers.experts import Experts
from ...nn.layers.fp8_parameters import hold, weight_of
from ...nn.layers.patching import put_in_front
from ...nn.recipes.kernels import layer_products
from ..model_loading import LoadingOptions, empty_weight

STACKED: Final = ("gate_up_proj", "down_proj")
_FORMAT: Final = Format("e4m3", "128x128")
"""The format of experts' weights: the transposes that gradients by x take have the same codes."""
_NAME: Final = "octofold.integrations.transformers"
_CHAIN: Final = Chain(_NAME, blockwise)


class ModelsOwnExperts(Module):
    """Experts with a gate that is the model's own (gpt-oss): Octofold's products with FP8 weights
    around it. The weights are octofold.nn.Fp8Weights [experts, out, in], whichever way the model
    has them; biases and the numbers of the gate are the model's.

    forward: x [tokens, hidden], the experts' numbers [tokens, k] and their weights, to [tokens,
    hidden] in the dtype of x, differentiable; adapters as octofold.nn.Experts takes them. x is cast
    too where the GPU has grouped products of FP8, unless the weights compute "weight-only"; else it
    has 16 bits.
    """

    in_files: Stacks
    _apply_gate: Callable[[Tensor], Tensor]

    def forward(
        self,
        hidden_states: Tensor,
        top_k_index: Tensor,
        top_k_weights: Tensor,
        adapters: Adapters = None,
    ) -> Tensor:
        weights = {name: weight_of(self, name) for name in STACKED}
        first, second = (weight.scaled for weight in weights.values())
        terms = terms_of(_NAME, adapters, STACKED, (first, second))
        compute = compute_of(_NAME, None, **weights)
        compute = chosen_compute(hidden_states, first, second, compute)
        biases = [getattr(self, f"{name}_bias", None) for name in STACKED]
        layers = layer_of_experts(first, biases[0]), layer_of_experts(second, biases[1])
        routed = hidden_states, top_k_index, top_k_weights
        return run_experts(*routed, layers, _CHAIN, compute, terms, self._apply_gate)


def is_experts(module: Any) -> bool:
    """True if it is a module of experts with FP8 weights."""
    return isinstance(module, Experts | ModelsOwnExperts)


def convert_experts_of(
    model: Module,
    options: LoadingOptions,
    device_of: Callable[[str], torch.device],
    weights_of: Callable[[str], list[Any]] | None,
    dtype: torch.dtype,
) -> dict[str, str]:
    """Put FP8 weights without memory, which stand for numbers of this dtype, into the expert blocks
    of a model on "meta"; weights_of: those of a block in a checkpoint in FP8, which has to have
    them, by its name. Their routers choose by octofold.ops.top_k(). Returns what each has become,
    by its name."""
    found: dict[str, str] = {}
    new: dict[int, Module] = {}
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if not holds_experts(module) or options.keeps(name):
            continue
        if weights_of is not None and not _fit(module, weights_of(name)):
            continue
        is_ours = not refusals(module) and not module.is_transposed and _has_halves(module)
        if is_ours:
            new[id(module)] = _experts(module, options.compute, dtype)
            found[name] = "octofold.nn.Experts, 128x128"
        elif _has_own_gate(module):
            _hold_fp8(module, options.compute, dtype)
            found[name] = "FP8 products around the model's own gate, 128x128"
        else:
            continue
        products = layer_products(EXPERTS, FP8, device_of(name))
        if products.why_not and options.compute != WEIGHT_ONLY:
            found[name] += f", {products.how} here ({products.why_not})"
        block = modules[name.rpartition(".")[0]]
        gate = block._modules.get("gate")
        if gate is not None and convert_router(gate):
            found[f"{name.rpartition('.')[0]}.gate"] = "a router by octofold.ops.top_k()"
    replaced(model, new)
    return found


def _fit(module: Any, weights: list[Any]) -> bool:
    """True if a checkpoint's weights can be these experts' as they are: squares share a scale, and
    gate and up, where they are apart, have squares of their own."""
    if not weights or any(weight.format != _FORMAT for weight in weights):
        return False
    apart = any(len(weight.shape) == 2 for weight in weights)
    return not (apart and module.gate_up_proj.shape[1] // 2 % 128)


def _experts(module: Any, compute: str, dtype: torch.dtype) -> Experts:
    """octofold.nn.Experts in the place of these."""
    first, second = (_empty(getattr(module, name).shape, compute, dtype) for name in STACKED)
    b13, b2 = (getattr(module, f"{name}_bias", None) for name in STACKED)
    activation = GATES[type(module.act_fn).__name__]
    return Experts.from_weights(first, second, b13, b2, activation).train(module.training)


def _has_halves(module: Any) -> bool:
    """True if gates and ups are halves of the first layer's rows, through one of GATES."""
    gate = gate_of(module)
    return gate is not None and not gate.interleaved and hasattr(module, "act_fn")


def _has_own_gate(module: Any) -> bool:
    return (
        callable(getattr(module, "_apply_gate", None))
        and getattr(module, "has_gate", False) is True
        and all(hasattr(module, name) for name in STACKED)
        and not getattr(module, "has_post_expert_norm", False)
        and not getattr(module, "_is_expert_parallel", False)
        and getattr(module, "activation_scheme", "dynamic") == "dynamic"
    )


def _hold_fp8(module: Any, compute: str, dtype: torch.dtype) -> None:
    """Make it ModelsOwnExperts, in place."""
    module.in_files = Stacks(bool(module.is_transposed))
    for name in STACKED:
        shape = module.in_files.of_files(name, getattr(module, name)).shape
        hold(module, _empty(shape, compute, dtype), name)
    put_in_front("experts", module, ModelsOwnExperts)


def _empty(shape: tuple[int, ...], compute: str, dtype: torch.dtype) -> Fp8Weight:
    experts, out, inner = shape
    empty = empty_weight(_FORMAT, out, inner, matrices=experts)
    return Fp8Weight.of(empty, dtype, _FORMAT, compute=compute)
