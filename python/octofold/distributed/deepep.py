"""Experts between DeepEP's dispatch and combine: its buffers in, its buffers out.

DeepEP (https://github.com/deepseek-ai/DeepEP) moves tokens between GPUs by kernels of its own. It
comes in two modes, whose layouts its deep_ep/buffer.py describes; Octofold needs no DeepEP to
compute on them.

| mode        | what arrives                                 | what goes back                      |
|-------------|----------------------------------------------|-------------------------------------|
| normal      | tokens one behind the other, each once, with | their weighted sums over this       |
|             | its choices: `contiguous_experts`            | rank's experts, BF16                |
| low latency | for each expert places for all that may      | each expert's results, in the same  |
|             | come, the first of which count:              | places, BF16; DeepEP's combine      |
|             | `masked_experts`                             | weights them                        |
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from .._core.errors import invalid_argument
from .._core.ops import ceil_divide
from .._core.recipe import Recipe
from .._core.scaled_tensor import ScaledTensor
from .._core.torch import FLOAT8
from .._ops.cast import cast
from .._ops.cast_sources import Activated
from .._ops.grouped_gemm import Masked, grouped_gemm
from .._ops.routing import sort_by_expert
from .._ranks.wire import as_products_read
from ..nn.autograd.blocks import require_activation
from ..nn.autograd.experts import expert_recipe_of, layer_of_experts, require_projections
from ..nn.autograd.layer import Chain, Needs
from ..nn.autograd.products import addable
from ..nn.casting.casts import as_operand
from .expert_parallel.rank_experts import (
    ExpertInputs,
    ExpertLayer,
    compute_experts,
    expert_gradients,
)

_CONTIGUOUS: Final = "octofold.distributed.deepep.contiguous_experts"
_MASKED: Final = "octofold.distributed.deepep.masked_experts"

Received = Tensor | tuple[Tensor, Tensor]
"""BF16 tokens, or codes and scales (float32, one for 128 columns)."""


class ContiguousGradients(NamedTuple):
    """The gradients of contiguous_experts().

    x: bfloat16 [received, hidden], for Buffer.combine().
    weights: float32 [received, k], for the topk_weights of Buffer.combine().
    w13, w2, b13, b2: by this rank's experts, in their dtypes; None for what requires none.
    """

    x: Tensor
    weights: Tensor
    w13: Tensor | None
    w2: Tensor | None
    b13: Tensor | None
    b2: Tensor | None


def contiguous_experts(
    recv_x: Received,
    recv_topk_idx: Tensor,
    recv_topk_weights: Tensor,
    w13: Tensor | ScaledTensor,
    w2: Tensor | ScaledTensor,
    activation: str = "swiglu",
    recipe: Recipe | str = "blockwise",
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    *,
    rows: int | None = None,
) -> tuple[Tensor, Callable[[Received], ContiguousGradients]]:
    """Compute on what Buffer.dispatch() gives, in normal mode.

    recv_x: bfloat16 [received, hidden], or a pair of codes, float8_e4m3fn [received, hidden], and
        scales, float32 [received, hidden / 128]. A recipe of 1x128 scales takes codes as they come.
    recv_topk_idx: int64 or int32 [received, k]: this rank's experts, from 0 on, or -1.
    recv_topk_weights: float32 [received, k].
    w13, w2, b13, b2: those of this rank's experts, as in octofold.experts().
    activation, recipe: as in octofold.experts().
    rows: how many choices of this rank's experts there are, at most: the sum of
        num_recv_tokens_per_expert_list, which the host has; it saves memory. None: received · k.

    Returns the sums [received, hidden], bfloat16, over this rank's experts of weight · result, as
    Buffer.combine() adds them up; and a function for training. It takes what dispatch() gives for
    the gradient by combine()'s result (with the handle of forward: bfloat16, or codes and scales),
    and gives ContiguousGradients; called or not, it holds what backward needs. Nothing of it is
    torch's autograd. Weights' gradients of codes are products of what is cast again from their
    values.
    Raises InvalidArgumentError, which names the argument.
    """
    name, w13, w2 = _CONTIGUOUS, as_operand(w13), as_operand(w2)
    recipe = expert_recipe_of(name, recipe)
    require_activation(name, activation)
    require_projections(name, w13, w2, b13, b2, activation, recipe)
    assert recipe.output is not None
    x = _tokens(name, "recv_x", recv_x, recipe.output.a.granularity, w13.shape[2])
    _require_choices(name, x, recv_topk_idx, recv_topk_weights)
    experts = w13.shape[0]
    ids = torch.where(recv_topk_idx < experts, recv_topk_idx, -1).to(torch.int32)
    weights = recv_topk_weights.contiguous()
    routing = sort_by_expert(ids, experts)
    used = routing.offsets
    first, second = (
        layer_of_experts(*layer).with_casts(recipe, False, used) for layer in ((w13, b13), (w2, b2))
    )
    if rows is not None:
        routing = routing._replace(sources=routing.sources[:rows])
    wanted = torch.is_grad_enabled()
    trained = (w13, w2, b13, b2)
    flags = (isinstance(t, Tensor) and t.requires_grad for t in trained)
    needs = Needs(wanted, wanted, *(wanted and flag for flag in flags))
    chain = Chain(name, recipe, activation=activation)
    inputs = ExpertInputs(x, weights, routing, ids, (first, second), chain, torch.bfloat16)
    with torch.no_grad():
        out, kept = compute_experts(inputs, needs)
    layer = ExpertLayer.of(inputs)

    def backward(recv_dy: Received) -> ContiguousGradients:
        if not wanted:
            expected = "forward outside of torch.no_grad()"
            raise invalid_argument(name, "recv_dy", expected, "forward without what backward takes")
        assert recipe.grad_input is not None
        dy = _tokens(name, "recv_dy", recv_dy, recipe.grad_input.a.granularity, w13.shape[2])
        with torch.no_grad():
            gradients = expert_gradients(kept, needs, layer, dy, torch.bfloat16)
        assert gradients.x is not None
        assert gradients.weights is not None
        (d13, db13), (d2, db2) = gradients.layers
        return ContiguousGradients(gradients.x, gradients.weights, d13, d2, db13, db2)

    return out, backward


def masked_experts(
    packed_recv_x: Received,
    packed_recv_count: Tensor,
    w13: Tensor | ScaledTensor,
    w2: Tensor | ScaledTensor,
    activation: str = "swiglu",
    recipe: Recipe | str = "blockwise",
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    *,
    expected_rows: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute on what Buffer.low_latency_dispatch() gives: inference, without a gradient.

    packed_recv_x: with use_fp8=True codes, float8_e4m3fn [experts, places, hidden], and scales,
        float32 [experts, places, hidden / 128] of any strides (DeepEP's lie column by column); or
        bfloat16 [experts, places, hidden]. Experts are this rank's, places ranks · tokens that a
        rank may send.
    packed_recv_count: int32 [experts], on the device: how many of the places count.
    w13, w2, b13, b2: those of this rank's experts, as in octofold.experts(). In high precision they
        are cast in each call.
    activation, recipe: as in octofold.experts(), not of one scale for all ("tensor").
    expected_rows: about how many rows an expert gets, by which kernels are chosen: the host does
        not read how many there are.
    out: where to write, bfloat16 [experts, places, hidden], such as
        Buffer.get_next_low_latency_combine_buffer(handle).

    Returns [experts, places, hidden], bfloat16, as Buffer.low_latency_combine() takes it; places
    that do not count stay what they were. The host waits for nothing, and a CUDA graph can hold it.
    Places that do not count are cast too, as casts do not know of them, and multiplied with
    nothing.
    Raises InvalidArgumentError, which names the argument.
    """
    name, w13, w2 = _MASKED, as_operand(w13), as_operand(w2)
    recipe = expert_recipe_of(name, recipe)
    require_activation(name, activation)
    require_projections(name, w13, w2, b13, b2, activation, recipe)
    output = recipe.output
    assert output is not None
    if output.a.granularity == "tensor":
        expected = "one of scales for rows, as places that do not count would share one"
        raise invalid_argument(name, "recipe", expected, str(recipe))
    x = _tokens(name, "packed_recv_x", packed_recv_x, output.a.granularity, w13.shape[2])
    if len(x.shape) != 3 or x.shape[0] != w13.shape[0]:
        expected = f"[{w13.shape[0]}, places, {w13.shape[2]}] of this rank's experts"
        raise invalid_argument(name, "packed_recv_x", expected, list(x.shape))
    with torch.no_grad():
        first, second = (
            layer_of_experts(w, None).with_casts(recipe, False).rows() for w in (w13, w2)
        )
        rows = x if isinstance(x, ScaledTensor) else cast(x, rows=output.a).rows
        groups = Masked(packed_recv_count, expected_rows)
        how = {
            "fast_accumulation": output.fast_accumulation,
            "batch_invariant": output.batch_invariant,
        }
        b13, b2 = addable(b13, torch.bfloat16), addable(b2, torch.bfloat16)
        gate_up = grouped_gemm(rows, first, groups, bias=b13, **how)
        h = cast(Activated(gate_up, activation), rows=output.a).rows
        y: Tensor = grouped_gemm(h, second, groups, bias=b2, out=out, **how)
    return y


