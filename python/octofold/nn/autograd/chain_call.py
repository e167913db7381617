"""A chain or a layer of experts in one call of the library each way, where torch need not know of
what is in it.

The bits are those of norms, casts and products one after another (chain.py), which is the way of
recipes that leave a product in high precision, and of ranks. Compilers and modes: in_graph.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.errors import InvalidArgumentError, in_words_of
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import NAMES, increment_version
from ..._core.torch_ops import torch_is_watching
from ..._ops.layer_passes import Beside, ExpertsLike, MlpLike, NormLike, Passes, passes_of
from ..casting.casts import WeightCasts, cast_weight, joined, transposed_weight, walkable
from .boundary import Sides
from .functions import flatten, memory, refuse_in_backward, save_tensors, saved_tensors
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
_NAMES_OF_EXPERTS: Final = {
    "ids": "topk_ids",
    "up_weight": "w13",
    "up_bias": "b13",
    "down_weight": "w2",
    "down_bias": "b2",
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
    weight_only: torch.dtype | None = None
    """The 16-bit dtype of x, and of all rows, if experts have FP8 weights alone."""

    @property
    def rows_dtype(self) -> str | None:
        """The name of weight_only."""
        return None if self.weight_only is None else NAMES[self.weight_only]


class Layer(NamedTuple):
    """A linear layer of a chain: weights that are one below the other [out, in], the bias [out] of
    all of them, and the casts of them all. Of experts a layer of each: one tensor [experts, out,
    in], and biases [experts, out]."""

    weights: tuple[Tensor, ...]
    """Empty where they are FP8 alone, and have no gradient."""
    bias: Tensor | None
    casts: WeightCasts | None
    """None: nobody holds any, and they are made in each call, as far as experts have tokens."""
    main_grads: tuple[Tensor | None, ...] = ()
    """For each weight what its gradient is added to, instead of weight.grad."""

    def parameters(self) -> tuple[Tensor | None, ...]:
        return (*self.weights, self.bias)

    def needs_gradient(self) -> bool:
        return any(t is not None and t.requires_grad for t in self.parameters())

    @property
    def rows(self) -> ScaledTensor:
        """The cast of the weights, where there is one."""
        assert self.casts is not None
        assert self.casts[0] is not None
        return self.casts[0]

    def operands(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Weights and bias as a product to this dtype takes them: numbers, or codes and scales."""
        bias = addable(self.bias, dtype)
        if self.casts is None:
            return walkable(joined(self.weights)), None, bias
        return self.rows.data, self.rows.scale, bias

    def targets(self) -> GradientTargets:
        """The places that gradients go to."""
        return GradientTargets.of(self.weights, self.bias, self.main_grads)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all weights."""
        if not self.weights:
            return tuple(self.rows.shape)
        rows, *others = self.weights[0].shape
        return rows + sum(weight.shape[0] for weight in self.weights[1:]), *others


class Before(NamedTuple):
    """The tensors before the first layer: x [..., in], and what a norm or experts take besides."""

    x: Tensor
    residual: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    topk_weights: Tensor | None = None
    """float32 [..., k], contiguous."""
    topk_ids: Tensor | None = None
    """int32 [..., k]."""

    def routed(self) -> tuple[Tensor, Tensor, Tensor]:
        """x, topk_weights and topk_ids, of experts."""
        assert self.topk_weights is not None
        assert self.topk_ids is not None
        return self.x, self.topk_weights, self.topk_ids


class TransposedWeight(NamedTuple):
    """The transposed cast of a layer's weights or, where it is missing, what it can be made of."""

    cast: ScaledTensor | None = None
    weights: tuple[Tensor, ...] = ()
    rows: ScaledTensor | None = None

    @staticmethod
    def of(layer: Layer, wanted: bool) -> "TransposedWeight":
        """Nothing, if it is not wanted. The layer has casts."""
        if not wanted:
            return TransposedWeight()
        assert layer.casts is not None
        rows, transposed = layer.casts
        if transposed is not None:
            return TransposedWeight(transposed)
        return TransposedWeight(None, layer.weights, None if layer.weights else rows)

    def made(self, recipe: Recipe, used: Tensor | None = None) -> ScaledTensor | None:
        """The cast: of the weights as they are now; with `used`, as cast_weight() has it."""
        if self.weights:
            return cast_weight(joined(self.weights), recipe, False, True, used)[1]
        return self.cast if self.rows is None else transposed_weight(self.rows, recipe)

    def operand(self, recipe: Recipe) -> tuple[Tensor | None, Tensor | None]:
        """Its codes and scales."""
        cast = self.made(recipe)
        return (None, None) if cast is None else (cast.data, cast.scale)


