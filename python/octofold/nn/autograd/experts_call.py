"""Experts whose rows are FP8: a call of the library each way, of routing, casts, products and sums
together. Where torch has to know of it (compilers, modes, policies of checkpointing) the two calls
are the ops layer_forward and layer_backward."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.errors import InvalidArgumentError, in_words_of
from ..._core.ops import row_count
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import NAMES, increment_version
from ..._core.torch_ops import torch_is_watching
from ..._ops.layer_ops import GradientOptions, LayerOptions, layer_backward, layer_forward, text_of
from ..._ops.layer_passes import ExpertsLike, Passes, Wanted, passes_of
from ..casting.casts import WeightCasts, cast_weight, joined, transposed_weight, walkable
from .functions import (
    Layout,
    differentiates,
    flatten,
    memory,
    refuse_in_backward,
    save,
    saved,
)
from .main_grad import GradientTargets
from .one_call import is_plain
from .products import addable

_NAMES: Final = {
    "ids": "topk_ids",
    "up_weight": "w13",
    "up_bias": "b13",
    "down_weight": "w2",
    "down_bias": "b2",
}
_empty: Final = torch.empty


class Tokens(NamedTuple):
    """The inputs of an expert layer beside its weights and biases."""

    x: Tensor
    """[..., hidden], of at least two dimensions, walkable."""
    weights: Tensor
    """The weights of the routing, float32 [..., k], contiguous."""
    ids: Tensor
    """int32 [..., k], walkable."""


class Projection(NamedTuple):
    """One of the two layers of all experts: the weights [experts, out, in] in high precision (None:
    they are FP8 and have no gradient), biases [experts, out], and the casts of the weights."""

    weight: Tensor | None
    bias: Tensor | None
    casts: WeightCasts | None
    """None: nobody holds any, and they are made in each call, as far as experts have tokens."""
    main_grad: Tensor | None = None
    """The tensor that the weights' gradient is added to, instead of weight.grad."""

    def needs_gradient(self) -> bool:
        return any(t is not None and t.requires_grad for t in (self.weight, self.bias))

    @property
    def shape(self) -> torch.Size:
        """That of the weights."""
        if self.weight is not None:
            return self.weight.shape
        return torch.Size(self.rows.shape)

    @property
    def rows(self) -> ScaledTensor:
        """The cast of the weights, where there is one."""
        assert self.casts is not None
        assert self.casts[0] is not None
        return self.casts[0]


class TransposedWeight(NamedTuple):
    """The transposed cast of a projection's weights or, where it is missing, what it can be made
    of."""

    cast: ScaledTensor | None = None
    weight: Tensor | None = None
    rows: ScaledTensor | None = None

    @staticmethod
    def of(projection: Projection, wanted: bool) -> "TransposedWeight":
        """Nothing, if it is not wanted, or the call casts the weights."""
        if projection.casts is None or not wanted:
            return TransposedWeight()
        rows, transposed = projection.casts
        if transposed is not None:
            return TransposedWeight(transposed)
        weight = projection.weight
        return TransposedWeight(rows=rows) if weight is None else TransposedWeight(weight=weight)

    def made(self, recipe: Recipe, used: Tensor | None = None) -> ScaledTensor | None:
        """The cast: of the weight as it is now; with `used`, as cast_weight() has it."""
        if self.weight is not None:
            return cast_weight(self.weight, recipe, False, True, used)[1]
        return self.cast if self.rows is None else transposed_weight(self.rows, recipe)


class _Inputs(NamedTuple):
    x: Tensor
    weights: Tensor
    ids: Tensor
    first: Projection
    second: Projection
    activation: str
    recipe: Recipe
    dtype: torch.dtype
    """The dtype of the result."""


class _Kept(NamedTuple):
    """The values that backward computes with. Those that it does not need are None."""

    memory: Tensor | None
    weights: Tensor
    ids: Tensor | None
    bias: Tensor | None
    """The second projection's, if the weights of the routing have a gradient."""
    first: TransposedWeight
    second: TransposedWeight


