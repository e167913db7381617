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
from octofold import tuning

from tests.gpu.attention_problems import attention_problems
from tests.gpu.group_problems import group_problems
from tests.gpu.targets import candidate_names, does_what_hopper_does, is_hopper
from tests.gpu.word_problems import arrival_problems, word_problems
from tests.python.casting import GRANULARITIES, cast_side, cast_with, only

PAIRS = (
    ("tensor", "tensor"),
    ("channel", "channel"),
    ("1x128", "128x128"),
    ("1x128", "1x128"),
    ("1x128", "two-level"),
)
# Whole tiles in several waves; ragged in every way; one row; K that TMA cannot load, also in words.
SHAPES = ((256, 384, 512), (131, 197, 272), (1, 264, 1024), (70, 90, 300), (70, 90, 301))
LIMIT = 1e-2  # a unit of scales that is wrong makes more; codes that sums' rounding moves, 6e-3
FLOATS = (torch.bfloat16, torch.float32)

parser = argparse.ArgumentParser()
parser.add_argument("device", nargs="?", default="cuda")
parser.add_argument("--every", type=int, default=1, help="of so many problems one")
parser.add_argument("--only", nargs="*", default=[""], help="with such a text in the name")
ARGUMENTS = parser.parse_args()
DEVICE = ARGUMENTS.device


def operand(rows, cols, granularity):
    """On the CPU: codes, and scales that differ from neighbour to neighbour."""
    codes = (32 * torch.randn(rows, cols)).to(torch.float8_e4m3fn)
    factors = None
    if granularity == "two-level":
        granularity, factors = "128x128", torch.exp2(8 * torch.rand(rows) - 4)
    scale = torch.exp2(4 * torch.rand(octofold.ops.scale_shape(granularity, rows, cols)) - 8)
    return octofold.ScaledTensor(codes, scale, granularity, factors)


