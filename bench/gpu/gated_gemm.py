"""Gated products beside what they take the place of: the product alone to BF16 [M, 2·N], and the
product and the cast of its activation one after another.

    python bench/gpu/gated_gemm.py RESULTS.jsonl [M,N,K ...] [--activation geglu]

Each candidate and what gated_gemm() takes are checked bit for bit against the operations one after
another. All are screened in turns, and the best timed with the planner's own choice and the two
others once more.
"""

import sys
from functools import partial

import octofold
import torch
from common import candidates
from common.measure import Build, Implementation, measure_candidates
from common.operands import cast_activated, poison, scaled, sets_of
from common.run import Run, new_parser, shapes_of, text_of

SHAPES = (
    "16384,14336,4096",
    "8192,14336,4096",
    "4096,14336,8192",
    "4096,2048,7168",
    "512,14336,4096",
)


def measure_shape(run, activation, m, n, k):
    def operands():
        a, b = scaled(run, m, k, "1x128"), scaled(run, 2 * n, k, "128x128")
        b = octofold.ScaledTensor(b.data, b.scale / k**0.5, "128x128")  # gates and ups about 1
        both = torch.empty(m, 2 * n, dtype=torch.bfloat16, device=run.device)
        return a, b, both, scaled(run, m, n, "1x128")

    sets = sets_of(operands, (m + 2 * n) * k + m * n, run)
    a, b, both, out = sets[0]
    # A product by slices of K would round its sums otherwise.
    candidates.gemm(a, b, both, candidates.PLAIN if run.on_gpu else None)()
    expected = cast_activated(both, activation)

    def error(call):
        poison(out)
        call()
        codes = torch.equal(out.data.view(torch.uint8), expected.data.view(torch.uint8))
        return 0.0 if codes and torch.equal(out.scale, expected.scale) else float("nan")

    def make(name):
        calls = [candidates.gated_gemm(a, b, activation, out, name) for a, b, _, out in sets]
        return Implementation(calls, lambda: error(calls[0]), 0.0)

    def product(a, b, both, _):
        return octofold.gemm(a, b, out=both)

    def apart(a, b, both, _):
        return cast_activated(octofold.gemm(a, b, out=both), activation)

    def other(function):
        return Implementation([partial(function, *s) for s in sets], lambda: 0.0)

    others = [
        Build("gemm", lambda: other(product), True),
        Build("gemm, cast", lambda: other(apart), True),
    ]
    names = candidates.gated_gemm_names() if run.on_gpu else []
    shape, facts = text_of((m, n, k)), {"shape": [m, n, k], "activation": activation}
    measure_candidates(run, "gated gemm", shape, names, make, others, **facts)


def main():
    parser = new_parser(__doc__, rounds=7, seconds=300)
    parser.add_argument("shapes", nargs="*", metavar="M,N,K")
    parser.add_argument("--activation", default="swiglu")
    options = parser.parse_args()
    with Run(options) as run:
        default = SHAPES if run.on_gpu else ["40,256,512"]
        for shape in run.cases(shapes_of(options.shapes or default)):
            measure_shape(run, options.activation, *shape)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