def wanted_of(before: Before, layers: tuple[Layer, ...]) -> tuple[bool, ...]:
    """The gradients that backward is to give (Passes.wanted)."""
    grad = torch.is_grad_enabled()
    wanted = [grad and any(t is not None and t.requires_grad for t in before[:4])]
    if before.topk_weights is not None:
        wanted.append(grad and before.topk_weights.requires_grad)
    for layer in layers:
        wanted.append(grad and any(weight.requires_grad for weight in layer.weights))
        wanted.append(grad and layer.bias is not None and layer.bias.requires_grad)
    return tuple(wanted)


def transposed_weights(
    chain: Chain, layers: tuple[Layer, ...], wanted: tuple[bool, ...]
) -> tuple[TransposedWeight, ...]:
    """For each layer that of its weights, as far as its input has a gradient; none at all where the
    call casts them. Where the weights alone are FP8 products read them as they are."""
    if layers[0].casts is None:
        return ()
    goes_back = wanted[0], any(wanted[:-2])
    if chain.weight_only is not None:
        return tuple(
            TransposedWeight(layer.rows if is_read else None)
            for layer, is_read in zip(layers, goes_back, strict=True)
        )
    return tuple(map(TransposedWeight.of, layers, goes_back))


def all_or_none_cast(layers: tuple[Layer, ...], recipe: Recipe) -> tuple[Layer, ...]:
    """With casts of all layers, if there are some of any."""
    if all(layer.casts is None for layer in layers):
        return layers
    return tuple(
        layer._replace(casts=cast_weight(joined(layer.weights), recipe, True, False))
        if layer.casts is None
        else layer
        for layer in layers
    )


def chain_in_one_call(
    chain: Chain,
    before: Before,
    layers: tuple[Layer, ...],
    dtype: torch.dtype,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor] | None:
    """The result of a chain of arguments that fit, and what was normed; None where that is to be
    done otherwise. (For linear layers alone one_call.py has the same.) All layers have casts, or
    none."""
    recipe, norm, activation = chain.recipe, chain.norm, chain.activation
    is_linear = norm is None and activation is None
    if is_linear or torch_is_watching() or any(t is not None and not is_plain(t) for t in before):
        return None
    first, last = layers[0], layers[-1]
    are_cast = first.casts is not None
    for layer in layers:
        tensors = (layer.bias,) if are_cast else layer.parameters()
        if any(t is not None and not is_plain(t) for t in tensors):
            return None
    x, ids = before.x, before.topk_ids
    of_norm = None if norm is None else NormLike(norm.kind, norm.epsilon, NAMES[x.dtype])
    beside: Beside = of_norm
    out_features, hidden = last.shape[-2:]
    if activation is not None and ids is not None:
        sizes = last.shape[0], ids.shape[-1], hidden
        biases = first.bias is not None, last.bias is not None
        beside = ExpertsLike(*sizes, activation, NAMES[dtype], chain.rows_dtype, *biases)
    elif activation is not None:
        has_bias = first.bias is not None
        beside = MlpLike(
            hidden, activation, of_norm, NAMES[x.dtype], NAMES[dtype], chain.keep_fp8, has_bias
        )
    tokens = x.numel() // (x.shape[-1] or 1)
    features = x.shape[-1], out_features
    passes = passes_of(tokens, *features, recipe, wanted, are_cast, x.device, beside)
    if passes is None:
        return None
    call = _Call(chain, passes, layers, out_features, dtype)
    parameters = tuple(t for layer in layers for t in layer.parameters())
    try:
        if not any(wanted):
            y, total, _ = call.forward(before)
        else:
            y, total = _apply(call, *before, *parameters)
    except InvalidArgumentError as error:
        names = _NAMES if ids is None else _NAMES_OF_EXPERTS
        raise in_words_of(chain.name, error, names) from None
    return y, x if total is None else total


class _Call(NamedTuple):
    """A call of a chain, but for the tensors that are differentiated."""

    chain: Chain
    passes: Passes
    layers: tuple[Layer, ...]
    out_features: int
    dtype: torch.dtype

    def forward(self, before: Before) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """y, x + residual, and what is kept for backward."""
        passes, x = self.passes, before.x
        y = _empty((*x.shape[:-1], self.out_features), dtype=self.dtype, device=x.device)
        total = None if before.residual is None else _empty(x.shape, dtype=x.dtype, device=x.device)
        kept = memory(passes.kept, x)
        weights = [t for layer in self.layers for t in layer.operands(self.dtype)]
        beside: tuple[Tensor | None, ...] = before.topk_ids, before.topk_weights
        if before.topk_ids is None:
            operands = fitted(before.norm_weight, x), fitted(before.norm_bias, x)
            beside = before.residual, *operands, total
        workspace = memory(passes.forward_workspace, x)
        passes.forward(x, *beside, *weights, y, kept, workspace, None)
        return y, total, kept


