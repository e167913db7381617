"""Products that do more than multiply, beside the operations one after another that they take the
place of.

    python bench/gpu/run.py gemm_fused RESULTS.jsonl [--sections cast gated] [M/M/...,N,K ...]
        [--dtype bfloat16] [--activation geglu] [--only TEXT ...] [--planned]

Sections:
    cast   gemm() that casts its x, beside the cast and the product, the product alone, and BF16.
           Each candidate is checked bit for bit against quantize() and gemm() by the candidate of
           the same name, and what is planned against FP32. Last comes a table of BF16's time over
           theirs
    gated  gated_gemm(), beside the product to BF16 [M, 2·N] and the cast of its activation, and the
           product alone; each checked bit for bit against the operations one after another

All candidates are screened in turns, and the best timed with the planner's own choice and the
others once more. --planned: no candidates.
"""

from functools import partial

import octofold
import torch
from common.measure import ERROR_LIMITS, PLANNED, Build, geometric_mean, measure_candidates
from common.operands import cast_activated, normal, scaled, sets_of
from common.run import add_choices, add_shapes, print_table, shapes_of, text_of
from octofold import tuning
from octofold_tool.gemm_options import DEEPSEEK_V3
from octofold_tool.gpu.measuring import Implementation, poison, relative_error
from octofold_tool.gpu.tune import is_sensible

ROUNDS, SECONDS = 7, 300
FEW = "1/2/4/8/16/32/64/128"
WHOLE, APART, BF16 = "gemm", "cast, gemm", "bfloat16"
GATED_SHAPES = (
    "16384,14336,4096",
    "8192,14336,4096",
    "4096,14336,8192",
    "4096,2048,7168",
    "512,14336,4096",
)
PLAIN = "128x128.w2.c1x1x1.b1.early"
"""Does not sum K in slices: it rounds its sums as the gated kernels do."""