class _Layer(NamedTuple):
    """A layer but for its tensors, in both passes."""

    sizes: tuple[int, int, int, int]
    """in, hidden, out, experts"""
    activation: str
    recipe: Recipe
    x_dtype: torch.dtype
    dtype: torch.dtype
    biases: tuple[bool, bool]
    """True for the first and the second projection, if they have any."""
    are_cast: bool
    wanted: Wanted
    """The gradients of x, of the weights of the routing, of each projection's weights and biases"""

    @staticmethod
    def of(inputs: _Inputs, wanted: Wanted) -> "_Layer":
        x, _, _, first, second, activation, recipe, dtype = inputs
        experts, out, hidden = second.shape
        return _Layer(
            (x.shape[-1], hidden, out, experts),
            activation,
            recipe,
            x.dtype,
            dtype,
            (first.bias is not None, second.bias is not None),
            first.casts is not None,
            wanted,
        )

    def passes(self, tokens: int, slots: int, given: Sequence[Tensor | None]) -> Passes | None:
        """The library's own, for tensors of which torch need not know; else None."""
        if torch_is_watching() or not all(t is None or is_plain(t) for t in given):
            return None
        in_features, hidden, out, experts = self.sizes
        like = ExpertsLike(experts, slots, hidden, self.activation, NAMES[self.dtype], *self.biases)
        device = given[0].device  # type: ignore[union-attr]
        options = self.recipe, self.wanted, self.are_cast, device
        return passes_of(tokens, in_features, out, *options, like)

    def options(self) -> LayerOptions:
        """The same for the ops."""
        return LayerOptions(
            recipe=text_of(self.recipe),
            norm=None,
            epsilon=0.0,
            activation=self.activation,
            keep_fp8=False,
            has_up_bias=self.biases[0],
            has_down_bias=self.biases[1],
            are_cast=self.are_cast,
            wanted="".join(["1" if each else "0" for each in self.wanted]),
            x_dtype=NAMES[self.x_dtype],
            y_dtype=NAMES[self.dtype],
        )


def native_experts(
    tokens: Tokens,
    first: Projection,
    second: Projection,
    activation: str,
    recipe: Recipe,
    dtype: torch.dtype,
) -> Tensor:
    """[..., hidden] in this dtype. Casts of weights may lack those of experts without tokens. A
    transposed cast that is missing backward makes, of the weight as it is then."""
    if (first.casts is None) != (second.casts is None):
        first, second = _cast_here(first, recipe), _cast_here(second, recipe)
    inputs = _Inputs(*tokens, first, second, activation, recipe, dtype)
    if differentiates("experts", tokens.x, tokens.weights, *first[:2], *second[:2]):
        layout, tensors = flatten(inputs)
        y: Tensor = _Experts.apply(layout, *tensors)  # type: ignore[no-untyped-call]
        return y
    return _forward(inputs, _Layer.of(inputs, (False,) * 6))[0]


def _cast_here(projection: Projection, recipe: Recipe) -> Projection:
    if projection.casts is not None:
        return projection
    assert projection.weight is not None
    return projection._replace(casts=cast_weight(projection.weight, recipe, True, False))


