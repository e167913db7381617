"""Bandwidth of the casts beside that of a copy of as many bytes ("speed": the share of its rate).

    python bench/gpu/casts.py RESULTS.jsonl [--shape ROWS,COLUMNS] [--only NAME ...]
    python bench/gpu/casts.py RESULTS.jsonl --stacks [--only NAME ...]
    python bench/gpu/casts.py RESULTS.jsonl --codes

--stacks: the weights of 32 experts, each cast as if alone, and beside them all their rows as one
matrix. --codes: transposes of FP8 codes, and torch's. Bytes are those that have to move: each input
read once (twice where a scale is known only when all of x has been read), each output written once.
"""

import functools
import math
import sys
from functools import partial

import octofold
import torch
from common.bandwidth import beside_copy, cast_error, keeping
from common.measure import Build, Implementation, Wrong
from common.operands import normal, sets_of
from common.run import Run, new_parser, sizes, text_of
from octofold.ops import Target, cast

RULES = ("deepgemm", "vllm-per-token")  # one that multiplies, one that divides
STACKS = ((32, 4096, 7168), (32, 7168, 2048))  # w13 and w2
CODES = ((4096, 4096), (14336, 4096), (8, 14336, 4096), (4096, 4104), (4100, 4096), (1024, 1024))
ERROR_LIMIT = 0.05


def casts():
    """Name, how often x is read, how many casts are written, and the call."""
    for granularity in ("1x128", "128x128", "channel", "tensor"):
        one_pass = granularity in ("1x128", "128x128")
        reads = 1 if one_pass else 2
        for name in (f"{granularity} {rule}" for rule in RULES):
            rows = partial(octofold.quantize, format=name)
            yield name, 1 if granularity == "channel" else reads, 1, rows
            yield f"{name} transposed", reads, 1, partial(cast, transposed=name)
            yield f"{name} both", reads, 2, partial(cast, rows=name, transposed=name)
    # A layer casts x to rows, and to the transpose for the weight gradient.
    both = partial(cast, rows="1x128 torchao", transposed="channel torchao")
    yield "1x128 torchao, channel transposed", 2, 2, both
    for columns in (None, "amax"):
        name = f"1x128 torchao, two-level transposed{', amax' if columns else ''}"
        yield name, 1, 2, partial(two_level, columns)


def two_level(columns, x):
    transposed = Target("128x128 torchao", channel_scale=factors(x.shape[1], x.device))
    return cast(x, rows="1x128 torchao", transposed=transposed, columns=columns)


@functools.cache
def factors(channels, device):
    """Kept, as a layer keeps them."""
    return torch.rand(channels, device=device) + 1


def stacked_casts():
    """Yields the same of x [matrices, rows, cols]: casts for forward and backward of experts."""
    for granularity, transposed in (("128x128", None), ("1x128", "128x128"), ("1x128", None)):
        both = partial(cast, rows=granularity, transposed=transposed or granularity)
        name = f"{granularity}{'' if transposed is None else f', {transposed}'} both"
        yield f"stack {name}", 1, 2, lambda x, both=both: both(x, matrices=len(x))
        yield f"one matrix {name}", 1, 2, lambda x, both=both: both(x.flatten(0, 1))
    yield "stack 128x128 transposed", 1, 1, lambda x: cast(x, transposed="128x128", matrices=len(x))


def measure_cast(run, shape, dtype, name, reads, writes, call):
    count, itemsize = math.prod(shape), torch.empty(0, dtype=getattr(torch, dtype)).itemsize
    inputs = sets_of(partial(normal, run, *shape, dtype=dtype), count * itemsize, run)
    moved = reads * itemsize * count + writes * count

    def make():
        def error():
            x = inputs[0].flatten(0, -2) if name.startswith("one") else inputs[0]
            return cast_error(call(inputs[0]), x)

        return Implementation(keeping(call, [(x,) for x in inputs]), error, ERROR_LIMIT)

    case = f"{text_of(shape)} {dtype} {name}"
    beside_copy(run, "cast", case, moved, [Build(name, make, True, moved)])


def torch_transpose(x):
    return x.view(torch.uint8).mT.contiguous().view(x.dtype)


def measure_transpose(run, shape):
    """Transposes codes, and compares bits. 4104 columns, or 4100 rows, are no whole vectors."""

    def codes():
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=run.device).view(
            torch.float8_e4m3fn
        )

    moved = 2 * math.prod(shape)
    inputs = sets_of(codes, moved, run)

    def build(name, call, ours):
        def error():
            results = [each(inputs[0]).view(torch.uint8) for each in (call, torch_transpose)]
            if not torch.equal(*results):
                raise Wrong("other bytes than torch's")
            return 0.0

        calls = keeping(call, [(x,) for x in inputs])
        return Build(name, lambda: Implementation(calls, error), ours, moved)

    builds = [
        build("transpose", octofold.ops.transpose, True),
        build("torch", torch_transpose, False),
    ]
    beside_copy(run, "transpose of codes", text_of(shape), moved, builds)


def main():
    parser = new_parser(__doc__, rounds=9, seconds=500)
    parser.add_argument("--stacks", action="store_true")
    parser.add_argument("--codes", action="store_true")
    parser.add_argument("--shape", type=sizes, metavar="ROWS,COLUMNS")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME")
    options = parser.parse_args()
    with Run(options) as run:
        if options.codes:
            of_codes = [options.shape] if options.shape else CODES if run.on_gpu else [(144, 272)]
            for shape in run.cases(of_codes):
                measure_transpose(run, shape)
            return run.exit_code
        tiny = (2, 128, 256) if options.stacks else (256, 384)
        shapes = STACKS if options.stacks else [(8192, 8192)]
        shapes = [options.shape] if options.shape else shapes if run.on_gpu else [tiny]
        dtypes = ("bfloat16",) if options.stacks else ("bfloat16", "float32")
        made = stacked_casts if options.stacks else casts
        cases = [
            (shape, dtype, *case)
            for shape in shapes
            for dtype in dtypes
            for case in made()
            if any(text in case[0] for text in options.only)
        ]
        for case in run.cases(cases):
            measure_cast(run, *case)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
