"""Small problems through every kernel path, to run under compute-sanitizer:

    compute-sanitizer --tool memcheck python -m tests.gpu.sanitizer_problems
    compute-sanitizer --tool racecheck python -m tests.gpu.sanitizer_problems --every 4

racecheck takes seconds a problem. Each result is compared with the CPU backend's: no kernel but
ours runs. With PYTORCH_NO_CUDA_MEMORY_CACHING=1 each tensor is an allocation of its own, and a step
over its edge is seen. Exit code 1 if a result is wrong.
"""

import argparse
import itertools
import sys
from functools import partial

import octofold
import torch
from octofold.ops import Activated, ActivationGradient, Gathered, Normed

from tests.gpu.sanitizer_products import FLOATS, MOST, int32, product_problems
from tests.python.casting import GRANULARITIES, cast_side, cast_with
from tests.python.devices import Visit

LIMIT = 1e-2  # a unit of scales that is wrong makes more; codes that sums' rounding moves, 6e-3


def casts():
    kinds = itertools.product(
        GRANULARITIES,
        ((256, 384), (131, 200), (1, 1)),
        FLOATS,
        ("deepgemm", "vllm-per-token"),  # one multiplies, one divides
        ("rows", "transposed"),
    )
    # Rows that clusters share; more of them than clusters run at one time.
    wide = [("channel", (150, 40_000), dtype, "vllm-per-token", "rows") for dtype in FLOATS]
    for granularity, shape, dtype, rule, targets in itertools.chain(kinds, wide):
        options = {"granularity": granularity, "rule": rule, "targets": targets}
        call = partial(cast_with, **options)
        yield f"cast {options} {shape} {dtype}", call, (torch.randn(shape).to(dtype),)


def casts_with_columns():
    for granularity, (rows, cols), dtype, targets in itertools.product(
        ("channel", "1x128", "128x128"), ((256, 384), (131, 77), (1, 1)), FLOATS, ("rows", "both")
    ):
        options = {"granularity": granularity, "targets": targets}
        call = partial(cast_with, columns="both", **options)
        x = torch.randn(rows, cols).to(dtype)
        yield f"columns {options} {rows},{cols} {dtype}", call, (x,)


def stacks():
    """Matrices that end with a tile, within one, and with no whole vector."""
    kinds = [(granularity, None) for granularity in GRANULARITIES]
    kinds += [("1x128", "channel"), ("1x128", "128x128")]
    for (rows, cols), kind, dtype in itertools.product(
        ((256, 128), (136, 272), (131, 77)), kinds, FLOATS
    ):
        options = dict(zip(("granularity", "transposed_granularity"), kind, strict=True))
        call = partial(cast_with, targets="both", matrices=4, **options)
        yield f"stack {kind} {rows},{cols} {dtype}", call, (torch.randn(4, rows, cols).to(dtype),)


def in_groups(x, offsets, sources, factors):
    """With offsets and sources such as nobody should give. Every second row, which comes from its
    own, can be compared."""
    if not x.is_cuda:
        return octofold.quantize(x, "channel")[::2]
    for transposed in (None, "128x128", "channel"):
        options = {"transposed_granularity": transposed, "targets": "both", "offsets": offsets}
        cast_with(x, **options)
        given = Gathered(x, sources, slots=factors.shape[1], factors=factors)
        cast_with(given, **options)
    return cast_side(Gathered(x, sources), "channel")[::2]


def group_casts():
    for (rows, cols), dtype in itertools.product(((390, 384), (131, 77)), FLOATS):
        x, factors = torch.randn(rows, cols).to(dtype), torch.randn(rows, 3)
        sources = torch.randint(-MOST, MOST, (rows,))
        sources[::2] = torch.arange(0, rows, 2)
        for offsets in (
            [0, 5, 5, 100, rows],
            [rows, 200, 100, 0, 0],
            [MOST] * 5,
            [-MOST] * 5,
            [-300, 5 * rows, 7, -1, 129],
        ):
            name = f"casts in groups {rows},{cols} {dtype} {offsets}"
            yield name, in_groups, (x, int32(offsets), sources.int(), factors)


def activations():
    """Few codes differ by one step."""
    for granularity, (rows, cols), layout in itertools.product(
        GRANULARITIES, ((256, 256), (131, 264), (5, 7)), ("halves", "interleaved")
    ):
        x, gradient = torch.randn(rows, 2 * cols), torch.randn(rows, cols)
        call = partial(cast_with, granularity=granularity, targets="both")
        for of, given in (("numbers", x), ("FP8", octofold.quantize(x, granularity))):
            for source in (
                Activated(given, layout=layout),
                ActivationGradient(gradient, given, layout=layout),
            ):
                kind = type(source).__name__
                yield f"{kind} of {of} {granularity} {layout} {rows},{cols}", call, (source,)


def norm(x, operands, options):
    """Casts, sum, statistics and numbers; few codes differ by one step."""
    source = Normed(x, **operands, residual=x, kind="layer")
    casts = cast_with(source, **options)
    return *casts[:2], *casts.norm, octofold.ops.norm(source).y


def norm_gradients(x, rstd, operands):
    options = {"residual_gradient": x, "kind": "layer"}
    return octofold.ops.norm_gradient(x, x, rstd, 0 * rstd, **operands, **options)