def _tokens(
    operation: str, argument: str, received: Received, granularity: str, hidden: int
) -> Tensor | ScaledTensor:
    """Tokens [..., hidden] as casts or products take them. Scales of a recipe's other granularity
    are taken back to values, as another cast is wanted."""
    if isinstance(received, Tensor):
        if received.dtype != torch.bfloat16 or received.shape[-1] != hidden:
            got = f"{received.dtype} {list(received.shape)}"
            raise invalid_argument(operation, argument, f"bfloat16 [..., {hidden}]", got)
        return received
    codes, scale = received
    wanted = (*codes.shape[:-1], ceil_divide(hidden, 128))
    if codes.dtype not in FLOAT8 or codes.shape[-1] != hidden:
        got = f"{codes.dtype} {list(codes.shape)}"
        raise invalid_argument(operation, argument, f"float8_e4m3fn [..., {hidden}]", got)
    if scale.dtype != torch.float32 or scale.shape != wanted:
        expected = f"scales of float32 {list(wanted)} (DeepEP's without use_ue8m0)"
        got = f"{scale.dtype} {list(scale.shape)}"
        raise invalid_argument(operation, argument, expected, got)
    scale = as_products_read(scale, "1x128") if scale.is_cuda else scale.contiguous()
    tokens = ScaledTensor(codes, scale, "1x128")
    if granularity == "1x128":
        return tokens
    values: Tensor = tokens.dequantize(torch.bfloat16)
    return values


def _require_choices(
    operation: str, x: Tensor | ScaledTensor, ids: Tensor, weights: Tensor
) -> None:
    if len(x.shape) != 2:
        expected = "[received, hidden]"
        raise invalid_argument(operation, "recv_x", expected, list(x.shape))
    if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 2 or len(ids) != x.shape[0]:
        expected = f"int64 or int32 [{x.shape[0]}, k]"
        got = f"{ids.dtype} {list(ids.shape)}"
        raise invalid_argument(operation, "recv_topk_idx", expected, got)
    if weights.dtype != torch.float32 or weights.shape != ids.shape:
        expected, got = f"float32 {list(ids.shape)}", f"{weights.dtype} {list(weights.shape)}"
        raise invalid_argument(operation, "recv_topk_weights", expected, got)
