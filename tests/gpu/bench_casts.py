"""Bandwidth of the casts beside that of a copy of as many bytes, measured in the same run:

    python tests/gpu/bench_casts.py [ROWS COLUMNS [NAME]]
    python tests/gpu/bench_casts.py --stacks [NAME]

Default: 8192 8192, all casts; else those with NAME in theirs. --stacks: the weights of 32 experts,
each cast as if alone, and beside them all their rows as one matrix.

Bytes are those that have to move: each input read once (twice where a scale is known only when
all of x has been read), each output written once. Times are of CUDA graphs that go round operands
that together are larger than the L2 cache; a cast and its copy take turns.
"""

import argparse
import functools
import math
import statistics

import octofold
import torch
from octofold_tool.gpu.timing import MIN_BYTES, graph_sampler, take_turns

ROUNDS = 9
PROFILES = ("deepgemm", "vllm")  # one that multiplies, one that divides
STACKS = ((32, 4096, 7168), (32, 7168, 2048))  # w13 and w2


def casts():
    """Name, how often x is read, how many casts are written, and the call."""
    for granularity in ("1x128", "128x128", "channel", "tensor"):
        for profile in PROFILES:
            options = {"granularity": granularity, "profile": profile}
            one_pass = granularity in ("1x128", "128x128")
            yield (
                f"{granularity} {profile}",
                1 if one_pass or granularity == "channel" else 2,
                1,
                lambda x, options=options: octofold.quantize(x, **options),
            )
            yield (
                f"{granularity} {profile} transposed",
                1 if one_pass else 2,
                1,
                lambda x, options=options: octofold.quantize(x, **options, transpose=True),
            )
            yield (
                f"{granularity} {profile} both",
                1 if one_pass else 2,
                2,
                lambda x, options=options: octofold.quantize_both(x, **options),
            )

    # What a layer makes of x: rows, and the transpose for the weight gradient.
    yield (
        "1x128 torchao, channel transposed",
        2,
        2,
        lambda x: octofold.quantize_both(x, profile="torchao", transposed_granularity="channel"),
    )
    for columns in (None, "amax"):
        yield (
            f"1x128 torchao, two-level transposed{', amax' if columns else ''}",
            1,
            2,
            lambda x, columns=columns: octofold.quantize_with_columns(
                x,
                columns,
                profile="torchao",
                transposed_granularity="128x128",
                transposed_channel_scale=factors(x.shape[1]),
            ),
        )


def stacked_casts():
    """Likewise, of x [matrices, rows, cols]: what forward and backward of experts take."""
    for granularity, transposed in (("128x128", None), ("1x128", "128x128"), ("1x128", None)):
        options = {"granularity": granularity, "transposed_granularity": transposed}
        name = f"{granularity} both" if transposed is None else f"{granularity}, {transposed} both"
        yield (
            f"stack {name}",
            1,
            2,
            lambda x, options=options: octofold.quantize_both(x, **options, matrices=len(x)),
        )
        yield (
            f"one matrix {name}",
            1,
            2,
            lambda x, options=options: octofold.quantize_both(x, **options),
        )
    yield (
        "stack 128x128 transposed",
        1,
        1,
        lambda x: octofold.ops.cast(x, transposed="128x128", matrices=len(x)).transposed,
    )


@functools.cache
def factors(channels):
    """Kept, as a layer keeps them."""
    return torch.rand(channels, device="cuda") + 1


def cast_call(cast, x, results, index):
    """Keeps its result until its next call, so that no other one writes to the same memory."""

    def call():
        results[index] = cast(x)

    return call


def copy_calls(bytes_moved, count):
    """Copies that move so many bytes each."""
    pairs = [
        [torch.empty(bytes_moved // 2, dtype=torch.uint8, device="cuda").random_() for _ in "ab"]
        for _ in range(count)
    ]
    return [lambda pair=pair: pair[0].copy_(pair[1]) for pair in pairs]


def measure(shape, dtype, casts, wanted):
    """A line for each cast with that in its name."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    sets = max(2, -(-MIN_BYTES // size))
    inputs = [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(sets)]
    for name, reads, writes, cast in casts:
        if wanted not in name:
            continue
        moved = reads * size + writes * count
        results = {}
        calls = [
            [cast_call(cast, x, results, index) for index, x in enumerate(inputs)],
            copy_calls(moved, sets),
        ]
        for call in (*calls[0], *calls[1]):
            call()
        samples = take_turns([graph_sampler(peer) for peer in calls], ROUNDS)
        seconds, copy_seconds = (statistics.median(sample) for sample in samples)
        print(
            f"{str(dtype).removeprefix('torch.') + ' ' + name:<40} {seconds * 1e6:8.1f} "
            f"{moved / seconds / 1e9:6.0f} {moved / copy_seconds / 1e9:6.0f} "
            f"{copy_seconds / seconds:6.1%}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stacks", action="store_true")
    parser.add_argument("words", nargs="*", metavar="ROWS COLUMNS NAME")
    arguments = parser.parse_args()
    words = arguments.words
    print(f"{'cast':<40} {'µs':>8} {'GB/s':>6} {'copy':>6} {'share':>6}")
    if arguments.stacks:
        for shape in STACKS:
            print("x".join(map(str, shape)))
            measure(shape, torch.bfloat16, stacked_casts(), words[0] if words else "")
        return
    if len(words) == 1:
        parser.error("expected COLUMNS behind ROWS")
    shape = (int(words[0]), int(words[1])) if words else (8192, 8192)
    for dtype in (torch.bfloat16, torch.float32):
        measure(shape, dtype, casts(), words[2] if len(words) > 2 else "")


if __name__ == "__main__":
    main()
