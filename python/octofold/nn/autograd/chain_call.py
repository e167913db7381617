"""A chain in one call of the library each way, where torch need not know of what is in it.

The bits are those of norms, casts and products one after another (chain.py), which is the way of
all else: recipes that leave a product in high precision, ranks, compilers, modes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.errors import InvalidArgumentError, in_words_of
from ..._core.recipe import Recipe
from ..._core.torch import NAMES, increment_version
from ..._core.torch_ops import torch_is_watching
from ..._ops.layer_passes import MlpLike, NormLike, Passes, passes_of
from ..casting.casts import WeightCasts, joined, walkable
from .boundary import Sides
from .functions import memory, refuse_in_backward, save_tensors, saved_tensors
from .main_grad import GradientTargets
from .normed import Norm, fitted
from .one_call import is_plain
from .products import addable

_NAMES: Final = {
    "up_weight": "gate_up_weight",
    "up_bias": "gate_up_bias",
    "operands.weight": "norm_weight",
    "operands.bias": "norm_bias",
}
_empty: Final = torch.empty


@dataclass(frozen=True)
class Chain:
    """The steps of a chain: [residual and norm,] a linear layer[, an activation, a second one].
    Only a linear layer alone may have its output in high precision."""

    name: str
    """The name of the operation, for its errors."""
    recipe: Recipe
    norm: Norm | None = None
    activation: str | None = None
    keep_fp8: bool = False
    """True if the input of the activation is kept for backward in FP8."""
    sides: Sides | None = None
    """The boundaries of tokens, if a rank has a part of each weight (tensor parallelism)."""


class Layer(NamedTuple):
    """A linear layer of a chain: weights that are one below the other [out, in], the bias [out] of
    all of them, and the casts of them all."""

    weights: tuple[Tensor, ...]
    bias: Tensor | None
    casts: WeightCasts | None
    """None: nobody holds any, and they are made in each call."""
    main_grads: tuple[Tensor | None, ...] = ()
    """For each weight what its gradient is added to, instead of weight.grad."""

    def parameters(self) -> tuple[Tensor | None, ...]:
        return (*self.weights, self.bias)

    def needs_gradient(self) -> bool:
        return any(t is not None and t.requires_grad for t in self.parameters())


class Before(NamedTuple):
    """The tensors before the first layer: x [..., in], and what a norm takes besides."""

    x: Tensor
    residual: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None


def wanted_of(before: Before, layers: tuple[Layer, ...]) -> tuple[bool, ...]:
    """The gradients that backward is to give (Passes.wanted)."""
    wanted = [False] * (1 + 2 * len(layers))
    if torch.is_grad_enabled():
        wanted[0] = any(t is not None and t.requires_grad for t in before)
        for index, layer in enumerate(layers):
            bias = layer.bias
            wanted[1 + 2 * index] = any(weight.requires_grad for weight in layer.weights)
            wanted[2 + 2 * index] = bias is not None and bias.requires_grad
    return tuple(wanted)


def inputs_that_go_back(layers: tuple[Layer, ...], wanted: tuple[bool, ...]) -> tuple[bool, ...]:
    """For each layer whether its input has a gradient."""
    return (wanted[0], any(wanted[:3]))[: len(layers)]


def casts_suffice(layers: tuple[Layer, ...], wanted: tuple[bool, ...]) -> bool:
    """True if all weights come as numbers, or all as the casts that the passes read."""
    if all(layer.casts is None for layer in layers):
        return True
    return all(
        layer.casts is not None and not (goes_back and layer.casts[1] is None)
        for layer, goes_back in zip(layers, inputs_that_go_back(layers, wanted), strict=True)
    )


def chain_in_one_call(
    chain: Chain, before: Before, layers: tuple[Layer, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """The result of a chain of arguments that fit, and what was normed; None where that is to be
    done otherwise. (For linear layers alone one_call.py has the same.)"""
    recipe, norm, activation = chain.recipe, chain.norm, chain.activation
    is_linear = norm is None and activation is None
    if is_linear or torch_is_watching() or any(t is not None and not is_plain(t) for t in before):
        return None
    wanted = wanted_of(before, layers)
    if not casts_suffice(layers, wanted):
        return None
    first, last = layers[0], layers[-1]
    are_cast = first.casts is not None
    for layer in layers:
        tensors = (layer.bias,) if are_cast else layer.parameters()
        if any(t is not None and not is_plain(t) for t in tensors):
            return None
    x = before.x
    of_norm = None if norm is None else NormLike(norm.kind, norm.epsilon, NAMES[x.dtype])
    beside: NormLike | MlpLike | None = of_norm
    if activation is not None:
        hidden, has_bias = last.weights[0].shape[1], first.bias is not None
        beside = MlpLike(
            hidden, activation, of_norm, NAMES[x.dtype], NAMES[dtype], chain.keep_fp8, has_bias
        )
    out_features = sum(weight.shape[0] for weight in last.weights)
    tokens = x.numel() // (x.shape[-1] or 1)
    sizes = tokens, x.shape[-1], out_features
    passes = passes_of(*sizes, recipe, wanted, are_cast, x.device, beside)
    if passes is None:
        return None
    goes_back = inputs_that_go_back(layers, wanted)
    call = _Call(chain.name, passes, layers, out_features, dtype, norm is not None, goes_back)
    parameters = tuple(t for layer in layers for t in layer.parameters())
    try:
        if not any(wanted):
            y, total, _ = call.forward(before)
        else:
            y, total = _apply(call, *before, *parameters)
    except InvalidArgumentError as error:
        raise in_words_of(chain.name, error, _NAMES) from None
    return y, x if total is None else total


class _Call(NamedTuple):
    """A call of a chain, but for the tensors that are differentiated."""

    operation: str
    passes: Passes
    layers: tuple[Layer, ...]
    out_features: int
    dtype: torch.dtype
    has_norm: bool
    goes_back: tuple[bool, ...]
    """For each layer whether its input has a gradient."""

    def forward(self, before: Before) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """y, x + residual, and what is kept for backward."""
        passes, x = self.passes, before.x
        y = _empty((*x.shape[:-1], self.out_features), dtype=self.dtype, device=x.device)
        total = None if before.residual is None else _empty(x.shape, dtype=x.dtype, device=x.device)
        kept = memory(passes.kept, x)
        weights: list[Tensor | None] = []
        for layer in self.layers:
            if layer.casts is None:
                weights += walkable(joined(layer.weights)), None
            else:
                rows = layer.casts[0]
                assert rows is not None
                weights += rows.data, rows.scale
            weights.append(addable(layer.bias, self.dtype))
        operands = fitted(before.norm_weight, x), fitted(before.norm_bias, x)
        workspace = memory(passes.forward_workspace, x)
        passes.forward(x, before.residual, *operands, total, *weights, y, kept, workspace, None)
        return y, total, kept

    def transposed(self) -> list[Tensor | None]:
        """Codes and scales of the weights' transposes, as far as backward reads any."""
        found: list[Tensor | None] = []
        for layer, is_read in zip(self.layers, self.goes_back, strict=True):
            cast = layer.casts[1] if is_read and layer.casts is not None else None
            found += (None, None) if cast is None else (cast.data, cast.scale)
        return found


