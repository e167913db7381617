"""The gated MLPs of transformers' models, where they answer: both products of the first half, the
activation and the cast of its result in one kernel (octofold.ops.gated_gemm)."""

import functools
import inspect
import re
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.ops import row_count
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.gated_gemm import gated_gemm
from ..._ops.quantize import quantize
from ..autograd.chain import gated_in_one
from ..autograd.linear import result_dtype
from ..autograd.products import output_product
from ..casting.casts import walkable
from ..layers.inference import InferenceLinear
from ..recipes.choice import FEW_TOKENS
from .experts import GATES

_PLAIN: Final = re.compile(
    r"self\.down_proj\(self\.act_fn\(self\.gate_proj\((\w+)\)\) \* self\.up_proj\(\1\)\)"
)
"""What a forward is that computes nothing else, as the source of Llama's and of most others has
it."""


def fuse_gated_mlps(model: Module) -> dict[str, str]:
    """Let the gated MLPs of a transformers model whose three layers are InferenceLinear compute in
    one chain of kernels, in place. State and layers stay; where gradients are wanted, for few
    tokens, under torch.compile and where a layer has been replaced since (adapters), the MLP calls
    its layers as before. Returns what became of each, by its name."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if _is_plain(module) and _layers(module) is not None:
            kind: Any = type(module)
            module.__class__ = _fused(kind)
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
    layers = _layers(mlp)
    if (
        layers is None
        or torch.compiler.is_compiling()
        or (torch.is_grad_enabled() and x.requires_grad)
        or row_count(x.shape) <= FEW_TOKENS
    ):
        return None
    gate, up, down = layers
    dtype, activation = result_dtype(x), GATES[type(mlp.act_fn).__name__]
    recipe = gate.recipe
    product = recipe.output
    assert product is not None
    if not gated_in_one(recipe, activation, gate.scaled_weight, None, dtype):
        return None
    weight = _joined(gate, up)
    if weight is None:
        return None
    rows = quantize(walkable(x), product.a)
    h = gated_gemm(rows, weight, activation=activation, format=product.a)
    return output_product(h, down.scaled_weight, None, recipe, dtype)


def _layers(mlp: Any) -> tuple[InferenceLinear, InferenceLinear, InferenceLinear] | None:
    """gate, up and down, if they are what they were at first and fit together."""
    parts = [mlp._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    gate, up, down = parts
    for part in parts:
        if (
            type(part) is not InferenceLinear
            or part.bias is not None
            or part.recipe != gate.recipe
            or part._forward_hooks
            or part._forward_pre_hooks
            or "forward" in part.__dict__  # accelerate's, which brings the weight
        ):
            return None
    if gate.weight.shape != up.weight.shape or gate.scale_name != "weight_scale_inv":
        return None
    return gate, up, down


def _joined(gate: InferenceLinear, up: InferenceLinear) -> ScaledTensor | None:
    """Both weights, one below the other, in memory of which each layer's are a view. They are put
    there once, and again after to() and the like; not while a CUDA graph is captured (None)."""
    parts = gate.scaled_weight, up.scaled_weight
    if parts[0].shape[0] % 128:
        return None
    together = [_adjacent(a, b) for a, b in zip(*map(_tensors, parts), strict=True)]
    codes, scale = together
    if codes is not None and scale is not None:
        return ScaledTensor(codes, scale, "128x128")
    if codes is None and parts[0].data.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    data = torch.cat([part.data.view(torch.uint8) for part in parts]).view(parts[0].data.dtype)
    whole = ScaledTensor(data, torch.cat([part.scale for part in parts]), "128x128")
    middle = parts[0].shape[0]
    gate.hold(whole[:middle], None)
    up.hold(whole[middle:], None)
    return whole


def _tensors(weight: ScaledTensor) -> tuple[Tensor, Tensor]:
    return weight.data, weight.scale


def _adjacent(a: Tensor, b: Tensor) -> Tensor | None:
    """Both as one tensor, if b begins in memory where a ends."""
    if not (a.is_contiguous() and b.is_contiguous() and a.device == b.device):
        return None
    same = a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    if not same or b.data_ptr() != a.data_ptr() + a.nbytes:
        return None
    return a.as_strided((a.shape[0] + b.shape[0], *a.shape[1:]), a.stride())


def _is_plain(module: Module) -> bool:
    kind: Any = type(module)
    if not kind.__module__.startswith("transformers.") or issubclass(kind, GatedMlp):
        return False
    if type(getattr(module, "act_fn", None)).__name__ not in GATES:
        return False
    return _has_plain_forward(kind)


@functools.cache
def _has_plain_forward(kind: Any) -> bool:
    try:
        source = inspect.getsource(kind.forward)
    except (OSError, TypeError):
        return False
    return source.count("self.") == 4 and _PLAIN.search(source) is not None


@functools.cache
def _fused(kind: Any) -> Any:
    """A class with this forward in front. What looks for the class it was finds it."""
    return type(kind.__name__, (GatedMlp, kind), {"__module__": kind.__module__})
