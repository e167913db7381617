"""Small products and attention through every kernel path, for sanitizer_problems.py: a name, a call
and its arguments. What a call has no numbers to compare for, it computes on the device alone."""

import itertools
from functools import partial

import octofold
import torch
from octofold import Arrivals, Depth, Masked, Rows, ScaledTensor, grouped_gemm_weight_only, tuning
from octofold.ops import Gathered, gemm_weight_only_gradient, grouped_gemm_weight_only_gradient

from tests.cases.gemm import PAIRS
from tests.gpu.targets import candidate_names, does_what_hopper_does, is_hopper
from tests.python.casting import GRANULARITIES

# Whole tiles in several waves; ragged in every way; one row; K that TMA cannot load, also in words.
SHAPES = ((256, 384, 512), (131, 197, 272), (1, 264, 1024), (70, 90, 300), (70, 90, 301))
FLOATS = (torch.bfloat16, torch.float32)
MOST = 2**31 - 1


def int32(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def offsets_of(sizes):
    return int32([0, *itertools.accumulate(sizes)])


def operand(rows, cols, granularity):
    """Codes, and scales that differ from neighbour to neighbour. In memory that ends with a unit of
    16 bytes: rows that TMA cannot address are copied by cp.async of 16 with the count of those that
    are to be read, and memcheck knows no counts."""
    memory = torch.zeros(-(-rows * cols // 16) * 16).to(torch.float8_e4m3fn)
    codes = memory[: rows * cols].view(rows, cols).copy_(32 * torch.randn(rows, cols))
    scale = torch.exp2(4 * torch.rand(octofold.ops.scale_shape(granularity, rows, cols)) - 8)
    return ScaledTensor(codes, scale, granularity)


def in_place(a, b, c, bias):
    out = c.clone()
    return octofold.gemm(a, b, out=out, c=out, bias=bias)


def products():
    for pair, (m, n, k), out_dtype in itertools.product(PAIRS, SHAPES, FLOATS):
        a, b = operand(m, k, pair[0]), operand(n, k, pair[1])
        name = f"gemm {pair[0]} x {pair[1]} {m},{n},{k} {out_dtype}"
        yield name, partial(octofold.gemm, out_dtype=out_dtype), (a, b)
        c, bias = torch.randn(m, n).to(out_dtype), torch.randn(n)
        yield name + " in place + bias", in_place, (a, b, c, bias)


# Rows, K, shards: whole tiles; shards that end within tiles; operands that threads copy, in words
# and byte by byte.
ARRIVALS = ((1024, 512, 4), (700, 272, 5), (70, 300, 2), (70, 301, 7))


def arrivals():
    """All rows have come. What waits for them runs, and the walk in the order of shards."""
    for pair, (rows, depth, shards) in itertools.product(PAIRS[:4], ARRIVALS):
        a, b = operand(rows, depth, pair[0]), operand(264, depth, pair[1])
        flags = torch.ones(shards, dtype=torch.int32)
        name = f"arrivals {pair} {rows},{depth} in {shards}"
        yield name, lambda a, b, f: octofold.gemm(a, b, arrivals=Arrivals(f, 1)), (a, b, flags)


def by_candidate(name, a, b, out, c=None):
    """a: FP8, or what the product casts. out: the memory that the device writes to."""
    if out.is_cuda:
        out = out.clone() if c is None else c.clone()
        with tuning.using(name):
            return octofold.gemm(a, b, c=None if c is None else out, out=out)
    return octofold.gemm(a, b, c=c, out_dtype=out.dtype)


def candidates():
    """Each configuration: BF16, and FP32 in place."""
    m, n, k = 300, 264, 1040
    a, b = operand(m, k, "1x128"), operand(n, k, "128x128")
    for out_dtype, c in ((torch.bfloat16, None), (torch.float32, torch.randn(m, n))):
        out_name = str(out_dtype).removeprefix("torch.")
        addend = [] if c is None else [f"c {out_name}"]
        for name in candidate_names("gemm", f"out {out_name}", *addend):
            out = torch.zeros(m, n, dtype=out_dtype)
            yield f"candidate {name} {out_name}", by_candidate, (name, a, b, out, c)


def gated(name, a, b):
    """Few codes differ by one step."""
    if not a.data.is_cuda:
        return octofold.ops.gated_gemm(a, b)
    m, n = a.shape[0], b.shape[0] // 2
    codes = torch.zeros(m, n, device="cuda").to(a.data.dtype)
    result = ScaledTensor(codes, torch.zeros(m, n // 128, device="cuda"), "1x128")
    with tuning.using(name):
        return octofold.ops.gated_gemm(a, b, out=result)


def gated_products():
    """The second K is longer than the ring."""
    names = candidate_names("gated_gemm")
    for (m, n, k), name in itertools.product(((1, 128, 16), (300, 384, 1040)), names):
        a, b = operand(m, k, "1x128"), operand(2 * n, k, "128x128")
        yield f"gated {name} {m},{n},{k}", gated, (name, a, b)


def casting_products():
    """The second K is longer than most rings; the last rows, so many elements behind each other,
    are read element by element."""
    names = candidate_names("gemm", "cast_from bfloat16")
    shapes = ((1, 72, 16, 0), (13, 200, 2064, 0), (70, 64, 400, 1))
    for (m, n, k, more), name in itertools.product(shapes, names):
        x = torch.randn(m, k + more).bfloat16()[:, :k]
        out, b = torch.zeros(m, n, dtype=torch.bfloat16), operand(n, k, "128x128")
        yield f"gemm that casts {name} {m},{n},{k} {more}", by_candidate, (name, x, b, out)


# The last two make no sense: a GPU reads and writes nothing outside of the tensors for them.
OFFSETS = (
    (0, 5, 5, 70, 200),
    (0, 0, 130, 131, 131),
    (0, 7, 50, 50, 50),
    (-7, 300, 20, MOST, 90),
    (MOST, 0, -MOST - 1, 50, 3),
)
ROWS, GROUPS, N, K = 203, 4, 264, 400


def make_sense(offsets):
    return offsets[0] == 0 and list(offsets) == sorted(offsets) and offsets[-1] <= ROWS


def grouped(candidate, a, b, groups, shape, adds, sensible):
    """Whatever is computed of what makes no sense has no meaning."""
    there = a.data.device
    if there.type == "cpu" and not sensible:
        return torch.ones(1)
    out = torch.ones(shape, device=there)
    name = candidate if there.type == "cuda" else None
    c = out if adds else None
    with tuning.using(name):
        octofold.grouped_gemm(a, b, groups, c=c, out=out)
    return out if sensible else torch.ones(1)


def group_problems(device):
    def names(*phrases):
        if device == "cpu":
            return [None]
        return candidate_names("grouped_gemm", "out float32", *phrases)

    alone = names("groups 4 of rows")
    added = names("groups 4 of rows", "c float32")
    onto_c = [name for name in added if not name or name.endswith(".onto_c")]
    in_depth = names("groups 4 of k", "b e4m3 1x128", "c float32")
    b = octofold.quantize(torch.randn(GROUPS, N, K), "128x128", matrices=GROUPS)
    for offsets in OFFSETS if device != "cpu" else filter(make_sense, OFFSETS):
        numbers, sensible = int32(offsets), make_sense(offsets)
        a = octofold.quantize(torch.randn(ROWS, K))
        for candidate, adds in [(n, False) for n in alone] + [(n, True) for n in onto_c]:
            arguments = candidate, a, b, Rows(numbers), (ROWS, N), adds, sensible
            yield f"groups of rows {offsets} {candidate} {adds}", grouped, arguments
        masked = ScaledTensor(
            a.data[:200].view(GROUPS, 50, K), a.scale[:200].reshape(GROUPS, 50, -1), "1x128"
        )
        fits = sensible and max(offsets) <= 50
        if fits or device != "cpu":
            arguments = None, masked, b, Masked(numbers[1:]), (GROUPS, 50, N), False, fits
            yield f"masked groups {offsets}", grouped, arguments
        left, right = (
            octofold.quantize(torch.randn(rows, 128 * (ROWS // 128 + GROUPS))) for rows in (72, N)
        )
        for candidate in in_depth:
            arguments = candidate, left, right, Depth(numbers), (GROUPS, 72, N), True, False
            yield f"groups of K {offsets} {candidate}", grouped, arguments


def with_weights(x, gradient, w, bias):
    options = {"out_dtype": torch.float32}
    results = [
        octofold.gemm_weight_only(x, w, bias=bias, **options),
        gemm_weight_only_gradient(gradient, w, **options),
    ]
    if x.shape[0] > 100 and x.is_cuda and not is_hopper():
        tile = "128x96.w2x2x1.s3.k1.ahead"
        with tuning.using(tile):
            results[0] = octofold.gemm_weight_only(x, w, bias=bias, **options)
    if x.shape[0] <= 16:
        codes = (8 * x).to(torch.float8_e5m2)
        vectors = (x, x.float(), codes)
        results += [octofold.gemm_weight_only(each, w, **options) for each in vectors]
    return results


def positive(*shape):
    """Sums that nothing cancels."""
    return torch.rand(shape).half() + 0.5


def weights(*shape, granularity):
    matrices = shape[0] if len(shape) == 3 else None
    codes = (8 * torch.rand(shape) + 1).to(torch.float8_e4m3fn)
    of_scales = octofold.ops.scale_shape(granularity, *shape, matrices=matrices)
    return ScaledTensor(codes, torch.exp2(4 * torch.rand(of_scales) - 4), granularity)


# Few rows and several tiles, ragged; K and N in whole units of 16 bytes, and not.
WEIGHT_ONLY = ((1, 72, 272), (13, 144, 656), (70, 144, 272), (131, 136, 144), (9, 37, 301))


def weight_only_problems():
    for (m, n, k), granularity in itertools.product(WEIGHT_ONLY, GRANULARITIES):
        w = weights(n, k, granularity=granularity)
        arguments = positive(m, k), positive(m, n), w, torch.rand(n)
        yield f"weight only {granularity} {m},{n},{k}", with_weights, arguments


# Rows of groups, N and K: a row for each of a few experts, many for some, whole units and not.
WEIGHT_ONLY_GROUPS = (
    ((0, 1, 0, 0, 1, 1), 72, 272),
    ((13, 0, 5), 144, 656),
    ((131, 0, 40), 136, 144),
    ((3, 20), 37, 301),
)


def groups_with_weights(x, gradient, room, w, numbers, sizes, order, factors):
    options, groups = {"out_dtype": torch.float32}, Rows(numbers)
    masked = grouped_gemm_weight_only(room, w, Masked(sizes, 2), **options)
    given = Gathered(gradient, order, factors=factors)
    return [
        grouped_gemm_weight_only(x, w, groups, **options),
        grouped_gemm_weight_only(Gathered(x, order), w, groups, **options),
        grouped_gemm_weight_only_gradient(given, w, groups, **options),
        *(masked[group, :size] for group, size in enumerate(sizes.tolist())),
    ]


def grouped_weight_only_problems():
    for (sizes, n, k), granularity in itertools.product(WEIGHT_ONLY_GROUPS, GRANULARITIES):
        rows, w = sum(sizes), weights(len(sizes), n, k, granularity=granularity)
        room = positive(len(sizes), max(sizes) + 1, k)
        order = torch.arange(rows, dtype=torch.int32).flip(0).contiguous()
        of_groups = offsets_of(sizes), int32(sizes), order, torch.rand(rows, 1)
        arguments = positive(rows, k), positive(rows, n), room, w, *of_groups
        yield f"weight only groups {granularity} {rows},{n},{k}", groups_with_weights, arguments


def halves(*shape):
    return torch.randn(shape).half()


def codes(*shape, dtype=torch.float8_e4m3fn):
    return torch.randn(shape).to(dtype)


def attend(problem, options):
    """The logarithms too, those of no keys aside."""
    out, logarithms = octofold.attention(**problem, **options, return_log_sum_exp=True)
    return out, torch.where(logarithms.isneginf(), 0, logarithms)


def attend_latent(q, k, scale, value_size):
    """Values that are numbers of the keys."""
    v = k[..., :value_size]
    return octofold.attention(q, k, v, k_scale=scale, v_scale=scale, causal=True)


def lied(problem, sound):
    """With arrays such as nobody should give; the call without them can be compared."""
    if problem["q"].is_cuda:
        octofold.attention(**problem, causal=True)
    return attend(sound, {})


def pages(queries, size, value_size=None):
    shape = 9, 16, 2
    problem = {"q": halves(2, queries, 4, size), "k": codes(*shape, size)}
    problem["v"] = codes(*shape, value_size or size)
    scales = {name: torch.rand(9, 2) + 0.5 for name in ("k_scale", "v_scale")}
    order = torch.randperm(9)[:6].view(2, 3).int()
    return problem | scales | {"key_counts": int32([45, 7]), "page_table": order}


def behind(queries, keys):
    shape = sum(keys), 2, 64
    problem = {"q": halves(sum(queries), 4, 64), "k": codes(*shape), "v": codes(*shape)}
    return problem | {"query_offsets": offsets_of(queries), "key_offsets": offsets_of(keys)}


def attention_problems(device):
    causal = {"causal": True}
    # Head sizes that fill tiles and do not, few queries and many, split keys.
    for size, (queries, keys) in itertools.product(
        (8, 64, 72, 128, 256, 512), ((1, 1), (3, 1500), (70, 130))
    ):
        shape = 2, keys, 2, size
        problem = {"q": halves(2, queries, 4, size), "k": codes(*shape)}
        problem["v"] = codes(*shape, dtype=torch.float8_e5m2)
        problem |= {"k_scale": torch.rand(2, -(-keys // 128), 2), "v_scale": torch.rand(2)}
        for options in ({}, causal, {"window": (20, 3)}):
            yield f"attention {size} {queries},{keys} {options}", attend, (problem, options)
    for heads, (size, of_values) in itertools.product((8, 128), ((576, 512), (192, 128))):
        scale = torch.rand(2, 3, 1) + 0.5
        arguments = halves(2, 2, heads, size), codes(2, 300, 1, size), scale, of_values
        yield f"attention latent {heads} {size}", attend_latent, arguments
    for queries, *sizes in ((1, 128), (40, 128), (80, 192, 128), (80, 64, 256)):
        yield f"attention pages {queries} {sizes}", attend, (pages(queries, *sizes), causal)
    for size in (64, 72, 128) if does_what_hopper_does(device) else ():
        options = causal | {"compute": "fp8"}
        yield f"attention fp8 {size}", attend, (pages(80, size), options)
    lengths = ([1, 0, 2], [30, 4, 300]), ([70, 1, 5], [70, 200, 0])
    for each in lengths:
        yield f"attention offsets {each}", attend, (behind(*each), causal)
    if device == "cpu":
        return  # its backend raises
    for queries, lie in itertools.product((1, 40), (-1, 9, MOST, -MOST)):
        sound = pages(queries, 64)
        for name in ("page_table", "key_counts"):
            problem = sound | {name: torch.full_like(sound[name], lie)}
            yield f"attention {name} {lie} {queries}", lied, (problem, sound)
    offsets = [MOST] * 4, [-MOST] * 4, [500, 60, 2, 0], [-300, 5000, 7, -1]
    for each, lie in itertools.product(lengths, offsets):
        sound = behind(*each)
        for name in ("query_offsets", "key_offsets"):
            yield f"attention {name} {lie} {each}", lied, (sound | {name: int32(lie)}, sound)


def product_problems(device):
    yield from products()
    yield from group_problems(device)
    if does_what_hopper_does(device):
        yield from arrivals()
    if device != "cpu":  # which has no candidates
        yield from candidates()
        yield from gated_products()
        yield from casting_products() if is_hopper() else ()
    yield from weight_only_problems()
    yield from grouped_weight_only_problems()
    yield from attention_problems(device)
