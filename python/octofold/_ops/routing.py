"""Tokens to experts and back: which experts a token goes to, the order of rows that lies expert by
expert, and the weighted sum of what the experts give."""

from typing import Final, NamedTuple

from .._core.calls import Op
from .._core.dtypes import WIDE, DTypeLike, dtype_name, require_dtype_of_out
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix, row_count
from .._core.streams import StreamLike


class TopK(NamedTuple):
    """What top_k() writes.

    ids: of the experts of each token, best first: int32 [..., k].
    weights: float32 [..., k].
    """

    ids: Array
    weights: Array


class Routing(NamedTuple):
    """What sort_by_expert() writes, for ids [..., k] of T tokens: int32.

    offsets: [experts + 1]; rows offsets[e] … offsets[e + 1] are those of expert e.
    sources: [T · k]; the flat slot t · k + j of each row, -1 from offsets[experts] on.
    positions: [..., k]; the row of each slot, -1 of slots that go nowhere.
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
    """The k experts of each token that a router likes best, and their weights.

    logits: [..., experts] float32, float16 or bfloat16; columns contiguous, any row stride.
    k: from 1 to the number of experts. On a GPU at most 32, of 1024 experts (UnsupportedError).
    scoring: "softmax", over all experts: Mixtral's (normalize=True) and Qwen3-MoE's (normalize as
        norm_topk_prob); or "sigmoid", of each expert by itself: DeepSeek-V3's (arXiv:2412.19437,
        section 2.1.2).
    normalize: divide the weights by their sum (sigmoid: + 1e-20).
    bias: float32 [experts], for sigmoid: added to the scores for the choice, not for the weights.
    groups: for sigmoid: experts are in so many groups of equal size, two experts at least; on a GPU
        at most 32 groups.
    top_groups: so many groups stay, those with the largest sums of their two best choices; they
        have k experts at least.
    scaling_factor: what the weights are multiplied by at the end.
    stream: as in gemm().

    Scores and weights are FP32; those of CPU and GPU may differ in their last bits. The k stand in
    order of descending choice (softmax: of logits), of equal ones the lower index first, as among
    groups; NaN is above all numbers. Nothing is differentiated: top_k_gradient() has the gradient.
    Raises InvalidArgumentError that names the argument.
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
    """The gradient by logits of what top_k() made of them: [..., experts] of the dtype of logits.

    gradient: by weights, float32 [..., k].
    logits, scoring, normalize, scaling_factor: as they were given to top_k(). Neither the bias nor
        the groups have a part in it.
    ids: as top_k() gave them. -1 is a slot that counts for nothing.
    stream: as in gemm().

    Arithmetic is FP32 (on the CPU FP64), each result rounded once. Other ids are taken as -1 on a
    GPU, and raise InvalidArgumentError on the CPU.
    """
    return _TOP_K_GRADIENT(
        (gradient, logits, ids), (scoring, normalize, scaling_factor), "", None, stream
    )[0]


def sort_by_expert(ids: Array, experts: int, *, stream: StreamLike | None = None) -> Routing:
    """The order of rows that lies expert by expert, and for each expert by flat slot.

    ids: experts of tokens, int32 [..., k]: from 0 to experts - 1, or -1 for slots that go nowhere;
        columns contiguous, any row stride; fewer than 2^31 slots.
    experts: how many there are; on a GPU at most 2048 (UnsupportedError).
    stream: as in gemm().

    The host reads nothing, and the same ids give the same result. Other ids are taken as -1 on a
    GPU, and raise InvalidArgumentError on the CPU.
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
    """out[t] = (c[t] +) Σ_j weights[t, j] · y[positions[t, j]].

    y: [rows, cols] float32, float16 or bfloat16; columns contiguous, any row stride. On a GPU rows
        whose addresses and lengths are multiples of 16 bytes are read fastest.
    positions: int32 [..., k], as sort_by_expert() gives them; what is no row of y adds nothing.
    weights: float32 [..., k]; None: ones.
    c: [..., cols] of out's dtype; may be `out` itself, which then is added to in place.
    out_dtype: of the result; by default that of `out`, else that of y.
    out: where to write, [..., cols]; as in gemm().
    stream: as in gemm().

    FP32, each product and each sum rounded by itself, c first and then j in order; one rounding at
    the end. CPU and GPU give the same bits. Nothing is differentiated: combine_gradient() has the
    gradient by weights. Positions below -1 and beyond the rows of y raise InvalidArgumentError on
    the CPU, and add nothing on a GPU.
    """
    inputs = (y, positions, weights, c)
    if out is None:
        name = "" if out_dtype is None else dtype_name("combine", "out_dtype", out_dtype, WIDE)
        return _COMBINE(inputs, (), name, None, stream)[0]
    require_dtype_of_out("combine", out, out_dtype)
    _COMBINE(inputs, (), "", (out,), stream)
    return out


def combine_gradient(
    gradient: Array, y: Array, positions: Array, *, stream: StreamLike | None = None
) -> Array:
    """The gradient by weights of combine(): Σ_h gradient[t, h] · y[positions[t, j], h].

    gradient: by the result, [..., cols] float32, float16 or bfloat16.
    y: [rows, cols], of any of these.
    positions: int32 [..., k], as they were given to combine().
    stream: as in gemm().

    Returns float32 [..., k], 0 where a slot adds nothing; FP32, on the CPU FP64, rounded once. The
    same input gives the same bits. Raises as combine() does.
    """
    return _COMBINE_GRADIENT((gradient, y, positions), (), "", None, stream)[0]


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


def _by_weights(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    positions = inputs[2].shape
    require_matrix("combine_gradient", "positions", positions)
    return (framework.empty(positions, "float32"),)


_TOP_K: Final = Op(
    "top_k",
    top_k.__annotations__,
    results=("ids", "weights"),
    allocate=_chosen,
    function=lambda: library.top_k,
)
_TOP_K_GRADIENT: Final = Op(
    "top_k_gradient",
    top_k_gradient.__annotations__,
    results=("logits_gradient",),
    allocate=_by_logits,
    function=lambda: library.top_k_gradient,
)
_SORT_BY_EXPERT: Final = Op(
    "sort_by_expert",
    sort_by_expert.__annotations__,
    results=("offsets", "sources", "positions", "workspace"),
    allocate=_sorted,
    function=lambda: library.sort_by_expert,
)
_COMBINE: Final = Op(
    "combine",
    combine.__annotations__,
    results=("out",),
    allocate=_combined,
    function=lambda: library.combine,
    in_place="c",
)
_COMBINE_GRADIENT: Final = Op(
    "combine_gradient",
    combine_gradient.__annotations__,
    results=("weights_gradient",),
    allocate=_by_weights,
    function=lambda: library.combine_gradient,
)