def add_options(parser):
    add_shapes(parser)
    add_choices(parser, "--sections", ("cast", "gated"))
    add = parser.add_argument
    add("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    add("--activation", default="swiglu")
    add("--only", nargs="+", metavar="TEXT", help="parts of candidates' names")
    add("--planned", action="store_true")


def cases(run):
    """The function that measures, and a shape."""
    defaults = {"cast": [f"{FEW},{n},{k}" for n, k in DEEPSEEK_V3], "gated": GATED_SHAPES}
    tiny = {"cast": ["1/20,256,512"], "gated": ["40,256,512"]}
    for section in run.options.sections:
        default = (defaults if run.on_gpu else tiny)[section]
        for shape in shapes_of(run.options.shapes or default):
            yield {"cast": measure_cast, "gated": measure_gated}[section], shape


def measure(run, case):
    function, shape = case
    return function(run, shape)


def measure_cast(run, shape):
    """Returns the number of rows and the times."""
    options, (m, n, k) = run.options, shape

    def operands():
        out = torch.empty(m, n, dtype=torch.bfloat16, device=run.device)
        return normal(run, m, k, dtype=options.dtype), scaled(run, n, k, "128x128"), out

    sets = sets_of(operands, n * k, run)
    casts = [octofold.quantize(x) for x, _, _ in sets]
    wide = [normal(run, n, k) for _ in sets[: max(1, len(sets) // 2)]]
    x, b, out = sets[0]
    expected = casts[0].dequantize("float32") @ b.dequantize("float32").T

    def error(call, name=None):
        poison(out)
        call()
        if name is None:
            return relative_error(out, expected)
        ours = out.clone()
        poison(out)
        with tuning.using(name):
            octofold.gemm(casts[0], b, out=out)
        same = torch.equal(ours.view(torch.int16), out.view(torch.int16))
        return 0.0 if same else float("nan")

    def make(name):
        call = tuning.using(name)(octofold.gemm)
        calls = [partial(call, x, b, out=out) for x, b, out in sets]
        limit = ERROR_LIMITS[torch.bfloat16] if name is None else 0.0
        return Implementation(calls, partial(error, calls[0], name), limit)

    def whole():
        calls = [
            partial(octofold.gemm, a, b, out=out)
            for a, (_, b, out) in zip(casts, sets, strict=True)
        ]
        return Implementation(calls, partial(error, calls[0]))

    def apart():
        def call(x, b, out):
            octofold.gemm(octofold.quantize(x), b, out=out)

        calls = [partial(call, *each) for each in sets]
        return Implementation(calls, partial(error, calls[0]))

    def bfloat16():
        x16 = x.bfloat16()
        calls = [partial(torch.mm, x16, w.t(), out=s[2]) for w, s in zip(wide, sets, strict=False)]
        return Implementation(
            calls, lambda: relative_error(calls[0](), x16.float() @ wide[0].T.float())
        )

    others = [Build(WHOLE, whole, True), Build(APART, apart, True), Build(BF16, bfloat16)]
    names = tuning.candidates(f"gemm: m {m}, n {n}, k {k}, cast_from bfloat16")
    names = [] if options.planned else [name for name in names if is_sensible(name, m)]
    facts = {"shape": [m, n, k], "dtype": options.dtype}
    times = measure_candidates(
        run, "gemm with cast", text_of(shape), names, make, others, options.only, **facts
    )
    return m, times


def measure_gated(run, shape):
    activation, (m, n, k) = run.options.activation, shape

    def operands():
        a, b = scaled(run, m, k, "1x128"), scaled(run, 2 * n, k, "128x128")
        b = octofold.ScaledTensor(b.data, b.scale / k**0.5, "128x128")  # gates and ups about 1
        both = torch.empty(m, 2 * n, dtype=torch.bfloat16, device=run.device)
        return a, b, both, scaled(run, m, n, "1x128")

    sets = sets_of(operands, (m + 2 * n) * k + m * n, run)
    a, b, both, out = sets[0]
    with tuning.using(PLAIN if run.on_gpu else None):
        octofold.gemm(a, b, out=both)
    expected = cast_activated(both, activation)
    product = both[:64].clone()

    def error(call):
        poison(out)
        call()
        codes = torch.equal(out.data.view(torch.uint8), expected.data.view(torch.uint8))
        return 0.0 if codes and torch.equal(out.scale, expected.scale) else float("nan")

    def make(name):
        call = partial(tuning.using(name)(octofold.ops.gated_gemm), activation=activation)
        calls = [partial(call, a, b, out=out) for a, b, _, out in sets]
        return Implementation(calls, partial(error, calls[0]), 0.0)

    def other(cast):
        def call(a, b, both, _):
            octofold.gemm(a, b, out=both)
            return cast_activated(both, activation) if cast else both

        def error():
            poison(both)
            call(*sets[0])
            return relative_error(both[:64], product)

        return Implementation([partial(call, *s) for s in sets], error, ERROR_LIMITS[both.dtype])

    others = [
        Build("gemm", partial(other, False), True),
        Build("gemm, cast", partial(other, True), True),
    ]
    names = tuning.candidates(f"gated_gemm: m {m}, n {n}, k {k}")
    names = [] if run.options.planned else names
    facts = {"shape": [m, n, k], "activation": activation}
    measure_candidates(
        run, "gated gemm", text_of(shape), names, make, others, run.options.only, **facts
    )


def best(times):
    """The time of the fastest candidate; the planned one's if none was measured."""
    ours = [t[-1] for name, t in times.items() if name not in (PLANNED, WHOLE, APART, BF16)]
    return min(ours or times[PLANNED])


def summary(found):
    found = [each for each in found if each is not None]
    rows = []
    for m in sorted({m for m, _ in found}):
        those = [times for rows_, times in found if rows_ == m]
        row = [geometric_mean(times[BF16][-1] / best(times) for times in those)]
        for name in (PLANNED, APART, WHOLE):
            row.append(geometric_mean(times[BF16][-1] / times[name][-1] for times in those))
        wins = sum(times[PLANNED][-1] < times[APART][-1] for times in those)
        rows.append([str(m), *row, f"{wins} of {len(those)}"])
    if rows:
        title = (
            "BF16's time over theirs, geometric mean over the layers; wins: planned before apart"
        )
        print_table(title, ["rows", "best", "planned", "apart", "gemm", "wins"], rows)