class _ChainCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor | None) -> tuple[Tensor, Tensor | None]:
        before = Before(*tensors[:6])  # type: ignore[arg-type]
        y, total, kept = call.forward(before)
        chain, passes, layers, _, dtype = call
        goes_through_norm = chain.norm is not None and passes.wanted[0]
        normed = (before.x if total is None else total) if goes_through_norm else None
        operands = before[2:4] if goes_through_norm else (None, None)
        ctx.transposed, held = flatten(transposed_weights(chain, layers, passes.wanted))
        routing = routing_of(before, layers, dtype, passes.wanted)
        save_tensors(ctx, kept, normed, *operands, *routing, *held)
        ctx.chain, ctx.passes = chain, passes
        ctx.x_shape, ctx.x_dtype = before.x.shape, before.x.dtype
        ctx.norm_dtypes = tuple(None if t is None else t.dtype for t in operands)
        ctx.targets = [layer.targets() for layer in layers]
        ctx.shapes = [layer.shape for layer in layers]
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_sum: Tensor | None) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        refuse_in_backward(ctx.chain.name, dy)
        kept, x, norm_weight, norm_bias, *others = saved_tensors(ctx)
        routing, held = others[:3], others[3:]
        shares, wanted = routing[0], passes.wanted
        transposed: list[Tensor | None] = []
        for weight in ctx.transposed.record(held):
            transposed += weight.operand(ctx.chain.recipe)
        transposed += [None] * (2 * len(ctx.targets) - len(transposed))
        if kept is not None and kept.data_ptr() % 16:  # a hook's own memory
            kept = kept.clone()
        device, goes_through_norm = dy.device, x is not None
        dx = _empty(ctx.x_shape, dtype=ctx.x_dtype, device=device) if wanted[0] else None
        d_norm = [
            _empty(ctx.x_shape[-1:], dtype=dtype, device=device) if needed and dtype else None
            for needed, dtype in zip(ctx.needs_input_grad[3:5], ctx.norm_dtypes, strict=True)
        ]
        d_shares = torch.empty_like(shares) if ctx.needs_input_grad[5] else None
        d_layers: list[Any] = []
        of_layers = wanted[1 if shares is None else 2 :]
        for index, (target, shape) in enumerate(zip(ctx.targets, ctx.shapes, strict=True)):
            of_weight, of_bias = of_layers[2 * index : 2 * index + 2]
            dw, adds = target.place(shape, device) if of_weight else (None, False)
            db = _empty(shape[:-1], dtype=target.bias_dtype, device=device) if of_bias else None
            d_layers += dw, db, adds
        beside: Sequence[Tensor | None] = routing
        if shares is None:
            operands = (None, None) if x is None else (fitted(norm_weight, x), fitted(norm_bias, x))
            of_sum = _walkable(of_sum) if goes_through_norm and of_sum is not None else None
            beside = x, *operands, of_sum
        d_beside = d_norm if shares is None else [d_shares]
        given = _walkable(dy), *beside, *transposed, kept
        workspace = memory(passes.backward_workspace, dy)
        passes.backward(*given, dx, *d_beside, *d_layers, workspace, None)
        gradients: list[Tensor | None] = []
        for index, target in enumerate(ctx.targets):
            dw, db, adds = d_layers[3 * index : 3 * index + 3]
            if adds:
                increment_version((dw,))
            gradients += [None] * len(target.rows) if dw is None else target.handed_out(dw)
            gradients.append(db)
        of_residual = dx if ctx.needs_input_grad[2] else None
        return None, dx, of_residual, *d_norm, d_shares, None, *gradients


def routing_of(
    before: Before, layers: tuple[Layer, ...], dtype: torch.dtype, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The tensors of a routing that backward takes: its weights and, where they have a gradient and
    the experts' results a bias, ids and the biases."""
    shares, ids, bias = before.topk_weights, before.topk_ids, layers[-1].bias
    if shares is None or not wanted[1] or bias is None:
        return shares, None, None
    return shares, ids, addable(bias, dtype)


def _walkable(dy: Tensor) -> Tensor:
    return walkable(dy.resolve_neg() if dy.is_neg() else dy)


# Function.apply() without what it does for torch.func first, as one_call.py has it.
_apply: Final[Callable[..., Any]] = super(torch.autograd.Function, _ChainCall).apply
