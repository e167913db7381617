"""A layer and its tensors as values: what nn/autograd/layer_call.py computes in one process, and
octofold.distributed over ranks."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import NAMES
from ..._ops.layer_passes import Wanted
from ..casting.casts import WeightCasts, cast_weight, joined, transposed_weight, walkable
from ..casting.weight_tensors import plain_weight
from .boundary import Sides
from .functions import Layout
from .main_grad import GradientTargets
from .normed import Norm
from .products import addable


class Chain(NamedTuple):
    """The steps of a layer: [residual and norm,] a linear layer[, an activation, a second one]; or
    an activation and one linear layer. Only a linear layer alone may have its output in high
    precision."""

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

    def rows_dtype(self) -> str | None:
        """The name of weight_only."""
        return None if self.weight_only is None else NAMES[self.weight_only]


class Layer(NamedTuple):
    """A linear layer of a chain: weights that are one below the other [out, in], the bias [out] of
    all of them, and the casts of them all. Of experts a layer of each: one tensor [experts, out,
    in], and biases [experts, out]. It has methods and no properties, which torch.compile of torch
    2.9 cannot read of a NamedTuple."""

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

    def rows(self) -> ScaledTensor:
        """The cast of the weights, where there is one."""
        assert self.casts is not None
        assert self.casts[0] is not None
        return self.casts[0]

    def with_casts(self, recipe: Recipe, transposed: bool, used: Tensor | None = None) -> "Layer":
        """The same with casts, made now where nobody holds any, the transposed one if wanted; of
        FP8 backward makes it. used: the routing's offsets, if experts without tokens are to be left
        out."""
        if self.casts is not None:
            return self
        casts = cast_weight(joined(self.weights), recipe, True, transposed, used)
        return self._replace(casts=casts)

    def operands(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Weights and bias as a product to this dtype takes them: numbers, or codes and scales."""
        bias = addable(self.bias, dtype)
        if self.casts is not None:
            return self.rows().data, self.rows().scale, bias
        weights = self.weights
        weight = plain_weight(weights[0]) if len(weights) == 1 else joined(weights)
        return walkable(weight), None, bias

    def targets(self) -> GradientTargets:
        """The places that gradients go to."""
        return GradientTargets.of(self.shape(), self.weights, self.bias, self.main_grads)

    def shape(self) -> tuple[int, ...]:
        """The shape of all weights."""
        weights = self.weights
        if len(weights) == 1:
            return weights[0].shape
        if not weights:
            return tuple(self.rows().shape)
        rows, *others = weights[0].shape
        return rows + sum(weight.shape[0] for weight in weights[1:]), *others


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

    def needs_gradient(self) -> bool:
        """True if x, or what is computed before the first layer, has a gradient."""
        x, residual, weight, bias, *_ = self
        return (
            x.requires_grad
            or (residual is not None and residual.requires_grad)
            or (weight is not None and weight.requires_grad)
            or (bias is not None and bias.requires_grad)
        )


class TransposedWeight(NamedTuple):
    """The transposed cast of a layer's weights or, where it is missing, what it can be made of."""

    cast: ScaledTensor | None = None
    weights: tuple[Tensor, ...] = ()
    """Kept also where the recipe has the gradient of the layer's input in high precision."""
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


def wanted_of(before: Before, layers: tuple[Layer, ...]) -> Wanted:
    """The gradients that backward is to give (Passes.wanted)."""
    is_routed = before.topk_weights is not None
    if not torch.is_grad_enabled():
        return (False,) * (1 + is_routed + 2 * len(layers))
    x, residual, norm_weight, norm_bias, shares, _ = before
    is_wanted = x.requires_grad
    if not is_wanted and (residual is not None or norm_weight is not None or norm_bias is not None):
        is_wanted = before.needs_gradient()
    wanted = [is_wanted] if shares is None else [is_wanted, shares.requires_grad]
    for weights, bias, *_ in layers:
        is_trained = False
        for weight in weights:
            is_trained = is_trained or weight.requires_grad
        wanted += is_trained, bias is not None and bias.requires_grad
    return tuple(wanted)


def transposed_weights(
    chain: Chain, layers: tuple[Layer, ...], wanted: Wanted
) -> tuple[TransposedWeight, ...]:
    """For each layer that of its weights, as far as its input has a gradient; none at all where the
    call casts them. Where the weights alone are FP8 products read them as they are."""
    if layers[0].casts is None:
        return ()
    goes_back = wanted[0], any(wanted[:-2])
    if chain.weight_only is not None:
        return tuple(
            TransposedWeight(layer.rows() if is_read else None)
            for layer, is_read in zip(layers, goes_back, strict=True)
        )
    pairs = zip(layers, goes_back[: len(layers)], strict=True)
    return tuple(TransposedWeight.of(layer, is_wanted) for layer, is_wanted in pairs)


class Needs(NamedTuple):
    """Truth values, for layers that are composed of casts and products: for each gradient whether
    it is wanted."""

    x: bool = False
    """Also for a residual and the operands of a norm."""
    weights: bool = False
    """The routing's."""
    first: bool = False
    """For any of its weights."""
    second: bool = False
    first_bias: bool = False
    second_bias: bool = False

    def gate_up(self) -> bool:
        """True if backward goes through the activation."""
        return self.x or self.weights or self.first or self.first_bias


def needs_of(layout: Layout, ctx: Any) -> Needs:
    """The gradients that a Function is to give, by its inputs as a record: of x and the weights of
    the routing, or of `before`, and of layers."""
    needs = layout.needs(ctx)
    x, weights = (any(needs.before[:4]), None) if "before" in needs._fields else needs[:2]
    first, *others = needs.layers
    second, second_bias = False, False
    for layer in others:
        second, second_bias = any(layer.weights), bool(layer.bias)
    return Needs(bool(x), bool(weights), any(first.weights), second, bool(first.bias), second_bias)
