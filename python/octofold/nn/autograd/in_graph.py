"""A layer where torch has to know of it (compilers, modes, policies of checkpointing): its two
passes are the ops layer_forward and layer_backward, which make the calls that eager layers make."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.torch import DTYPES, LIBRARY_TAKES_TENSORS, NAMES
from ..._core.torch_ops import torch_is_watching
from ..._ops.layer_ops import GradientOptions, LayerOptions, layer_backward, layer_forward, text_of
from ..._ops.layer_passes import fits
from ..casting.casts import walkable
from ..casting.weight_tensors import plain_weight
from .chain_call import Before, Chain, Layer, casts_suffice, wanted_of
from .functions import Layout, differentiates, flatten, refuse_in_backward, save, saved
from .normed import fitted
from .products import addable


class _Weight(NamedTuple):
    """The weight of a layer, its casts where they come with it, and its bias."""

    weight: Tensor
    bias: Tensor | None
    codes: Tensor | None = None
    scale: Tensor | None = None
    transposed: Tensor | None = None
    transposed_scale: Tensor | None = None


class _Inputs(NamedTuple):
    operation: str
    before: Before
    up: _Weight
    down: _Weight | None
    options: LayerOptions


def layer_in_graph(
    chain: Chain, before: Before, layers: tuple[Layer, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """The result of arguments that fit, and what was normed; None where that is to be done
    otherwise: where torch need not know of it, for recipes that are not all FP8, and for gradients
    that are added to a main_grad."""
    recipe, norm = chain.recipe, chain.norm
    wanted = wanted_of(before, layers)
    if not torch_is_watching() or not LIBRARY_TAKES_TENSORS or not fits(recipe, wanted):
        return None
    if not casts_suffice(layers, wanted):
        return None
    if any(main_grad is not None for layer in layers for main_grad in layer.main_grads):
        return None
    options = LayerOptions(
        recipe=text_of(recipe),
        norm=None if norm is None else norm.kind,
        epsilon=0.0 if norm is None else norm.epsilon,
        activation=chain.activation,
        keep_fp8=chain.keep_fp8,
        has_up_bias=layers[0].bias is not None,
        has_down_bias=layers[-1].bias is not None,
        are_cast=layers[0].casts is not None,
        wanted="".join(["1" if each else "0" for each in wanted]),
        x_dtype=NAMES[before.x.dtype],
        y_dtype=NAMES[dtype],
    )
    up = _weight_of(layers[0])
    down = _weight_of(layers[1]) if len(layers) == 2 else None
    inputs = _Inputs(chain.name, before, up, down, options)
    tensors = (*before, up.weight, up.bias, *((down.weight, down.bias) if down else ()))
    if not differentiates(chain.name, *tensors):
        y, total, _ = _forward(inputs)
        return y, before.x if total is None else total
    layout, flat = flatten(inputs)
    results = _InGraph.apply(layout, *flat)  # type: ignore[no-untyped-call]
    return results if before.residual is not None else (results, before.x)


def _weight_of(layer: Layer) -> _Weight:
    """Gate and up are put below each other where torch sees it, which splits their gradient."""
    parts = [plain_weight(weight) for weight in layer.weights]
    weight = _Weight(parts[0] if len(parts) == 1 else torch.cat(parts), layer.bias)
    if layer.casts is None:
        return weight
    rows, transposed = layer.casts
    assert rows is not None
    weight = weight._replace(codes=rows.data, scale=rows.scale)
    if transposed is None:
        return weight
    return weight._replace(transposed=transposed.data, transposed_scale=transposed.scale)


def _forward(inputs: _Inputs) -> tuple[Tensor, Tensor | None, Tensor | None]:
    dtype = DTYPES[inputs.options.y_dtype]
    x, residual, norm_weight, norm_bias = inputs.before
    weights: list[Tensor | None] = []
    for weight in (inputs.up, inputs.down):
        if weight is None:
            weights += None, None, None
        else:
            read = weight.codes
            if read is None:
                read = walkable(weight.weight)
            weights += read, weight.scale, addable(weight.bias, dtype)
    operands = fitted(norm_weight, x), fitted(norm_bias, x)
    given = (x, residual, *operands, None, None, *weights)
    y, total, kept, _ = layer_forward(given, tuple(inputs.options))
    return y, total, kept


class _Kept(NamedTuple):
    memory: Tensor | None
    normed: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    transposed: tuple[Tensor | None, ...] = ()


class _InGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Any:
        inputs: _Inputs = layout.record(tensors)
        operation, before, up, down, options = inputs
        y, total, kept = _forward(inputs)
        of_x = options.wanted[0] == "1"
        kept_values = _Kept(kept)
        if of_x and options.norm is not None:
            normed = before.x if total is None else total
            kept_values = _Kept(kept, normed, before.norm_weight, before.norm_bias)
        # A cast that backward has no product for is not handed to the op.
        transposed: list[Tensor | None] = [None] * 4
        if of_x:
            transposed[:2] = up.transposed, up.transposed_scale
        if down is not None and "1" in options.wanted[:3]:
            transposed[2:] = down.transposed, down.transposed_scale
        save(ctx, kept_values._replace(transposed=tuple(transposed)))
        ctx.operation, ctx.layout, ctx.options = operation, layout, options
        last = up if down is None else down
        ctx.sizes = (
            before.x.shape[-1],
            0 if down is None else down.weight.shape[1],
            last.weight.shape[0],
            0,  # experts
        )
        weights = (up.weight, up.bias, *((down.weight, down.bias) if down else (None, None)))
        ctx.dtypes = [
            "" if t is None or t.dtype not in NAMES else NAMES[t.dtype]
            for t in (*before[2:], None, *weights)
        ]
        return y if total is None else (y, total)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_sum: Tensor | None = None) -> tuple[Any, ...]:
        refuse_in_backward(ctx.operation, dy)
        kept: _Kept = saved(ctx)
        options: LayerOptions = ctx.options
        through_norm = kept.normed is not None
        operands: tuple[Tensor | None, ...] = (None, None)
        if kept.normed is not None:
            x = kept.normed
            operands = fitted(kept.norm_weight, x), fitted(kept.norm_bias, x)
        wanted = (through_norm, through_norm, False, *(each == "1" for each in options.wanted[1:]))
        dtypes = [
            name if is_wanted else ""
            for name, is_wanted in zip(ctx.dtypes, (*wanted, False, False), strict=False)
        ]
        more = GradientOptions._make((*ctx.sizes, ",".join(dtypes)))
        given = (
            walkable(dy),
            kept.memory,
            None if kept.normed is None else kept.normed.detach(),
            *operands,
            walkable(of_sum) if through_norm and of_sum is not None else None,
            *(None, None, None),
            *kept.transposed,
        )
        dx, dnorm_weight, dnorm_bias, _, *of_layers, _ = layer_backward(given, (*options, *more))
        dup, dup_bias, ddown, ddown_bias = of_layers
        gradients: tuple[Any, ...] = ctx.layout.gradients(
            ctx,
            before=(dx, dx, dnorm_weight, dnorm_bias),
            up=_gradients(dup, dup_bias),
            down=_gradients(ddown, ddown_bias) if ctx.sizes[1] else None,
        )
        return gradients


def _gradients(weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients by the fields of a _Weight."""
    return weight, bias, None, None, None, None