class _ChainCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor | None) -> tuple[Tensor, Tensor | None]:
        before = Before(*tensors[:4])  # type: ignore[arg-type]
        y, total, kept = call.forward(before)
        goes_through_norm = call.has_norm and call.goes_back[0]
        normed = (before.x if total is None else total) if goes_through_norm else None
        operands = before[2:] if goes_through_norm else (None, None)
        save_tensors(ctx, kept, normed, *operands, *call.transposed())
        ctx.operation, ctx.passes = call.operation, call.passes
        ctx.x_shape, ctx.x_dtype = before.x.shape, before.x.dtype
        ctx.norm_dtypes = tuple(None if t is None else t.dtype for t in operands)
        ctx.targets = [
            GradientTargets.of(layer.weights, layer.bias, layer.main_grads) for layer in call.layers
        ]
        ctx.features = [layer.weights[0].shape[1] for layer in call.layers]
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_sum: Tensor | None) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        refuse_in_backward(ctx.operation, dy)
        kept, x, norm_weight, norm_bias, *transposed = saved_tensors(ctx)
        if kept is not None and kept.data_ptr() % 16:  # a hook's own memory
            kept = kept.clone()
        device, goes_through_norm = dy.device, x is not None
        dx = _empty(ctx.x_shape, dtype=ctx.x_dtype, device=device) if passes.wanted[0] else None
        d_norm = [
            _empty(ctx.x_shape[-1:], dtype=dtype, device=device) if needed and dtype else None
            for needed, dtype in zip(ctx.needs_input_grad[3:5], ctx.norm_dtypes, strict=True)
        ]
        d_layers: list[Any] = []
        for index, (target, features) in enumerate(zip(ctx.targets, ctx.features, strict=True)):
            of_weight, of_bias = passes.wanted[1 + 2 * index : 3 + 2 * index]
            shape = sum(target.rows), features
            dw, adds = target.place(shape, device) if of_weight else (None, False)
            db = (
                _empty(sum(target.rows), dtype=target.bias_dtype, device=device)
                if of_bias
                else None
            )
            d_layers += dw, db, adds
        operands = (None, None) if x is None else (fitted(norm_weight, x), fitted(norm_bias, x))
        passes.backward(
            _walkable(dy),
            x,
            *operands,
            _walkable(of_sum) if goes_through_norm and of_sum is not None else None,
            *transposed,
            kept,
            dx,
            *d_norm,
            *d_layers,
            memory(passes.backward_workspace, dy),
            None,
        )
        gradients: list[Tensor | None] = []
        for index, target in enumerate(ctx.targets):
            dw, db, adds = d_layers[3 * index : 3 * index + 3]
            if adds:
                increment_version((dw,))
            gradients += [None] * len(target.rows) if dw is None else target.handed_out(dw)
            gradients.append(db)
        of_residual = dx if ctx.needs_input_grad[2] else None
        return None, dx, of_residual, *d_norm, *gradients


def _walkable(dy: Tensor) -> Tensor:
    return walkable(dy.resolve_neg() if dy.is_neg() else dy)


# Function.apply() without what it does for torch.func first, as one_call.py has it.
_apply: Final[Callable[..., Any]] = super(torch.autograd.Function, _ChainCall).apply
