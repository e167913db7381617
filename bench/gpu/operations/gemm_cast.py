"""Products that cast their activations, beside what they take the place of: the cast and the
product one after another, and BF16.

    python bench/gpu/run.py gemm_cast RESULTS.jsonl [M/M/...,N,K ...] [--dtype bfloat16]
        [--only TEXT ...] [--planned]

Each candidate is checked bit for bit against quantize() and gemm() by the candidate of the same
name, and what is planned against FP32. All are screened in turns, and the best timed with the
planner's own choice and the others once more. Last comes a table of BF16's time over theirs.
--planned: no candidates, only what gemm() takes.
"""

from functools import partial

import octofold
import torch
from common.measure import ERROR_LIMITS, PLANNED, Build, geometric_mean, measure_candidates
from common.operands import LAYERS, normal, scaled, sets_of
from common.run import add_shapes, print_table, shapes_of, text_of
from octofold import tuning
from octofold.tuning import ProductProblem
from octofold_tool.gpu.measuring import Implementation, poison, relative_error
from octofold_tool.gpu.tune import is_sensible

ROUNDS, SECONDS = 7, 300
FEW = "1/2/4/8/16/32/64/128"
WHOLE, APART, BF16 = "gemm", "cast, gemm", "bfloat16"


def add_options(parser):
    add_shapes(parser)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="parts of candidates' names")
    parser.add_argument("--planned", action="store_true")


def cases(run):
    default = [f"{FEW},{n},{k}" for n, k in LAYERS] if run.on_gpu else ["1/20,256,512"]
    return shapes_of(run.options.shapes or default)


def measure(run, shape):
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
        tuning.gemm(casts[0], b, name, out=out)
        same = torch.equal(ours.view(torch.int16), out.view(torch.int16))
        return 0.0 if same else float("nan")

    def make(name):
        calls = [partial(tuning.gemm, x, b, name, out=out) for x, b, out in sets]
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
    names = tuning.candidates(ProductProblem(1, 1, 1, cast_from="bfloat16"))
    names = [] if options.planned else [name for name in names if is_sensible(name, m)]
    facts = {"shape": [m, n, k], "dtype": options.dtype}
    times = measure_candidates(
        run, "gemm with cast", text_of(shape), names, make, others, options.only, **facts
    )
    return m, times


def best(times):
    """The time of the fastest candidate; the planned one's if none was measured."""
    ours = [t[-1] for name, t in times.items() if name not in (PLANNED, WHOLE, APART, BF16)]
    return min(ours or times[PLANNED])


def summary(found):
    rows = []
    for m in sorted({m for m, _ in found}):
        those = [times for rows_, times in found if rows_ == m]
        row = [geometric_mean(times[BF16][-1] / best(times) for times in those)]
        for name in (PLANNED, APART, WHOLE):
            row.append(geometric_mean(times[BF16][-1] / times[name][-1] for times in those))
        wins = sum(times[PLANNED][-1] < times[APART][-1] for times in those)
        rows.append([str(m), *row, f"{wins} of {len(those)}"])
    title = "BF16's time over theirs, geometric mean over the layers; wins: planned before apart"
    print_table(title, ["rows", "best", "planned", "apart", "gemm", "wins"], rows)
