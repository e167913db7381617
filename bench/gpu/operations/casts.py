"""Bandwidth of the casts beside that of a copy of as many bytes ("speed": the share of its rate).

    python bench/gpu/run.py casts RESULTS.jsonl [--shape ROWS,COLUMNS] [--only NAME ...]
    python bench/gpu/run.py casts RESULTS.jsonl --sections stacks [--only NAME ...]
    python bench/gpu/run.py casts RESULTS.jsonl --sections codes

Sections: matrices; stacks, the weights of 32 experts, each cast as if alone, and beside them all
their rows as one matrix; codes, transposes of FP8 codes, and torch's. Bytes are those that have to
move: each input read once (twice where a scale is known only when all of x has been read), each
output written once.
"""

import functools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import octofold
import torch
from common.measure import Build, beside_copy, keeping
from common.operands import normal, sets_of
from common.run import Run, add_only, sizes, text_of
from octofold.ops import Target, cast
from octofold_tool.gpu.measuring import Implementation, Wrong, relative_error

ROUNDS, SECONDS = 9, 500
RULES = ("deepgemm", "vllm-per-token")  # one that multiplies, one that divides
CODES = ((4096, 4096), (14336, 4096), (8, 14336, 4096), (4096, 4104), (4100, 4096), (1024, 1024))
SECTIONS = {  # shapes on a GPU, and one on a CPU
    "matrices": (((8192, 8192),), (256, 384)),
    "stacks": (((32, 4096, 7168), (32, 7168, 2048)), (2, 128, 256)),  # w13 and w2
    "codes": (CODES, (144, 272)),
}
ERROR_LIMIT = 0.05

Case = tuple[str, tuple[int, ...], str, str, int, int, Callable[..., Any]]
"""Section, shape, type, name, how often x is read, how many casts are written, and the call."""


def add_options(parser):
    add_only(parser)
    parser.add_argument("--shape", type=sizes, metavar="ROWS,COLUMNS")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=["matrices"])


def cases(run: Run) -> Iterator[Case]:
    options = run.options
    for section in options.sections:
        shapes, tiny = SECTIONS[section]
        shapes = [options.shape] if options.shape else shapes if run.on_gpu else [tiny]
        dtypes = ("bfloat16", "float32") if section == "matrices" else ("bfloat16",)
        for shape in shapes:
            for dtype in dtypes:
                for name, *case in MADE[section]():
                    if any(text in name for text in options.only):
                        yield section, shape, dtype, name, *case


def measure(run: Run, case: Case) -> None:
    section, shape, *rest = case
    if section == "codes":
        measure_transpose(run, shape)
    else:
        measure_cast(run, shape, *rest)


def matrix_casts():
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


MADE = {
    "matrices": matrix_casts,
    "stacks": stacked_casts,
    "codes": lambda: [("transpose", 1, 1, octofold.ops.transpose)],
}


def cast_error(results: Any, expected: torch.Tensor | None) -> float:
    """The largest error of the casts among the results, each of `expected`, of its transpose or of
    a stack of such matrices; NaN where a result is not finite. None: they are finite, 0."""
    errors = [0.0]
    for x in results if isinstance(results, tuple) else (results,):
        if not isinstance(x, octofold.ScaledTensor):
            errors.append(0.0 if x is None or x.float().isfinite().all() else float("nan"))
            continue
        if len(x.shape) == 3 and x.scale.dim() == 3:  # the first matrix speaks for a stack
            x = octofold.ScaledTensor(x.data[0], x.scale[0], x.granularity)
        values = x.dequantize("float32")
        if expected is None:
            errors.append(0.0 if values.isfinite().all() else float("nan"))
            continue
        matrix = expected[0] if expected.dim() == 3 else expected
        likely = (side for side in (matrix, matrix.T) if side.shape == values.shape)
        errors.append(min(relative_error(values, side) for side in likely))
    return float(torch.tensor(errors).max())  # NaN if one is


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
