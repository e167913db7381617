"""Expert layers as a function with a gradient: the ways to compute one, which one is taken, and the
checks that its arguments fit together."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.ops import quick_scale_shape, row_count
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._info import CAST, FP8, HIGH_PRECISION, TRAINED, WEIGHT_ONLY
from ..casting.casts import WeightCasts, as_operand, walkable
from ..casting.fp8_weight import Fp8Weight
from ..recipes.choice import FEW_TOKENS_OF_EXPERTS, require_compute
from ..recipes.kernels import expert_products, has_bfloat16
from .activated import is_gated
from .blocks import chain_recipe_of, require_activation
from .experts_composed import Terms, composed_experts
from .fitting import require_wide
from .functions import result_dtype
from .layer import Before, Chain, Layer
from .layer_call import in_one_process


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
    compute: str | None = None,
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
        octofold.nn.Experts). A ScaledTensor, as checkpoints have them, or octofold.nn.Fp8Weight,
        with scales of the recipe's granularity that octofold.grouped_gemm() takes, is used as it
        is, without a gradient.
    w2: [experts, hidden, inner], likewise.
    activation: as in octofold.mlp().
    recipe: as in octofold.linear(), with all products in FP8.
    b13, b2: [experts, out], one number for each row of the weights, of any of these dtypes.
    compute: how FP8 weights are computed with, where both are. "native": x and the activation are
        cast too, on GPUs that have grouped products of FP8, and on the CPU; others keep them in 16
        bits. "weight-only": 16 bits everywhere (ops.grouped_gemm_weight_only). "auto": as "native",
        but 16 bits for few tokens, where that is measured to be quicker. float32 is rounded to
        bfloat16 then (float16 before compute capability 8.0, which has no bfloat16 here). None: as
        an octofold.nn.Fp8Weight says itself, else "auto".

    A GPU without grouped products of FP8 computes with weights of high precision as torch does, in
    the dtype of x: on some GPUs such a call waits for the GPU.

    Only the device reads how many tokens an expert has: no call waits for it, and in a CUDA graph
    it may change from replay to replay. Rows are sorted by expert as they are cast; no expert's
    rows are padded.

    Returns [..., hidden] in the dtype of x, or in autocast's. Gradients have the dtypes of what
    they belong to. For backward are kept: in FP8 the rows of x and of the activation, transposed,
    for the weights, and the result of the first product; each has one row for each of a token's
    experts. What needs no gradient costs no product and no cast, but the routing weights' takes the
    product that leads back to the activation. Where nothing is to be differentiated, recipes of
    1x128 · 128x128 scales have product, gated activation and cast in one kernel, as octofold.mlp()
    has.
    Raises InvalidArgumentError, which names the argument; backward raises UnsupportedError where it
    is itself to be differentiated.
    """
    name = "experts"
    recipe = expert_recipe_of(name, recipe)
    require_activation(name, activation)
    own = compute_of(name, None, w13=w13, w2=w2)
    w13, w2 = as_operand(w13), as_operand(w2)
    require_projections(name, w13, w2, b13, b2, activation, recipe)
    require_same_device(name, x, w13)
    require_routed(name, x, topk_ids, topk_weights, w13.shape[2])
    compute = own if compute is None else compute
    require_compute(name, compute)
    compute = chosen_compute(x, w13, w2, compute)
    layers = layer_of_experts(w13, b13), layer_of_experts(w2, b2)
    chain = Chain(name, recipe, activation=activation)
    return run_experts(x, topk_ids, topk_weights, layers, chain, compute)


def layer_of_experts(
    weight: Tensor | ScaledTensor,
    bias: Tensor | None,
    casts: WeightCasts | None = None,
    main_grad: Tensor | None = None,
) -> Layer:
    """One of the two layers of all experts. FP8 weights are their casts."""
    if isinstance(weight, ScaledTensor):
        return Layer((), bias, (weight, None))
    return Layer((weight,), bias, casts, (main_grad,))


