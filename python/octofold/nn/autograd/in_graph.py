"""A layer where torch has to know of it (compilers, modes, policies of checkpointing): its two
passes are the ops layer_forward and layer_backward, which make the calls that eager layers make."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.torch import LIBRARY_TAKES_TENSORS, NAMES
from ..._core.torch_ops import torch_is_watching
from ..._ops.layer_ops import LayerOptions, layer_backward, layer_forward, text_of
from ..._ops.layer_passes import fits
from ..casting.casts import walkable
from .chain_call import (
    Before,
    Chain,
    Layer,
    TransposedWeight,
    all_or_none_cast,
    chain_in_one_call,
    routing_of,
    transposed_weights,
    wanted_of,
)
from .functions import Layout, differentiates, flatten, refuse_in_backward, save, saved
from .normed import fitted


def fused(
    chain: Chain, before: Before, layers: tuple[Layer, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """The result of arguments that fit, in one call each way, and what was normed; None for recipes
    that are not all FP8."""
    recipe, norm = chain.recipe, chain.norm
    wanted = wanted_of(before, layers)
    if not fits(recipe, wanted):
        return None
    layers = all_or_none_cast(layers, recipe)
    results = chain_in_one_call(chain, before, layers, dtype, wanted)
    is_routed = before.topk_ids is not None
    # Casts and products one after another do as well, but for experts.
    if results or not (is_routed or (torch_is_watching() and LIBRARY_TAKES_TENSORS)):
        return results
    options = LayerOptions(
        recipe=text_of(recipe),
        norm=None if norm is None else norm.kind,
        epsilon=0.0 if norm is None else norm.epsilon,
        activation=chain.activation,
        keep_fp8=chain.keep_fp8,
        has_up_bias=layers[0].bias is not None,
        has_down_bias=layers[-1].bias is not None,
        weight_only=chain.rows_dtype,
        are_cast=layers[0].casts is not None,
        wanted="".join(["1" if each else "0" for each in wanted]),
        x_dtype=NAMES[before.x.dtype],
        y_dtype=NAMES[dtype],
    )
    inputs = _Inputs(chain, before, layers, dtype, options)
    parameters = (t for layer in layers for t in layer.parameters())
    if not differentiates(chain.name, *before, *parameters):
        y, total, _ = _forward(inputs)
        return y, before.x if total is None else total
    layout, flat = flatten(inputs)
    made = _InGraph.apply(layout, *flat)  # type: ignore[no-untyped-call]
    return made if before.residual is not None else (made, before.x)


class _Inputs(NamedTuple):
    chain: Chain
    before: Before
    layers: tuple[Layer, ...]
    dtype: torch.dtype
    """The dtype of the result."""
    options: LayerOptions


def _forward(inputs: _Inputs) -> tuple[Tensor, Tensor | None, Tensor | None]:
    x, residual, norm_weight, norm_bias, shares, ids = inputs.before
    weights = [t for layer in inputs.layers for t in layer.operands(inputs.dtype)]
    weights += [None] * (6 - len(weights))
    operands = fitted(norm_weight, x), fitted(norm_bias, x)
    given = (x, residual, *operands, ids, shares, *weights)
    y, total, kept, _ = layer_forward(given, tuple(inputs.options))
    return y, total, kept


class _Kept(NamedTuple):
    memory: Tensor | None
    normed: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    routing: tuple[Tensor | None, ...]
    transposed: tuple[TransposedWeight, ...]


class _InGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Any:
        inputs: _Inputs = layout.record(tensors)
        chain, before, layers, dtype, options = inputs
        y, total, kept = _forward(inputs)
        wanted = tuple(each == "1" for each in options.wanted)
        normed = norm_weight = norm_bias = None
        if wanted[0] and chain.norm is not None:
            normed = before.x if total is None else total
            norm_weight, norm_bias = before.norm_weight, before.norm_bias
        # A cast that backward has no product for is not handed to the op.
        transposed = transposed_weights(chain, layers, wanted)
        routing = routing_of(before, layers, dtype, wanted)
        save(ctx, _Kept(kept, normed, norm_weight, norm_bias, routing, transposed))
        ctx.layout, ctx.chain, ctx.options, ctx.wanted = layout, chain, options, wanted
        experts = 0 if before.topk_ids is None else layers[-1].shape[0]
        hidden = layers[1].shape[-1] if len(layers) == 2 else 0
        ctx.sizes = before.x.shape[-1], hidden, layers[-1].shape[-2], experts
        ctx.norm_dtypes = [None if t is None else t.dtype for t in (norm_weight, norm_bias)]
        ctx.targets = [layer.targets() for layer in layers]
        return y if total is None else (y, total)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_sum: Tensor | None = None) -> tuple[Any, ...]:
        refuse_in_backward(ctx.chain.name, dy)
        kept: _Kept = saved(ctx)
        x, norm_weight, norm_bias = kept.normed, None, None
        if x is not None:
            norm_weight, norm_bias = fitted(kept.norm_weight, x), fitted(kept.norm_bias, x)
        transposed: list[Tensor | None] = []
        for weight in kept.transposed:
            transposed += weight.operand(ctx.chain.recipe)
        transposed += [None] * (4 - len(transposed))
        of_layers = ctx.wanted[-2 * len(ctx.targets) :]
        dtypes = [*ctx.norm_dtypes, torch.float32 if ctx.sizes[3] and ctx.wanted[1] else None]
        for index, target in enumerate(ctx.targets):
            both = target.dtype, target.bias_dtype
            wanted = of_layers[2 * index : 2 * index + 2]
            dtypes += [of if each else None for of, each in zip(both, wanted, strict=True)]
        dtypes += [None] * (7 - len(dtypes))
        names = ",".join(["" if of is None else NAMES[of] for of in dtypes])
        given = (
            walkable(dy),
            kept.memory,
            None if x is None else x.detach(),
            norm_weight,
            norm_bias,
            None if of_sum is None or x is None else walkable(of_sum),
            *kept.routing,
            *transposed,
        )
        dx, d_norm, d_norm_bias, d_shares, *of_both, _ = layer_backward(
            given, (*ctx.options, *ctx.sizes, names)
        )
        gradients = []
        for target, dw, db in zip(ctx.targets, of_both[::2], of_both[1::2], strict=False):
            if dw is not None and target.added_to is not None:
                target.added_to.add_(dw)
            gradients.append((None if dw is None else target.handed_out(dw), db))
        made: tuple[Any, ...] = ctx.layout.gradients(
            ctx, before=(dx, dx, d_norm, d_norm_bias, d_shares, None), layers=gradients
        )
        return made
