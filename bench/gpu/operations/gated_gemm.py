"""Gated products beside what they take the place of: the product alone to BF16 [M, 2·N], and the
product and the cast of its activation one after another.

    python bench/gpu/run.py gated_gemm RESULTS.jsonl [M,N,K ...] [--activation geglu]

Each candidate and what gated_gemm() takes are checked bit for bit against the operations one after
another. All are screened in turns, and the best timed with the planner's own choice and the two
others once more.
"""

from functools import partial

import octofold
import torch
from common.measure import ERROR_LIMITS, Build, measure_candidates
from common.operands import cast_activated, scaled, sets_of
from common.run import add_shapes, shapes_of, text_of
from octofold import tuning
from octofold.tuning import ProductProblem
from octofold_tool.gpu.measuring import Implementation, poison, relative_error

ROUNDS, SECONDS = 7, 300
SHAPES = (
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
    parser.add_argument("--activation", default="swiglu")


def cases(run):
    return shapes_of(run.options.shapes or (SHAPES if run.on_gpu else ["40,256,512"]))


def measure(run, shape):
    activation, (m, n, k) = run.options.activation, shape

    def operands():
        a, b = scaled(run, m, k, "1x128"), scaled(run, 2 * n, k, "128x128")
        b = octofold.ScaledTensor(b.data, b.scale / k**0.5, "128x128")  # gates and ups about 1
        both = torch.empty(m, 2 * n, dtype=torch.bfloat16, device=run.device)
        return a, b, both, scaled(run, m, n, "1x128")

    sets = sets_of(operands, (m + 2 * n) * k + m * n, run)
    a, b, both, out = sets[0]
    tuning.gemm(a, b, PLAIN if run.on_gpu else None, out=both)
    expected = cast_activated(both, activation)
    product = both[:64].clone()

    def error(call):
        poison(out)
        call()
        codes = torch.equal(out.data.view(torch.uint8), expected.data.view(torch.uint8))
        return 0.0 if codes and torch.equal(out.scale, expected.scale) else float("nan")

    def make(name):
        calls = [
            partial(tuning.gated_gemm, a, b, None, name, activation=activation, out=out)
            for a, b, _, out in sets
        ]
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
    names = tuning.candidates(ProductProblem(1, 1, 1, out="e4m3", gated="swiglu"))
    facts = {"shape": [m, n, k], "activation": activation}
    measure_candidates(run, "gated gemm", text_of(shape), names, make, others, **facts)