def run_experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    layers: tuple[Layer, Layer],
    chain: Chain,
    compute: str,
    terms: Terms = (None, None),
    gate: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """experts() of arguments that fit, computed as chosen_compute() gives. For HIGH_PRECISION the
    layers have no casts. With WEIGHT_ONLY nothing is cast to FP8: rows are of the dtype of the
    result; for float32 they are rounded to bfloat16 (float16 where a GPU's tensor cores have no
    bfloat16), and results are not. terms: low-rank ones beside FP8 weights. gate: in the place of
    the chain's activation."""
    is_vector, experts = x.dim() == 1, layers[0].shape()[0]
    if is_vector:
        x, topk_ids, topk_weights = x[None], topk_ids[None], topk_weights[None]
    if topk_ids.dtype != torch.int32:
        topk_ids = topk_ids.clamp(-2, experts).to(torch.int32)  # no other becomes an expert's
    shares = topk_weights.to(torch.float32).contiguous()
    before = Before(walkable(x), topk_weights=shares, topk_ids=walkable(topk_ids))
    dtype = result_dtype(x)
    if compute == WEIGHT_ONLY:
        half = dtype
        if half == torch.float32:
            half = torch.bfloat16 if has_bfloat16(x.device) else torch.float16
        before, chain = before._replace(x=before.x.to(half)), chain._replace(weight_only=half)
    if compute == HIGH_PRECISION or any(terms) or gate is not None:
        y = composed_experts(chain, before, layers, dtype, terms, gate)
    else:
        y = in_one_process(chain, before, layers, dtype)[0]
    return y[0] if is_vector else y


def compute_of(operation: str, compute: str | None, **weights: Tensor | ScaledTensor | None) -> str:
    """How experts compute: as asked, and as each Fp8Weight says. Raises where these do not fit."""
    require_compute(operation, "auto" if compute is None else compute)
    coded = {name: weight for name, weight in weights.items() if isinstance(weight, Fp8Weight)}
    for name, weight in coded.items():
        require_compute(operation, weight.compute)
        for option in ("compute_dtype", "recipe", "few_tokens", "batch_invariant"):
            if value := getattr(weight, option):
                expected = f"an Fp8Weight without {option}: experts have a recipe of their own"
                raise invalid_argument(operation, name, expected, value)
        if compute not in (None, weight.compute):
            expected = f"compute={compute}, as asked or as the other weight has it"
            raise invalid_argument(operation, name, expected, weight.compute)
        compute = weight.compute
    return compute or "auto"


def chosen_compute(
    x: Tensor, first: Tensor | ScaledTensor, second: Tensor | ScaledTensor, compute: str
) -> str:
    """NATIVE, WEIGHT_ONLY or HIGH_PRECISION: where x is, with these weights. compute: one of
    COMPUTE, for weights that both are FP8."""
    if not (isinstance(first, ScaledTensor) and isinstance(second, ScaledTensor)):
        return expert_products(x.device, TRAINED)
    few = compute == "auto" and row_count(x.shape) <= FEW_TOKENS_OF_EXPERTS
    if few or compute == WEIGHT_ONLY:
        return WEIGHT_ONLY
    how = expert_products(x.device, FP8)
    return WEIGHT_ONLY if how == CAST else how  # whose error says what there is no kernel for


def expert_recipe_of(operation: str, recipe: Recipe | str) -> Recipe:
    """A recipe for experts, with all three products in FP8: there are no grouped products of high
    precision to go with them."""
    recipe = chain_recipe_of(operation, recipe)
    assert recipe.output is not None
    if recipe.grad_input is None or recipe.grad_weight is None:
        expected = "one whose products are all in FP8"
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    if "128x128" in (recipe.output.a.granularity, recipe.grad_input.a.granularity):
        expected = "one whose rows have scales of 1x128, channel or tensor: squares are of tokens "
        expected += "of several experts"
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    return recipe