def to_device(x):
    """In memory that ends with a unit of 16 bytes: rows that TMA cannot address are copied by
    cp.async of 16 with the count of those that are to be read, and memcheck knows no counts."""
    rows, cols = x.shape
    memory = torch.zeros(-(-rows * cols // 16) * 16, dtype=x.data.dtype, device=DEVICE)
    data = memory[: rows * cols].view(rows, cols)
    data.copy_(x.data)
    factors = None if x.channel_scale is None else x.channel_scale.to(DEVICE)
    return octofold.ScaledTensor(data, x.scale.to(DEVICE), x.granularity, factors)


def product(a, b, c=None, bias=None, out_dtype=None):
    """On the device, C in place, and what the CPU backend gives."""
    expected = octofold.gemm(a, b, c=c, bias=bias, out_dtype=out_dtype)
    a, b = to_device(a), to_device(b)
    if c is None:
        return octofold.gemm(a, b, out_dtype=out_dtype), expected
    out = c.to(DEVICE)
    octofold.gemm(a, b, out=out, c=out, bias=bias.to(DEVICE))
    return out, expected


def products():
    """Names, and what computes a result on the device and on the CPU."""
    for pair, (m, n, k), out_dtype in itertools.product(PAIRS, SHAPES, FLOATS):
        a, b = operand(m, k, pair[0]), operand(n, k, pair[1])
        c, bias = torch.randn(m, n).to(out_dtype), torch.randn(n)
        name = f"gemm {pair[0]} x {pair[1]} {m},{n},{k} {out_dtype}"
        yield name, partial(product, a, b, out_dtype=out_dtype)
        yield name + " in place + bias", partial(product, a, b, c, bias, out_dtype)


def by_candidate(name, a, b, c, out_dtype):
    device_a, device_b = to_device(a), to_device(b)
    out = torch.zeros(a.shape[0], b.shape[0], dtype=out_dtype, device=DEVICE)
    if c is not None:
        out.copy_(c)
    added = out if c is not None else None
    with tuning.using(name):
        octofold.gemm(device_a, device_b, c=added, out=out)
    return out, octofold.gemm(a, b, c=c, out_dtype=out_dtype)


def candidates():
    """The same of every configuration: BF16, and FP32 in place."""
    m, n, k = 300, 264, 1040
    a, b = operand(m, k, "1x128"), operand(n, k, "128x128")
    for out_dtype, c_name in ((torch.bfloat16, None), (torch.float32, "float32")):
        c = torch.randn(m, n) if c_name else None
        out_name = str(out_dtype).removeprefix("torch.")
        addend = [f"c {c_name}"] if c_name else []
        for name in candidate_names("gemm", f"out {out_name}", *addend):
            yield f"candidate {name} {out_name}", partial(by_candidate, name, a, b, c, out_dtype)


def activation(x, gradient, options):
    """Both casts of it, or of its gradient where there is one; few codes differ by one step."""
    if gradient is None:
        source, arguments = octofold.ops.Activated, (x,)
    else:
        source, arguments = octofold.ops.ActivationGradient, (gradient, x)
    kind = {name: options[name] for name in ("activation", "layout") if name in options}
    options = {name: value for name, value in options.items() if name not in kind}
    results = [
        torch.cat([result.dequantize().flatten().cpu() for result in casts[:2]])
        for casts in (
            cast_with(source(*arrays, **kind), targets="both", **options)
            for arrays in ([array.to(DEVICE) for array in arguments], arguments)
        )
    ]
    return results[0], results[1]


def two_level(x, factors):
    """The cast that a layer makes of x, and what the factors take it back to."""

    def run(x, factors):
        options = {"transposed_granularity": "128x128", "transposed_channel_scale": factors}
        casts = cast_with(x, columns="amax", targets="both", **options)
        return flat([casts.rows, casts.transposed, casts.amax])

    return run(x.to(DEVICE), factors.to(DEVICE)), run(x, factors)


def two_level_casts():
    for (rows, cols), dtype in itertools.product(((256, 384), (131, 77), (1, 1)), FLOATS):
        factors = torch.exp2(8 * torch.rand(cols) - 4)
        x = (torch.randn(rows, cols) * factors).to(dtype)
        yield f"two-level {rows},{cols} {dtype}", partial(two_level, x, factors)


def in_groups(x, offsets, sources, factors):
    """With offsets and sources such as nobody should give. What can be compared is every second
    row, which comes from its own."""
    offsets, sources = offsets.to(DEVICE), sources.to(DEVICE)
    for granularity, transposed in (("1x128", None), ("1x128", "128x128"), ("1x128", "channel")):
        options = {"granularity": granularity, "transposed_granularity": transposed}
        options |= {"targets": "both", "offsets": offsets}
        cast_with(x.to(DEVICE), **options)
        of_places = {"slots": factors.shape[1], "factors": factors.to(DEVICE)}
        cast_with(octofold.ops.Gathered(x.to(DEVICE), sources, **of_places), **options)
    rows = cast_side(octofold.ops.Gathered(x.to(DEVICE), sources), "channel")
    return rows.dequantize()[::2], octofold.quantize(x, "channel").dequantize()[::2]


def group_casts():
    if DEVICE == "cpu":
        return  # its backend raises
    most = 2**31 - 1
    for (rows, cols), dtype in itertools.product(((390, 384), (131, 77)), FLOATS):
        x, factors = torch.randn(rows, cols).to(dtype), torch.randn(rows, 3)
        sources = torch.randint(-most, most, (rows,))
        sources[::2] = torch.arange(0, rows, 2)
        for offsets in (
            [0, 5, 5, 100, rows],
            [rows, 200, 100, 0, 0],
            [most] * 5,
            [-most] * 5,
            [-300, 5 * rows, 7, -1, 129],
        ):
            name = f"casts in groups {rows},{cols} {dtype} {offsets}"
            places = torch.tensor(offsets, dtype=torch.int32)
            yield name, partial(in_groups, x, places, sources.int(), factors)


def activations():
    for granularity, (rows, cols), layout in itertools.product(
        GRANULARITIES,
        ((256, 256), (131, 264), (5, 7)),
        ("halves", "interleaved"),
    ):
        x, gradient = torch.randn(rows, 2 * cols), torch.randn(rows, cols)
        options = {"granularity": granularity, "layout": layout}
        for name, operand in (("activation", None), ("activation gradient", gradient)):
            yield f"{name} {options} {rows},{cols}", partial(activation, x, operand, options)
            codes = octofold.quantize(x, granularity)
            yield (
                f"{name} from FP8 {options} {rows},{cols}",
                partial(activation, codes, operand, options),
            )


def gated(name, a, b):
    """By a configuration of gated products; few codes differ by one step."""
    m, n = a.shape[0], b.shape[0] // 2
    on_device = [to_device(x) for x in (a, b)]
    codes = torch.zeros(m, n, dtype=torch.float8_e4m3fn, device=DEVICE)
    scale = torch.zeros(m, n // 128, device=DEVICE)
    result = octofold.ScaledTensor(codes, scale, "1x128")
    with tuning.using(name):
        octofold.ops.gated_gemm(*on_device, out=result)
    return result.dequantize(), octofold.ops.gated_gemm(a, b).dequantize()


def gated_products():
    """The second K is longer than the ring."""
    for (m, n, k), name in itertools.product(
        ((1, 128, 16), (300, 384, 1040)),
        candidate_names("gated_gemm"),
    ):
        a, b = operand(m, k, "1x128"), operand(2 * n, k, "128x128")
        yield f"gated {name} {m},{n},{k}", partial(gated, name, a, b)


def casting_product(name, x, b, more):
    """By a configuration of products that cast; so many elements behind each row of x."""
    on_device, rows = to_device(b), torch.zeros(x.shape[0], x.shape[1] + more, device=DEVICE)
    x_on_device = rows.bfloat16()[:, : x.shape[1]].copy_(x)
    out = torch.zeros(x.shape[0], b.shape[0], dtype=torch.bfloat16, device=DEVICE)
    with tuning.using(name):
        octofold.gemm(x_on_device, on_device, out=out)
    return out, octofold.gemm(x, b)


def casting_products():
    """The second K is longer than most rings; the last rows are read element by element."""
    for (m, n, k, more), name in itertools.product(
        ((1, 72, 16, 0), (13, 200, 2064, 0), (70, 64, 400, 1)),
        candidate_names("gemm", "cast_from bfloat16"),
    ):
        x, b = torch.randn(m, k).bfloat16(), operand(n, k, "128x128")
        yield (
            f"gemm that casts {name} {m},{n},{k} {more}",
            partial(casting_product, name, x, b, more),
        )


def flat(results):
    """All values of some results, on the CPU."""
    values = [r.dequantize() if isinstance(r, octofold.ScaledTensor) else r for r in results]
    return torch.cat([value.flatten().float().cpu() for value in values if value is not None])


def norm(x, operands, options):
    """Casts, sum, statistics and numbers; few codes differ by one step."""

    def run(x, operands):
        source = octofold.ops.Normed(x, **operands, residual=x, kind="layer")
        casts = cast_with(source, **options)
        return [*casts[:2], *casts.norm, octofold.ops.norm(source).y]

    on_device = {name: operand.to(DEVICE) for name, operand in operands.items()}
    return flat(run(x.to(DEVICE), on_device)), flat(run(x, operands))


def norm_gradients(x, operands):
    def run(x, rstd, operands):
        return octofold.ops.norm_gradient(
            x, x, rstd, 0 * rstd, **operands, residual_gradient=x, kind="layer"
        )

    rstd = torch.rand(x.shape[0])
    on_device = {name: operand.to(DEVICE) for name, operand in operands.items()}
    return flat(run(x.to(DEVICE), rstd.to(DEVICE), on_device)), flat(run(x, rstd, operands))


def norms():
    # Rows that threads hold, and that none do, in vectors and element by element.
    for (rows, cols), dtype in itertools.product(
        ((256, 384), (130, 77), (6, 7168), (4, 40_000), (2, 20_001)), FLOATS
    ):
        x = torch.randn(rows, cols).to(dtype)
        operands = {name: torch.randn(cols).to(dtype) for name in ("weight", "bias")}
        operands |= {name: torch.randn(2, cols) for name in ("ada_scale", "ada_shift")}
        yield f"norm gradients {rows},{cols} {dtype}", partial(norm_gradients, x, operands)
        for granularity, targets in itertools.product(GRANULARITIES, ("rows", "both")):
            options = {"granularity": granularity, "targets": targets, "power_of_two": True}
            yield f"norm {options} {rows},{cols} {dtype}", partial(norm, x, operands, options)


def cast(x, options):
    """The same bits, so the same values."""
    on_device, on_cpu = (only(cast_with(given, **options)) for given in (x.to(DEVICE), x))
    return on_device.dequantize(), on_cpu.dequantize()


def casts():
    problems = itertools.product(
        GRANULARITIES,
        ((256, 384), (131, 200), (1, 1)),
        FLOATS,
        ("deepgemm", "vllm-per-token"),  # one multiplies, one divides
        (False, True),
    )
    # Rows that clusters share; more of them than clusters run at one time.
    wide = [("channel", (150, 40_000), dtype, "vllm-per-token", False) for dtype in FLOATS]
    for granularity, shape, dtype, rule, transpose in itertools.chain(problems, wide):
        x = torch.randn(shape).to(dtype)
        options = {"granularity": granularity, "rule": rule}
        options["targets"] = "transposed" if transpose else "rows"
        yield f"cast {options} {shape} {dtype}", partial(cast, x, options)


def columns(x, options):
    """Casts, sums and largest magnitudes of columns."""
    of_device, of_cpu = (
        flat(cast_with(given, columns="both", **options)[:4]) for given in (x.to(DEVICE), x)
    )
    return of_device, of_cpu


def casts_with_columns():
    for granularity, (rows, cols), dtype, targets in itertools.product(
        ("channel", "1x128", "128x128"), ((256, 384), (131, 77), (1, 1)), FLOATS, ("rows", "both")
    ):
        x = torch.randn(rows, cols).to(dtype)
        options = {"granularity": granularity, "targets": targets}
        yield f"columns {options} {rows},{cols} {dtype}", partial(columns, x, options)


def routing(tokens, experts, k, dtype):
    """Choices, rows by expert, sums and gradients. On the device the ids and positions hold besides
    what is no expert and no row; the CPU has -1 there."""
    logits, weights = torch.randn(tokens, experts).to(dtype), torch.randn(tokens, k)
    ids = torch.randint(-1, experts, (tokens, k), dtype=torch.int32)
    y, c = torch.randn(tokens * k, 72 + k).to(dtype), torch.randn(tokens, 72 + k).to(dtype)
    bias = torch.full((experts,), 0.5)
    hostile = torch.tensor([-2, experts * tokens * k, -(2**31), 2**31 - 1], dtype=torch.int32)

    def run(device):
        def place(index):
            if device == "cpu":
                return index
            nowhere = hostile[torch.arange(index.numel()) % 4].view_as(index)
            return torch.where(index < 0, nowhere, index)

        x, w, rows, add, experts_of = (t.to(device) for t in (logits, weights, y, c, place(ids)))
        offsets, sources, positions = octofold.ops.sort_by_expert(experts_of, experts)
        positions = place(positions.cpu()).to(device)
        grouped = {"scoring": "sigmoid", "groups": 2, "top_groups": 1}
        return flat([
            octofold.ops.top_k(x, k, **grouped, bias=bias.to(device)).weights,
            octofold.ops.top_k(x, k, normalize=True).weights,
            octofold.ops.top_k_gradient(w, x, experts_of, normalize=True),
            offsets, sources,
            octofold.ops.combine(rows, positions, w, c=add),
            octofold.ops.combine(rows[:, :72], positions, out_dtype=torch.float32),
            octofold.ops.combine_gradient(add, rows, positions),
            octofold.ops.activation_dots(rows[:, :36], rows[:, :72], positions),
        ])  # fmt: skip

    return run(DEVICE), run("cpu")


def routings():
    # One span of slots and several; rows in vectors and element by element.
    for (tokens, experts, k), dtype in itertools.product(
        ((5, 8, 2), (300, 64, 8), (700, 300, 6), (500, 1024, 8)), FLOATS
    ):
        yield f"routing {tokens},{experts},{k} {dtype}", partial(routing, tokens, experts, k, dtype)


def main():
    torch.manual_seed(0)
    arrivals = arrival_problems(DEVICE, operand, to_device)
    named = [candidates(), gated_products(), *([casting_products()] if is_hopper() else [])]
    problems = itertools.chain(
        products(),
        group_problems(DEVICE),
        arrivals if does_what_hopper_does(DEVICE) else (),
        *([] if DEVICE == "cpu" else named),  # which has no candidates
        casts(),
        casts_with_columns(),
        two_level_casts(),
        group_casts(),
        activations(),
        norms(),
        routings(),
        word_problems(DEVICE),
        attention_problems(DEVICE),
    )
    wanted = [problem for problem in problems if any(text in problem[0] for text in ARGUMENTS.only)]
    chosen = wanted[:: ARGUMENTS.every]
    for name, compute in chosen:
        actual, expected = (result.cpu().double() for result in compute())
        error = torch.linalg.norm(actual - expected) / torch.linalg.norm(expected)
        print(f"{error:.1e} {name}", flush=True)
        if not error < LIMIT:  # NaN is wrong too
            sys.exit(f"{name}: relative error {error:.1e} against the CPU backend")
    print(f"{len(chosen)} problems computed as on the CPU")


main()
