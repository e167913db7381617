"""Expert layers as a function with a gradient."""

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._layer_ways import LEFT
from ..casting.casts import cast_weight
from ..recipes.choice import require_compute
from .blocks import require_activation
from .expert_chain import Projection
from .expert_fitting import (
    expert_recipe_of,
    require_projections,
    require_routed,
    require_same_device,
)
from .expert_inputs import routed_tokens
from .expert_ways import chosen_way, run_experts


def experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w13: Tensor | ScaledTensor,
    w2: Tensor | ScaledTensor,
    activation: str = "swiglu",
    recipe: Recipe | str = "blockwise",
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    compute: str = "auto",
) -> Tensor:
    """Compute a layer of experts in FP8, differentiable. For each token t the result is the sum
    over its experts e = topk_ids[t, j] of topk_weights[t, j] ·
    (activation(x[t] · w13[e]ᵀ (+ b13[e])) · w2[e]ᵀ (+ b2[e])).

    x: [..., hidden] bfloat16, float16 or float32, any strides; zero tokens too.
    topk_ids: [..., k] int32 (as octofold.ops.top_k() gives them) or int64, on the device of x: -1
        goes nowhere, and adds nothing. Ids of experts that do not exist are an error on the CPU; on
        a GPU they go nowhere too.
    topk_weights: [..., k] of any of the dtypes of x; float32 is best.
    w13: [experts, 2·inner, hidden] for a gated activation, each expert's gate rows first; else
        [experts, inner, hidden]. In high precision, of any of these dtypes, it is cast in each
        call, as far as experts have tokens (octofold.nn.keep_casts() keeps the casts of
        octofold.nn.Experts). A ScaledTensor, as checkpoints have them, with scales of the recipe's
        granularity that octofold.grouped_gemm() takes, is used as it is, without a gradient.
    w2: [experts, hidden, inner], likewise.
    activation: as in octofold.mlp().
    recipe: as in octofold.linear(), with all products in FP8.
    b13, b2: [experts, out], one number for each row of the weights, of any of these dtypes.
    compute: how FP8 weights are computed with, where both are. "native": x and the activation are
        cast too, on GPUs that have grouped products of FP8, and on the CPU; others keep them in 16
        bits. "weight-only": 16 bits everywhere (ops.grouped_gemm_weight_only). "auto": as "native",
        but 16 bits for few tokens, where that is measured to be quicker. float32 is rounded to
        bfloat16 then (float16 before compute capability 8.0, which has no bfloat16 here).

    A GPU without grouped products of FP8 computes with weights of high precision as torch does, in
    the dtype of x: on some GPUs such a call waits for the GPU.

    Only the device reads how many tokens an expert has: no call waits for it, and in a CUDA graph
    it may change from replay to replay. Rows are sorted by expert as they are cast; no expert's
    rows are padded.

    Returns [..., hidden] in the dtype of x, or in autocast's. Gradients have the dtypes of what
    they belong to. For backward are kept: in FP8 the rows of x and of the activation, transposed,
    for the weights; the result of the first product; and, where the routing weights need a
    gradient, that of the second. Each has one row for each of a token's experts. What needs no
    gradient costs no product and no cast. Where nothing is to be differentiated, recipes of 1x128 ·
    128x128 scales have product, gated activation and cast in one kernel, as octofold.mlp() has.
    Raises InvalidArgumentError, which names the argument; backward raises UnsupportedError where it
    is itself to be differentiated.
    """
    name = "experts"
    recipe = expert_recipe_of(name, recipe)
    require_activation(name, activation)
    require_projections(name, w13, w2, b13, b2, activation, recipe)
    require_same_device(name, x, w13)
    require_routed(name, x, topk_ids, topk_weights, w13.shape[2])
    require_compute(name, compute)
    grad = torch.is_grad_enabled()
    way = chosen_way(x, w13, w2, compute)
    tokens = routed_tokens(x, topk_ids, topk_weights, w13.shape[0])
    if way == LEFT:
        first, second = (uncast_projection(w, b) for w, b in ((w13, b13), (w2, b2)))
    else:
        used = tokens.routing.offsets
        first = projection_of(w13, b13, recipe, grad and x.requires_grad, used)
        both = grad and (x.requires_grad or first.needs_gradient())
        second = projection_of(w2, b2, recipe, both, used)
    return run_experts(x, tokens, first, second, activation, recipe, way)


def uncast_projection(
    weight: Tensor | ScaledTensor, bias: Tensor | None, main_grad: Tensor | None = None
) -> Projection:
    """Without casts beside what is FP8 already."""
    if isinstance(weight, ScaledTensor):
        return Projection(None, bias, (weight, None))
    return Projection(weight, bias, (None, None), main_grad)


def projection_of(
    weight: Tensor | ScaledTensor,
    bias: Tensor | None,
    recipe: Recipe,
    transposed: bool,
    used: Tensor | None = None,
) -> Projection:
    """With casts that are made now, the transposed one if wanted; of FP8 backward makes it. used:
    the routing's offsets, if experts without tokens are to be left out."""
    if isinstance(weight, ScaledTensor):
        return uncast_projection(weight, bias)
    return Projection(weight, bias, cast_weight(weight, recipe, True, transposed, used=used))