def require_counts(operation: str, **counts: object) -> None:
    """Whole numbers of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise invalid_argument(operation, name, "a whole number of at least 1", repr(value))


def require_projections(
    operation: str,
    first: Tensor | ScaledTensor,
    second: Tensor | ScaledTensor,
    first_bias: Tensor | None,
    second_bias: Tensor | None,
    activation: str,
    recipe: Recipe,
    names: tuple[str, str, str, str] = ("w13", "w2", "b13", "b2"),
) -> None:
    """Weights [experts, features, hidden] and [experts, hidden, inner], where the activation makes
    `inner` of the features; biases of their rows; on one device. Raises InvalidArgumentError that
    names the one that does not fit."""
    require_weight(operation, names[0], first, recipe)
    require_weight(operation, names[1], second, recipe)
    experts, features, hidden = first.shape
    if is_gated(activation) and features % 2 != 0:
        expected = f"[experts, 2·inner, hidden], gate and up, as {activation} takes them"
        raise invalid_argument(operation, names[0], expected, list(first.shape))
    inner = features // 2 if is_gated(activation) else features
    if tuple(second.shape) != (experts, hidden, inner):
        expected = f"[{experts}, {hidden}, {inner}] for {names[0]} {list(first.shape)}"
        raise invalid_argument(operation, names[1], expected, list(second.shape))
    for name, bias, weight in (
        (names[2], first_bias, first),
        (names[3], second_bias, second),
    ):
        if bias is None:
            continue
        require_wide(operation, name, bias)
        if tuple(bias.shape) != tuple(weight.shape[:2]):
            expected = f"{list(weight.shape[:2])} for weights {list(weight.shape)}"
            raise invalid_argument(operation, name, expected, list(bias.shape))
    device = _codes(first).device
    for name, tensor in zip(names[1:], (_codes(second), first_bias, second_bias), strict=True):
        if tensor is not None and tensor.device != device:
            expected = f"a tensor on {device}, where {names[0]} is"
            raise invalid_argument(operation, name, expected, tensor.device)


def require_routed(
    operation: str, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, hidden: int
) -> None:
    """x [..., hidden], ids and weights [..., k] of its tokens, on its device."""
    require_wide(operation, "x", x)
    if x.dim() == 0 or x.shape[-1] != hidden:
        expected = f"[..., {hidden}], as the experts take"
        raise invalid_argument(operation, "x", expected, list(x.shape))
    if not isinstance(topk_ids, Tensor) or topk_ids.dtype not in (torch.int32, torch.int64):
        got = topk_ids.dtype if isinstance(topk_ids, Tensor) else type(topk_ids).__qualname__
        expected = "a torch tensor of int32 or int64"
        raise invalid_argument(operation, "topk_ids", expected, got)
    tokens, shape = x.shape[:-1], topk_ids.shape
    if topk_ids.dim() != x.dim() or shape[:-1] != tokens or shape[-1] == 0:
        words = "".join(f"{size}, " for size in tokens)
        expected = f"[{words}k], k of at least 1 experts for each token of x {list(x.shape)}"
        raise invalid_argument(operation, "topk_ids", expected, list(shape))
    require_wide(operation, "topk_weights", topk_weights)
    if topk_weights.shape != shape:
        expected = f"{list(shape)}, the shape of topk_ids"
        raise invalid_argument(operation, "topk_weights", expected, list(topk_weights.shape))
    for name, tensor in (("topk_ids", topk_ids), ("topk_weights", topk_weights)):
        if tensor.device != x.device:
            expected = f"a tensor on {x.device}, where x is"
            raise invalid_argument(operation, name, expected, tensor.device)


def require_same_device(operation: str, x: Tensor, weight: Tensor | ScaledTensor) -> None:
    """x where the experts are."""
    device = _codes(weight).device
    if x.device != device:
        expected = f"a tensor on {device}, where the experts are"
        raise invalid_argument(operation, "x", expected, x.device)


def require_weight(
    operation: str, name: str, weight: Tensor | ScaledTensor, recipe: Recipe
) -> None:
    """One of the two weights; in FP8 with scales of each expert, or of one matrix of all rows."""
    if isinstance(weight, ScaledTensor):
        assert recipe.output is not None
        granularity = recipe.output.b.granularity
        if weight.granularity != granularity:
            expected = f"scales of {granularity}, as the recipe {recipe} has weights"
            raise invalid_argument(operation, name, expected, weight.granularity)
        if not isinstance(weight.data, Tensor):
            got = type(weight.data).__qualname__
            raise invalid_argument(operation, name, "a ScaledTensor of torch tensors", got)
    else:
        require_wide(operation, name, weight)
    if len(weight.shape) != 3 or 0 in weight.shape:
        expected = "[experts, out, in] with at least 1 of each"
        raise invalid_argument(operation, name, expected, list(weight.shape))
    if isinstance(weight, ScaledTensor):
        shape, scales = tuple(weight.shape), tuple(weight.scale.shape)
        apart, whole = (quick_scale_shape(granularity, shape, n) for n in (shape[0], None))
        if scales != apart and (scales != whole or (granularity == "128x128" and shape[1] % 128)):
            raise invalid_argument(operation, name, f"scales {[*apart]} for {[*shape]}", [*scales])


def _codes(weight: Tensor | ScaledTensor) -> Tensor:
    data: Tensor = weight.data if isinstance(weight, ScaledTensor) else weight
    return data
