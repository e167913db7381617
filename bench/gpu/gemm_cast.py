"""Products that cast their activations, beside what they take the place of: the cast and the
product one after another, and BF16.

    python bench/gpu/gemm_cast.py RESULTS.jsonl [M/M/...,N,K ...] [--dtype bfloat16]
        [--only TEXT ...] [--planned]

Each candidate is checked bit for bit against quantize() and gemm() by the candidate of the same
name, and what is planned against FP32. All are screened in turns, and the best timed with the
planner's own choice and the others once more. Last comes a table of BF16's time over theirs.
--planned: no candidates, only what gemm() takes.
"""

import sys
from functools import partial

import octofold
import torch
from common import candidates
from common.measure import (
    ERROR_LIMITS,
    PLANNED,
    Build,
    Implementation,
    geometric_mean,
    measure_candidates,
)
from common.operands import LAYERS, normal, poison, relative_error, scaled, sets_of
from common.run import Run, new_parser, print_table, shapes_of, text_of

FEW = "1/2/4/8/16/32/64/128"
WHOLE, APART, BF16 = "gemm", "cast, gemm", "bfloat16"


def measure_shape(run, options, names, m, n, k):
    def operands():
        out = torch.empty(m, n, dtype=torch.bfloat16, device=run.device)
        return normal(run, m, k, dtype=options.dtype), scaled(run, n, k, "128x128"), out

    sets = sets_of(operands, n * k, run)
    casts = [octofold.quantize(x) for x, _, _ in sets]
    wide = [normal(run, n, k) for _ in sets[: max(1, len(sets) // 2)]]
    x, b, out = sets[0]
    expected = casts[0].dequantize("float32") @ b.dequantize("float32").T

    def error(call, name=PLANNED):
        poison(out)
        call()
        ours = out.clone()
        if name in (PLANNED, None):
            return relative_error(ours, expected)
        poison(out)
        candidates.gemm(casts[0], b, out, name)()
        same = torch.equal(ours.view(torch.int16), out.view(torch.int16))
        return 0.0 if same else float("nan")

    def make(name):
        calls = [candidates.gemm(*operands, name) for operands in sets]
        limit = ERROR_LIMITS[torch.bfloat16] if name is None else 0.0
        return Implementation(calls, lambda: error(calls[0], name), limit)

    def other(calls, check=True):
        return Implementation(calls, lambda: error(calls[0]) if check else 0.0)

    def product(a, b, out):
        return octofold.gemm(a, b, out=out)

    def apart(x, b, out):
        return octofold.gemm(octofold.quantize(x), b, out=out)

    def bfloat16():
        x16 = x.bfloat16()
        return [partial(torch.mm, x16, w.t(), out=s[2]) for w, s in zip(wide, sets, strict=False)]

    products = [partial(product, a, *s[1:]) for a, s in zip(casts, sets, strict=True)]
    others = [
        Build(WHOLE, lambda: other(products), True),
        Build(APART, lambda: other([partial(apart, *s) for s in sets]), True),
        Build(BF16, lambda: other(bfloat16(), check=False)),
    ]
    sensible = [name for name in names if candidates.sensible_swapped(name, m)]
    shape, facts = text_of((m, n, k)), {"shape": [m, n, k], "dtype": options.dtype}
    return measure_candidates(run, "gemm with cast", shape, sensible, make, others, **facts)[0]


def best(times):
    """The time of the fastest candidate; the planned one's if none was measured."""
    ours = [t[-1] for name, t in times.items() if name not in (PLANNED, WHOLE, APART, BF16)]
    return min(ours or times[PLANNED])


def show(found):
    rows = []
    for m in sorted({m for m, _, _ in found}):
        those = [times for (rows_, _, _), times in found.items() if rows_ == m]
        row = [geometric_mean(times[BF16][-1] / best(times) for times in those)]
        for name in (PLANNED, APART, WHOLE):
            row.append(geometric_mean(times[BF16][-1] / times[name][-1] for times in those))
        wins = sum(times[PLANNED][-1] < times[APART][-1] for times in those)
        rows.append([str(m), *row, f"{wins} of {len(those)}"])
    title = "BF16's time over theirs, geometric mean over the layers; wins: planned before apart"
    print_table(title, ["rows", "best", "planned", "apart", "gemm", "wins"], rows)


def main():
    parser = new_parser(__doc__, rounds=7, seconds=300)
    parser.add_argument("shapes", nargs="*", metavar="M,N,K")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--only", nargs="+", metavar="TEXT")
    parser.add_argument("--planned", action="store_true")
    options = parser.parse_args()
    found = {}
    with Run(options) as run:
        names = [] if options.planned or not run.on_gpu else candidates.cast_gemm_names()
        names = candidates.of_texts(names, options.only)
        default = [f"{FEW},{n},{k}" for n, k in LAYERS] if run.on_gpu else ["1/20,256,512"]
        for shape in run.cases(shapes_of(options.shapes or default)):
            found[shape] = measure_shape(run, options, names, *shape)
    show(found)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