def norms():
    # Rows that threads hold, and that none do, in vectors and element by element.
    for (rows, cols), dtype in itertools.product(
        ((256, 384), (130, 77), (6, 7168), (4, 40_000), (2, 20_001)), FLOATS
    ):
        x = torch.randn(rows, cols).to(dtype)
        operands = {name: torch.randn(cols).to(dtype) for name in ("weight", "bias")}
        operands |= {name: torch.randn(2, cols) for name in ("ada_scale", "ada_shift")}
        arguments = x, torch.rand(rows), operands
        yield f"norm gradients {rows},{cols} {dtype}", norm_gradients, arguments
        for granularity, targets in itertools.product(GRANULARITIES, ("rows", "both")):
            options = {"granularity": granularity, "targets": targets, "power_of_two": True}
            yield f"norm {options} {rows},{cols} {dtype}", norm, (x, operands, options)


def routing(logits, weights, y, c, ids):
    """Choices, rows by expert, sums and gradients. On the device the ids and positions hold besides
    what is no expert and no row; the CPU has -1 there."""
    hostile = int32([-2, ids.numel() * logits.shape[1], -(2**31), 2**31 - 1]).to(ids.device)

    def place(index):
        if not index.is_cuda:
            return index
        nowhere = hostile[torch.arange(index.numel(), device=index.device) % 4].view_as(index)
        return torch.where(index < 0, nowhere, index)

    ops, k, bias = octofold.ops, ids.shape[1], torch.full_like(logits[0], 0.5).float()
    sigmoid = {"scoring": "sigmoid", "groups": 2, "top_groups": 1}
    offsets, sources, positions = ops.sort_by_expert(place(ids), logits.shape[1])
    positions = place(positions)
    return [
        ops.top_k(logits, k, **sigmoid, bias=bias).weights,
        ops.top_k(logits, k, normalize=True).weights,
        ops.top_k_gradient(weights, logits, place(ids), normalize=True),
        offsets,
        sources,
        ops.combine(y, positions, weights, c=c),
        ops.combine(y[:, :72], positions, out_dtype=torch.float32),
        ops.combine_gradient(c, y, positions),
        ops.activation_dots(y[:, :36], y[:, :72], positions),
    ]


def routings():
    # One span of slots and several; rows in vectors and element by element.
    for (tokens, experts, k), dtype in itertools.product(
        ((5, 8, 2), (300, 64, 8), (700, 300, 6), (500, 1024, 8)), FLOATS
    ):
        logits, weights = torch.randn(tokens, experts).to(dtype), torch.randn(tokens, k)
        y, c = (torch.randn(rows, 72 + k).to(dtype) for rows in (tokens * k, tokens))
        ids = torch.randint(-1, experts, (tokens, k), dtype=torch.int32)
        yield f"routing {tokens},{experts},{k} {dtype}", routing, (logits, weights, y, c, ids)


def dots_and_words(x, y, x8):
    """Dot products of FP32 or BF16, and of codes with scales of blocks, anywhere in memory; and
    words, packed and unpacked."""
    dot, codes = octofold.ops.dot, x8.data[0]
    words = octofold.ops.pack(x[: len(x) // 4 * 4], "e5m2")
    sums = dot(x, y), dot(x8, y), dot(x8, x8), dot(x[1:], y[:-1]), dot(codes[1:], y[1:])
    return *sums, octofold.ops.unpack(words, "e5m2")


def words():
    # One part and several, whole vectors and not.
    for size, dtype in itertools.product((5, 512, 20_001), FLOATS):
        x = torch.rand(size) + 0.5  # sums that nothing cancels
        arguments = x, x.flip(0).to(dtype), octofold.quantize(x[None])
        yield f"dot {size} {dtype}", dots_and_words, arguments
    # Whole vectors in both, in neither, in one.
    for shape in ((2, 400, 272), (3, 131, 77), (130, 48), (48, 130), (1, 1)):
        codes = torch.randn(shape).to(torch.float8_e4m3fn)
        yield f"transpose {shape}", octofold.ops.transpose, (codes,)
    # In vectors and element by element; heads that fill no thread, and more than a block has.
    for shape, dtype in itertools.product(
        ((2, 70, 8, 128), (1, 33, 5, 50), (3, 1, 1, 2), (1, 5, 130, 256)), FLOATS
    ):
        x = torch.randn(shape).to(dtype)
        for batch, inverse in ((1, False), (shape[0], True)):
            cos, sin = torch.randn(2, batch, shape[1], shape[3]).to(dtype)
            call = partial(octofold.ops.rotary, inverse=inverse)
            yield f"rotary {shape} by {batch} {dtype}", call, (x, cos, sin)


def flat(results):
    """All values of some results."""
    if results is None:
        return torch.zeros(0)
    if isinstance(results, octofold.ScaledTensor):
        results = results.dequantize()
    if isinstance(results, torch.Tensor):
        return results.flatten().double()
    return torch.cat([flat(result) for result in results])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--every", type=int, default=1, help="of so many problems one")
    parser.add_argument("--only", nargs="*", default=[""], help="with such a text in the name")
    given = parser.parse_args()
    torch.manual_seed(0)
    of_casts = casts, casts_with_columns, stacks, activations, norms, routings
    problems = itertools.chain(
        product_problems(given.device),
        *(family() for family in of_casts),
        group_casts() if given.device != "cpu" else (),  # whose backend raises
        words(),
    )
    wanted = [problem for problem in problems if any(text in problem[0] for text in given.only)]
    chosen = wanted[:: given.every]
    for name, call, arguments in chosen:
        visit = Visit(given.device)
        actual, expected = flat(visit.back(call(*visit.there(arguments)))), flat(call(*arguments))
        error = torch.linalg.norm(actual - expected) / torch.linalg.norm(expected)
        print(f"{error:.1e} {name}", flush=True)
        if not error < LIMIT:  # NaN is wrong too
            sys.exit(f"{name}: relative error {error:.1e} against the CPU backend")
    print(f"{len(chosen)} problems computed as on the CPU")


main()
