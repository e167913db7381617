"""Expert blocks of transformers' models whose weights are FP8 as they are loaded."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import UnsupportedError
from ..._core.formats import Format
from ..._core.recipe import blockwise
from ..._core.scaled_tensor import ScaledTensor
from ..._info import EXPERTS, FP8, WEIGHT_ONLY
from ..._ops.cast import cast
from ..._ops.cast_sources import Gathered
from ..._ops.gemm_weight_only import grouped_gemm_weight_only
from ..._ops.grouped_gemm import Rows
from ..._ops.quantize import quantize
from ..._ops.routing import combine, sort_by_expert
from ...nn.autograd.experts import chosen_compute
from ...nn.autograd.products import addable, grouped_product
from ...nn.conversion.expert_blocks import GATES, convert_router, gate_of, holds_experts, refusals
from ...nn.conversion.linear import replaced
from ...nn.layers.buffers import KeepsBuffers
from ...nn.layers.experts import Experts
from ...nn.layers.patching import put_in_front
from ...nn.recipes.kernels import layer_products
from ..model_loading import LoadingOptions, empty_weight

STACKED: Final = ("gate_up_proj", "down_proj")
_FORMAT: Final = Format("e4m3", "128x128")
"""The format of experts' weights: the transposes that gradients by x take have the same codes."""


class ModelsOwnExperts(KeepsBuffers):
    """Experts with a gate that is the model's own (gpt-oss): Octofold's products with FP8 weights
    around it. The weights are kept as [experts, out, in], whichever way the model has them; biases
    and the numbers of the gate are the model's.

    forward: x [tokens, hidden], the experts' numbers [tokens, k] and their weights, to [tokens,
    hidden] in the dtype of x. x is cast too where the GPU has grouped products of FP8, unless
    `compute` is "weight-only"; else it has 16 bits. Without gradients: backward raises
    UnsupportedError.
    """

    compute: str

    gate_up_proj: Tensor
    down_proj: Tensor
    is_transposed: bool
    _apply_gate: Callable[[Tensor], Tensor]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        x = hidden_states
        product = blockwise.output
        assert product is not None
        first, second = (self._weight(name) for name in STACKED)
        routing = sort_by_expert(top_k_index.to(torch.int32), first.shape[0])
        offsets, sources, positions = routing
        gathered = Gathered(x, sources, slots=positions.shape[-1])
        biases = [addable(getattr(self, f"{name}_bias", None), x.dtype) for name in STACKED]
        y: Tensor
        if chosen_compute(x, first, second, self.compute) == WEIGHT_ONLY:
            groups = Rows(offsets)
            gate_up = grouped_gemm_weight_only(gathered, first, groups, bias=biases[0])
            h = self._apply_gate(gate_up)
            y = grouped_gemm_weight_only(h, second, groups, bias=biases[1])
        else:
            rows = cast(gathered, rows=product.a).rows
            gate_up = grouped_product(product, rows, first, offsets, x.dtype, biases[0], product.a)
            h8 = quantize(self._apply_gate(gate_up), product.a)
            y = grouped_product(product, h8, second, offsets, x.dtype, biases[1])
        out: Tensor = combine(y, positions, top_k_weights.float().contiguous(), out_dtype=x.dtype)
        if out.requires_grad and not torch.compiler.is_compiling():
            out.register_hook(_refuse)  # type: ignore[no-untyped-call]
        return out

    def _weight(self, name: str) -> ScaledTensor:
        return ScaledTensor(self._buffers[name], self._buffers[f"{name}_scale_inv"], "128x128")

    def _held_buffers(self) -> dict[str, Tensor | None]:
        names = (*STACKED, *(f"{name}_scale_inv" for name in STACKED))
        return {name: self._buffers[name] for name in names}


def _refuse(gradient: Tensor) -> NoReturn:
    raise UnsupportedError(
        "octofold.integrations.transformers: experts with a gate of the model's own have no "
        "gradient in FP8: OctofoldConfig(experts=False) leaves them as they are"
    )


def is_experts(module: Any) -> bool:
    """True if it is a module of experts with FP8 weights."""
    return isinstance(module, Experts | ModelsOwnExperts)


def convert_experts_of(
    model: Module,
    options: LoadingOptions,
    device_of: Callable[[str], torch.device],
    weights_of: Callable[[str], list[Any]] | None,
) -> dict[str, str]:
    """Put FP8 weights without memory into the expert blocks of a model on "meta"; weights_of: those
    of a block in a checkpoint in FP8, which has to have them, by its name. Their routers choose by
    octofold.ops.top_k(). Returns what each has become, by its name."""
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
            new[id(module)] = _experts(module, options.compute)
            found[name] = "octofold.nn.Experts, 128x128"
        elif _has_own_gate(module):
            _hold_fp8(module, options.compute)
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


@torch.no_grad()
def cast_experts(module: Any, name: str, weight: Tensor) -> dict[str, Tensor]:
    """The buffers of experts, by their names, of a weight in high precision as the model has it:
    [experts, out, in], or [experts, in, out]."""
    if isinstance(module, ModelsOwnExperts) and module.is_transposed:
        weight = weight.transpose(1, 2).contiguous()
    made = quantize(weight, _FORMAT, matrices=weight.shape[0])
    return {name: made.data, f"{name}_scale_inv": made.scale}


def _fit(module: Any, weights: list[Any]) -> bool:
    """True if a checkpoint's weights can be these experts' as they are: squares share a scale, and
    gate and up, where they are apart, have squares of their own."""
    if not weights or any(weight.format != _FORMAT for weight in weights):
        return False
    apart = any(len(weight.shape) == 2 for weight in weights)
    return not (apart and module.gate_up_proj.shape[1] // 2 % 128)


def _experts(module: Any, compute: str) -> Experts:
    """octofold.nn.Experts in the place of these."""
    first, second = (_empty(*getattr(module, name).shape) for name in STACKED)
    b13, b2 = (getattr(module, f"{name}_bias", None) for name in STACKED)
    activation = GATES[type(module.act_fn).__name__]
    experts = Experts.from_weights(first, second, b13, b2, activation, compute=compute)
    return experts.train(module.training)


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


def _hold_fp8(module: Any, compute: str) -> None:
    """Make it ModelsOwnExperts, in place."""
    module.compute = compute
    for name in STACKED:
        experts, out, inner = getattr(module, name).shape
        if module.is_transposed:
            out, inner = inner, out
        empty = _empty(experts, out, inner)
        del module._parameters[name]
        module.register_buffer(name, empty.data)
        module.register_buffer(f"{name}_scale_inv", empty.scale)
    put_in_front("experts", module, ModelsOwnExperts)


def _empty(experts: int, out: int, inner: int) -> ScaledTensor:
    return empty_weight(_FORMAT, out, inner, matrices=experts)