def _forward(inputs: _Inputs, layer: _Layer) -> tuple[Tensor, Tensor | None]:
    """The result, and what is kept for backward."""
    x, weights, ids = inputs[:3]
    operands: list[Tensor | None] = []
    for projection in (inputs.first, inputs.second):
        if projection.casts is None:
            assert projection.weight is not None
            operands += walkable(joined((projection.weight,))), None
        else:
            operands += projection.rows.data, projection.rows.scale
        operands.append(addable(projection.bias, inputs.dtype))
    tokens, slots = row_count(x.shape), ids.shape[-1]
    passes = layer.passes(tokens, slots, (x, ids, weights, *operands))
    if passes is None:
        given = (x, None, None, None, ids, weights, *operands)
        y, _, kept, _ = layer_forward(given, tuple(layer.options()))
        return y, kept
    y = _empty((*x.shape[:-1], layer.sizes[2]), dtype=inputs.dtype, device=x.device)
    kept = memory(passes.kept, x)
    workspace = memory(passes.forward_workspace, x)
    try:
        passes.forward(x, ids, weights, *operands, y, kept, workspace, None)
    except InvalidArgumentError as error:
        raise in_words_of("experts", error, _NAMES) from None
    return y, kept


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Tensor:
        inputs: _Inputs = layout.record(tensors)
        needs, projections = layout.needs(ctx), (inputs.first, inputs.second)
        of_layers = [each for of in (needs.first, needs.second) for each in of[:2]]
        wanted = tuple(map(bool, (needs.x, needs.weights, *of_layers)))
        layer = _Layer.of(inputs, wanted)
        y, kept = _forward(inputs, layer)
        bias = addable(inputs.second.bias, inputs.dtype) if wanted[1] else None
        save(
            ctx,
            _Kept(
                kept,
                inputs.weights,
                None if bias is None else inputs.ids,
                bias,
                TransposedWeight.of(inputs.first, wanted[0]),
                TransposedWeight.of(inputs.second, any(wanted[:4])),
            ),
        )
        ctx.layout, ctx.layer = layout, layer
        ctx.shapes = [tuple(projection.shape) for projection in projections]
        ctx.targets = [_target_of(projection) for projection in projections]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        refuse_in_backward("experts", dy)
        kept: _Kept = saved(ctx)
        layer: _Layer = ctx.layer
        given: list[Tensor | None] = [walkable(dy), kept.weights, kept.ids, kept.bias]
        for weight in (kept.first, kept.second):
            cast = weight.made(layer.recipe)
            given += (None, None) if cast is None else (cast.data, cast.scale)
        given.append(kept.memory)
        passes = layer.passes(row_count(dy.shape), kept.weights.shape[-1], given)
        dx, d_weights, *parts = (
            _by_op(layer, given, ctx.targets)
            if passes is None
            else _at_once(layer, given, ctx.targets, ctx.shapes, passes)
        )
        layers = []
        for index, target in enumerate(ctx.targets):
            dw, db, adds = parts[3 * index : 3 * index + 3]
            if adds:
                increment_version((dw,))
            elif dw is not None and target.added_to is not None:
                target.added_to.add_(dw)
            layers.append((None if dw is None else target.handed_out(dw)[0], db))
        gradients: tuple[Any, ...] = ctx.layout.gradients(
            ctx, x=dx, weights=d_weights, first=layers[0], second=layers[1]
        )
        return gradients


def _at_once(
    layer: _Layer,
    given: list[Tensor | None],
    targets: list[GradientTargets],
    shapes: list[tuple[int, ...]],
    passes: Passes,
) -> tuple[Any, ...]:
    """The gradients by x and the weights of the routing; for each projection those by weights and
    by biases, and whether the former were added to what was there."""
    *read, held = given
    dy, weights = read[:2]
    assert dy is not None
    assert weights is not None
    if held is not None and held.data_ptr() % 16:  # a hook's own memory
        held = held.clone()
    device, (of_x, of_weights, *of_layers) = dy.device, layer.wanted
    rows = (*dy.shape[:-1], layer.sizes[0])
    dx = _empty(rows, dtype=layer.x_dtype, device=device) if of_x else None
    d_weights = torch.empty_like(weights) if of_weights else None
    parts: list[Any] = []
    for index, (target, shape) in enumerate(zip(targets, shapes, strict=True)):
        of_weight, of_bias = of_layers[2 * index : 2 * index + 2]
        dw, adds = target.place(shape, device) if of_weight else (None, False)
        db = _empty(shape[:2], dtype=target.bias_dtype, device=device) if of_bias else None
        parts += dw, db, adds
    workspace = memory(passes.backward_workspace, dy)
    passes.backward(*read, held, dx, d_weights, *parts, workspace, None)
    return dx, d_weights, *parts


def _by_op(
    layer: _Layer, given: list[Tensor | None], targets: list[GradientTargets]
) -> tuple[Any, ...]:
    """The same, where nothing is added."""
    dtypes: list[torch.dtype | None] = [torch.float32]
    for target in targets:
        dtypes += target.dtype, target.bias_dtype
    names = [
        NAMES[dtype] if dtype is not None and is_wanted else ""
        for dtype, is_wanted in zip(dtypes, layer.wanted[1:], strict=True)
    ]
    dy, *routing, up, up_scale, down, down_scale, held = given
    casts = up, up_scale, down, down_scale
    more = GradientOptions(*layer.sizes, ",".join(["", "", *names]))
    results = layer_backward(
        (dy, held, None, None, None, None, *routing, *casts), (*layer.options(), *more)
    )
    dx, _, _, d_weights, d_up, d_up_bias, d_down, d_down_bias, _ = results
    return dx, d_weights, d_up, d_up_bias, False, d_down, d_down_bias, False


def _target_of(projection: Projection) -> GradientTargets:
    weight, bias, _, main_grad = projection
    weights = () if weight is None else (weight,)
    return GradientTargets.of(weights, bias, (main_grad,) * len(weights))
