"""Routing of tokens to experts and back: the experts of a token, the order of rows expert by
expert, and the weighted sum of the experts' results.
"""

from functools import partial
from typing import Final, NamedTuple

from .._core.calls import Op
from .._core.errors import invalid_argument
from .._core.formats import WIDE, DTypeLike, dtype_name, dtype_of_result
from .._core.frameworks import Array, Framework, StreamLike
from .._core.ops import Arrays, Options, require_matrix, row_count


class TopK(NamedTuple):
    """The results of top_k().

    ids: the experts of each token, best first: int32 [..., k].
    weights: float32 [..., k].
    """

    ids: Array
    weights: Array


class Routing(NamedTuple):
    """The results of sort_by_expert(), for ids [..., k] of T tokens: int32.

    offsets: [experts + 1]; rows offsets[e] … offsets[e + 1] are those of expert e.
    sources: [T · k]; the flat slot t · k + j of each row, -1 from offsets[experts] on.
    positions: [..., k]; the row of each slot, -1 for slots that go nowhere.
    """

    offsets: Array
    sources: Array
    positions: Array


def top_k(
    logits: Array,
    k: int,
    *,
    scoring: str = "softmax",
    normalize: bool = False,
    bias: Array | None = None,
    groups: int = 1,
    top_groups: int = 1,
    scaling_factor: float = 1.0,
    stream: StreamLike | None = None,
) -> TopK:
    """Choose the k best experts of each token, and their weights.

    logits: [..., experts] float32, float16 or bfloat16; columns contiguous, any row stride.
    k: from 1 to the number of experts. On a GPU at most 32, of 1024 experts (UnsupportedError).
    scoring: "softmax", over all experts, as in Mixtral (normalize=True) and Qwen3-MoE (normalize as
        norm_topk_prob); or "sigmoid", of each expert by itself, as in DeepSeek-V3
        (arXiv:2412.19437, section 2.1.2).
    normalize: divide the weights by their sum (sigmoid: + 1e-20).
    bias: float32 [experts], for sigmoid: added to the scores for the choice, not for the weights.
    groups: for sigmoid: the experts form so many groups of equal size, of at least two experts; on
        a GPU at most 32 groups.
    top_groups: so many groups stay, those with the largest sums of their two best choices; together
        they have at least k experts.
    scaling_factor: the factor by which the weights are multiplied at the end.
    stream: as in gemm().

    Scores and weights are FP32; on CPU and GPU they may differ in their last bits. The k experts
    stand in the order of descending choice (softmax: of logits). Among equal choices, and equal
    groups, the lower index comes first; NaN is above all numbers. top_k_gradient() has the
    gradient.
    Raises InvalidArgumentError, which names the argument.
    """
    options = (k, scoring, normalize, groups, top_groups, scaling_factor)
    return TopK(*_TOP_K((logits, bias), options, "", None, stream))


def top_k_gradient(
    gradient: Array,
    logits: Array,
    ids: Array,
    *,
    scoring: str = "softmax",
    normalize: bool = False,
    scaling_factor: float = 1.0,
    stream: StreamLike | None = None,
) -> Array:
    """Compute the gradient by logits of the weights of top_k(): [..., experts] of the dtype of
    logits.

    gradient: that by the weights, float32 [..., k].
    logits, scoring, normalize, scaling_factor: as they were given to top_k(). The bias and the
        groups do not affect the gradient.
    ids: as top_k() returned them. -1 is a slot that counts for nothing.
    stream: as in gemm().

    Arithmetic is FP32 (on the CPU FP64), and each result is rounded once. Ids of experts that do
    not exist count as -1 on a GPU, and raise InvalidArgumentError on the CPU.
    """
    return _TOP_K_GRADIENT(
        (gradient, logits, ids), (scoring, normalize, scaling_factor), "", None, stream
    )[0]


def sort_by_expert(ids: Array, experts: int, *, stream: StreamLike | None = None) -> Routing:
    """Find the order of rows expert by expert, and within an expert by flat slot.

    ids: the experts of tokens, int32 [..., k]: from 0 to experts - 1, or -1 for slots that go
        nowhere; columns contiguous, any row stride; fewer than 2^31 slots.
    experts: the number of experts; on a GPU at most 2048 (UnsupportedError).
    stream: as in gemm().

    The host reads nothing, and the same ids give the same result. Ids of experts that do not exist
    count as -1 on a GPU, and raise InvalidArgumentError on the CPU.
    """
    return Routing(*_SORT_BY_EXPERT((ids,), (experts,), "", None, stream)[:3])


