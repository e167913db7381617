"""Bandwidth of the casts beside that of a copy of as many bytes ("speed": the share of its rate).

    python bench/gpu/run.py casts RESULTS.jsonl [--shape ROWS,COLUMNS] [--only NAME ...]

Bytes are those that have to move: the input read once (twice where a scale is known only when all
of x has been read), each output written once.
"""

import functools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import octofold
import torch
from common.measure import Build, beside_copy, keeping
from common.operands import DTYPES, normal, sets_of
from common.run import Run, add_only, sizes, text_of
from octofold.ops import Target, cast
from octofold_tool.gpu.measuring import Implementation, relative_error

ROUNDS, SECONDS = 9, 500
RULES = ("deepgemm", "vllm-per-token")  # one that multiplies, one that divides
ERROR_LIMIT = 0.05

Case = tuple[tuple[int, ...], str, str, int, int, Callable[..., Any]]
"""Shape, type, name, how often x is read, how many casts are written, and the call."""


def add_options(parser):
    add_only(parser)
    parser.add_argument("--shape", type=sizes, metavar="ROWS,COLUMNS")


def cases(run: Run) -> Iterator[Case]:
    shape = run.options.shape or ((8192, 8192) if run.on_gpu else (256, 384))
    for dtype in ("bfloat16", "float32"):
        for name, *case in casts():
            if any(text in name for text in run.options.only):
                yield shape, dtype, name, *case


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


def cast_error(results: Any, expected: torch.Tensor | None) -> float:
    """The largest error of the casts among the results, each of `expected` or of its transpose; NaN
    where a result is not finite. None: they are finite, 0."""
    errors = [0.0]
    for x in results if isinstance(results, tuple) else (results,):
        if not isinstance(x, octofold.ScaledTensor):
            if isinstance(x, torch.Tensor) and not x.float().isfinite().all():
                errors.append(float("nan"))
            continue
        values = x.dequantize("float32")
        if expected is None:
            errors.append(0.0 if values.isfinite().all() else float("nan"))
            continue
        likely = (side for side in (expected, expected.T) if side.shape == values.shape)
        errors.append(min(relative_error(values, side) for side in likely))
    return float(torch.tensor(errors).max())  # NaN if one is


def measure(run: Run, case: Case) -> None:
    shape, dtype, name, reads, writes, call = case
    count, itemsize = math.prod(shape), DTYPES[dtype].itemsize
    inputs = sets_of(partial(normal, run, *shape, dtype=dtype), count * itemsize, run)
    moved = reads * itemsize * count + writes * count

    def make() -> Implementation:
        calls = keeping(call, [(x,) for x in inputs])
        return Implementation(calls, lambda: cast_error(call(inputs[0]), inputs[0]), ERROR_LIMIT)

    title = f"{text_of(shape)} {dtype} {name}"
    beside_copy(run, "cast", title, moved, [Build(name, make, True, moved)])
