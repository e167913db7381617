"""The gated MLPs of transformers' models, where they answer: both products of the first half, the
activation and the cast of its result in one kernel (octofold.ops.gated_gemm)."""

import functools
import re
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import _has_any_global_hook

from ..._core.library import is_batch_invariant, note
from ..._core.ops import row_count
from ..._core.recipe import blockwise
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch_ops import define
from ..._ops.gated_gemm import gated_gemm
from ..._ops.quantize import quantize
from ..autograd.activated import gated_in_one
from ..autograd.frozen import FEW_TOKENS
from ..autograd.functions import result_dtype
from ..autograd.products import output_product
from ..casting.casts import below, walkable
from ..casting.fp8_weight import Fp8Weight
from ..layers.fp8_parameters import held, hold, weight_of
from ..layers.patching import misfit, put_in_front, source_of
from .expert_blocks import GATES
from .picking import is_of_transformers

_PLAIN: Final = re.compile(
    r"self\.down_proj\(self\.act_fn\(self\.gate_proj\((\w+)\)\) \* self\.up_proj\(\1\)\)"
)
"""The expression of a forward that computes nothing else, as the source of Llama's and of most
others has it."""


def fuse_gated_mlps(model: Module) -> dict[str, str]:
    """Let the gated MLPs of a transformers model whose three layers have FP8 weights of the recipe
    blockwise compute in one chain of kernels, in place. State and layers stay; where gradients are
    wanted, for few tokens and where a layer has been replaced since (adapters), the MLP calls its
    layers as before. Returns what became of each, by its name."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if (layers := _layers(module)) is not None and _is_plain(module):
            put_in_front("gated MLPs", module, GatedMlp)
            _join(*layers[:2])
            found[name] = "its first half in one kernel (octofold.ops.gated_gemm)"
    return found


class GatedMlp(Module):
    """The forward of such an MLP, in front of its own class."""

    def forward(self, x: Tensor) -> Tensor:
        y = _in_one(self, x)
        if y is None:
            y = super().forward(x)
        return y


def _in_one(mlp: Any, x: Tensor) -> Tensor | None:
    """The MLP of x; None where it is to call its layers."""
    layers, activation = _layers(mlp), _activation(mlp)
    if (
        layers is None
        or activation is None
        or _has_any_global_hook()  # type: ignore[no-untyped-call]
        or (torch.is_grad_enabled() and x.requires_grad)
        or (row_count(x.shape) <= FEW_TOKENS and not is_batch_invariant())
    ):
        return None
    gate, up, _ = layers
    dtype = result_dtype(x)
    if not gated_in_one(blockwise, activation, weight_of(gate).scaled, None, dtype):
        return None
    if not torch.compiler.is_compiling():
        _join(gate, up)
    weights = [part for layer in layers for part in _tensors(weight_of(layer))]
    y: Tensor = torch.ops.octofold.gated_mlp(x, *weights, activation, dtype)
    return y


def _gated_mlp(
    x: Tensor,
    gate: Tensor,
    gate_scale: Tensor,
    up: Tensor,
    up_scale: Tensor,
    down: Tensor,
    down_scale: Tensor,
    activation: str,
    dtype: torch.dtype,
) -> Tensor:
    """activation(x · gateᵀ, x · upᵀ) · downᵀ of e4m3 weights with 128x128 scales. An op of its own,
    as torch.compile cannot see where weights are in memory."""
    parts = _adjacent(gate, up), _adjacent(gate_scale, up_scale)
    codes, scale = (
        _below(*pair) if part is None else part
        for part, pair in zip(parts, ((gate, up), (gate_scale, up_scale)), strict=True)
    )
    product = blockwise.output
    assert product is not None
    rows = quantize(walkable(x), product.a)
    weight = ScaledTensor(codes, scale, "128x128")
    h = gated_gemm(rows, weight, activation=activation, format=product.a)
    return output_product(h, ScaledTensor(down, down_scale, "128x128"), None, blockwise, dtype)


define(
    "gated_mlp",
    "gated_mlp(Tensor x, Tensor gate, Tensor gate_scale, Tensor up, Tensor up_scale, Tensor down, "
    "Tensor down_scale, str activation, ScalarType dtype) -> Tensor",
    _gated_mlp,
    lambda x, *others: x.new_empty((*x.shape[:-1], others[4].shape[0]), dtype=others[-1]),
)


def _activation(mlp: Any) -> str | None:
    """The activation that act_fn is here, if a kernel has it. Other classes may have such names."""
    kind = type(getattr(mlp, "act_fn", None))
    is_known = kind.__module__.startswith(("torch.nn.", "transformers."))
    return GATES.get(kind.__name__) if is_known else None


def _layers(mlp: Any) -> tuple[Any, Any, Any] | None:
    """gate, up and down, if they are what they were at first and fit together."""
    parts = [mlp._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    gate, up, down = parts
    for part in parts:
        if (
            type(part) is not torch.nn.Linear
            or part.bias is not None
            or getattr(held(part), "recipe", None) != blockwise
            or part._forward_hooks
            or part._forward_pre_hooks
            or "forward" in part.__dict__  # accelerate's, which brings the weight
        ):
            return None
    if gate.weight.shape != up.weight.shape:
        return None
    if gate.out_features % 128:  # a square of scales would be of both
        return None
    return gate, up, down


def _join(gate: Module, up: Module) -> None:
    """Put both weights one below the other in memory of which each layer's are a view: once, and
    again after to() and the like, but not while a CUDA graph is captured."""
    weights = [weight_of(gate), weight_of(up)]
    parts = zip(*map(_tensors, weights), strict=True)
    if all(_adjacent(a, b) is not None for a, b in parts):
        return
    one = weights[0].codes
    if one.is_meta or (one.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    whole, middle = below(weights), one.shape[0]
    hold(gate, whole[:middle])  # type: ignore[arg-type]
    hold(up, whole[middle:])  # type: ignore[arg-type]


def _tensors(weight: Fp8Weight) -> tuple[Tensor, Tensor]:
    return weight.codes, weight.scale


def _adjacent(a: Tensor, b: Tensor) -> Tensor | None:
    """Both as one tensor, if b begins in memory where a ends."""
    if not (a.is_contiguous() and b.is_contiguous() and a.device == b.device):
        return None
    same = a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    if not same or b.data_ptr() != a.data_ptr() + a.nbytes:
        return None
    return a.as_strided((a.shape[0] + b.shape[0], *a.shape[1:]), a.stride())


def _below(a: Tensor, b: Tensor) -> Tensor:
    """A copy of both as one tensor. torch's cat() takes no FP8."""
    return torch.cat([a.view(torch.uint8), b.view(torch.uint8)]).view(a.dtype)


def _is_plain(module: Module) -> bool:
    kind: Any = type(module)
    is_one = is_of_transformers(module) and not isinstance(module, GatedMlp)
    return is_one and _activation(module) is not None and _has_plain_forward(kind)


@functools.cache
def _has_plain_forward(kind: Any) -> bool:
    source = source_of("gated MLPs", kind.forward)
    plain = source.count("self.") == 4 and _PLAIN.search(source) is not None
    if not plain:
        note(misfit("gated MLPs", f"{kind.__name__} may compute something else"))
    return plain