def combine(
    y: Array,
    positions: Array,
    weights: Array | None = None,
    *,
    c: Array | None = None,
    out_dtype: DTypeLike | None = None,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """Compute out[t] = (c[t] +) Σ_j weights[t, j] · y[positions[t, j]].

    y: [rows, cols] float32, float16 or bfloat16; columns contiguous, any row stride. On a GPU rows
        whose addresses and lengths are multiples of 16 bytes are read fastest.
    positions: int32 [..., k], as sort_by_expert() returns them; a number that is no row of y adds
        nothing.
    weights: float32 [..., k]; None: ones.
    c: [..., cols] of out's dtype; may be `out` itself, to which the sum is then added in place.
    out_dtype: the dtype of the result; by default that of `out`, else that of y.
    out: where to write, [..., cols]; as in gemm().
    stream: as in gemm().

    Each product and each sum is rounded to FP32 by itself, c first and then j in order; the result
    is rounded once. CPU and GPU give the same bits. combine_gradient() has the gradient by weights.
    Positions below -1 and beyond the rows of y raise InvalidArgumentError on the CPU, and add
    nothing on a GPU.
    """
    name = dtype_of_result("combine", out, out_dtype, "")
    results = None if out is None else (out,)
    return _COMBINE((y, positions, weights, c), (), name, results, stream)[0]


def combine_gradient(
    gradient: Array, y: Array, positions: Array, *, stream: StreamLike | None = None
) -> Array:
    """Compute the gradient by weights of combine(): Σ_h gradient[t, h] · y[positions[t, j], h].

    gradient: that by the result, [..., cols] float32, float16 or bfloat16.
    y: [rows, cols], of any of these.
    positions: int32 [..., k], as they were given to combine().
    stream: as in gemm().

    Returns float32 [..., k], 0 where a slot adds nothing; FP32, on the CPU FP64, rounded once. The
    same input gives the same bits. Raises as combine() does.
    """
    return _COMBINE_GRADIENT((gradient, y, positions), (), "", None, stream)[0]


def activation_dots(
    gradient: Array,
    x: Array,
    positions: Array,
    *,
    activation: str = "swiglu",
    stream: StreamLike | None = None,
) -> Array:
    """Compute Σ_n gradient[r, n] · activation(x)[r, n], of the row r = positions[t, j] of each
    slot.

    gradient: that by activation(x), [rows, cols] float32, float16 or bfloat16.
    x: of its dtype, [rows, 2·cols] for a gated activation, gate first; else [rows, cols].
    positions: int32 [..., k], as sort_by_expert() returns them.
    activation: as in Activated.
    stream: as in gemm().

    Where out = combine(activation(x) · wᵀ, positions, weights), and row r of `gradient` is the
    gradient by out of that row's token times w, this is the gradient by weights.
    combine_gradient() takes it from the rows of the product instead, which have to be kept for it.

    Returns float32 [..., k], 0 where a slot has no row; FP32, of an activation that is not rounded,
    on the CPU FP64, rounded once. The same input gives the same bits. Raises as combine() does.
    """
    return _ACTIVATION_DOTS((gradient, x, positions), (activation,), "", None, stream)[0]


def _chosen(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    logits, k = inputs[0].shape, options[0]
    require_matrix("top_k", "logits", logits)
    if k < 1:
        raise invalid_argument("top_k", "k", "from 1 to the number of experts", repr(k))
    shape = (*logits[:-1], k)
    return framework.empty(shape, "int32"), framework.empty(shape, "float32")


def _by_logits(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    logits = inputs[1]
    of_logits = dtype_name("top_k_gradient", "logits", logits.dtype, WIDE)
    return (framework.empty(logits.shape, of_logits),)


def _sorted(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    ids, experts = inputs[0].shape, options[0]
    require_matrix("sort_by_expert", "ids", ids)
    if experts < 0:
        raise invalid_argument("sort_by_expert", "experts", "a number from 0 on", repr(experts))
    slots = row_count(ids) * ids[-1]
    shapes = ((experts + 1,), (slots,), ids, (_workspace_size(slots, experts),))
    return tuple(framework.empty(shape, "int32") for shape in shapes)


def _workspace_size(slots: int, experts: int) -> int:
    """sort_workspace_size() of the library, for torch's symbolic sizes too."""
    span = 2048 * (slots // (2048 * 128) + 1)
    return (slots + span - 1) // span * experts


def _combined(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    y, positions = inputs[:2]
    require_matrix("combine", "y", y.shape)
    require_matrix("combine", "positions", positions.shape)
    of_out = dtype or dtype_name("combine", "y", y.dtype, WIDE)
    return (framework.empty((*positions.shape[:-1], y.shape[-1]), of_out),)


def _like_positions(
    operation: str, framework: Framework, inputs: Arrays, options: Options, dtype: str
) -> Arrays:
    positions = inputs[2].shape
    require_matrix(operation, "positions", positions)
    return (framework.empty(positions, "float32"),)


_TOP_K: Final = Op("top_k", top_k.__annotations__, ("ids", "weights"), _chosen)
_TOP_K_GRADIENT: Final = Op(
    "top_k_gradient", top_k_gradient.__annotations__, ("logits_gradient",), _by_logits
)
_SORT_BY_EXPERT: Final = Op(
    "sort_by_expert",
    sort_by_expert.__annotations__,
    ("offsets", "sources", "positions", "workspace"),
    _sorted,
)
_COMBINE: Final = Op("combine", combine.__annotations__, ("out",), _combined, in_place="c")
_COMBINE_GRADIENT: Final = Op(
    "combine_gradient",
    combine_gradient.__annotations__,
    ("weights_gradient",),
    partial(_like_positions, "combine_gradient"),
)
_ACTIVATION_DOTS: Final = Op(
    "activation_dots",
    activation_dots.__annotations__,
    ("dots",),
    partial(_like_positions, "activation_dots"),
)
