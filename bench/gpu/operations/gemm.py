"""Every GEMM configuration at many shapes, beside cuBLASLt, BF16 and DeepGEMM: what the planner's
costs come from, and what it is judged by.

    python bench/gpu/run.py gemm RESULTS.jsonl SHAPE ... [--pair 1x128 128x128] [--out float32]
        [--add] [--fast] [--unaligned] [--only TEXT ... | --planned]

    python bench/gpu/run.py gemm RESULTS.jsonl --planned --draw 69 [--multiple 128] [--seed 1]

SHAPE is M,N,K; M may be several, with slashes: 1/16/64,4096,7168; @FILE has one a line. All are
checked, screened in turns, and the best timed with the peers and the planner's own choice once
more. A line of JSON for each shape: microseconds by name, the second number where it was timed
again.

"batch-invariant" is a call of which rows do not depend on the rows beside them.

--draw: shapes at random, M from 1 to 16384, N and K from 64 to 16384, each by its logarithm; N and
K of every other one are multiples of 8. The last lines name the worst beside BF16.
"""

import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import octofold
from common.measure import PLANNED, Build, measure_candidates
from common.operands import normal, sets_of
from common.run import add_shapes, shapes_of, text_of
from octofold import tuning
from octofold_tool.gpu.measuring import (
    PEER_ERROR_LIMIT,
    Implementation,
    Product,
    error_of,
    limit_of,
)
from octofold_tool.gpu.peers import (
    BFLOAT16,
    PEERS,
    prepare_deepgemm_added,
    prepare_octofold,
)
from octofold_tool.gpu.tune import is_sensible
from octofold_tool.products import GemmOptions

ROUNDS, SECONDS = 7, 300
INVARIANT = "octofold, batch-invariant"
NAMES = {"cublaslt_same_scales": "same scales", "cublaslt_tensor_scales": "tensor scales"}


def add_options(parser):
    add_shapes(parser)
    add = parser.add_argument
    add("--pair", nargs=2, default=["1x128", "128x128"])
    add("--out", default="bfloat16")
    add("--add", action="store_true", help="c is out")
    add("--fast", action="store_true", help="fast_accumulation")
    add("--unaligned", action="store_true", help="no gaps between rows, K no multiple of 16")
    add("--only", nargs="*", metavar="TEXT", help="parts of candidates' names")
    add("--planned", action="store_true", help="what gemm() takes, and peers")
    add("--draw", type=int, default=0, metavar="COUNT", help="shapes at random")
    add("--multiple", type=int, default=8, help="of every other N and K of --draw")
    add("--seed", type=int, default=1, help="of --draw")


def cases(run):
    options = run.options
    drawn_shapes = drawn(options.draw, options.seed, options.multiple)
    return [*shapes_of(options.shapes), *drawn_shapes] or shapes_of(["1/20,256,512"])


def drawn(count: int, seed: int, multiple: int) -> Iterator[tuple[int, int, int]]:
    numbers = random.Random(seed)
    for i in range(count):
        m, n, k = (round(2 ** numbers.uniform(low, 14)) for low in (0, 6, 6))
        yield (m, n, k) if i % 2 else (m, *(max(x // multiple, 1) * multiple for x in (n, k)))


def implementation(products: list[Product], limit: float, added=None):
    return Implementation([p.run for p in products], lambda: error_of(products[0], added), limit)


def peers(sets, form: GemmOptions, adds: bool) -> Iterator[Build]:
    """Products of peers; those that cannot add also into the type of operands, and DeepGEMM's sum
    in place."""
    dtypes = ("float32", "bfloat16") if adds else (form.out_dtype,)

    def make(prepare, dtype, added=None):
        products = [prepare(x, w, replace(form, out_dtype=dtype)) for x, w in sets]
        return implementation(products, PEER_ERROR_LIMIT, added)

    for peer in PEERS:
        for dtype in dtypes:
            name = NAMES.get(peer.name, peer.name) + (f", {dtype}" if adds else "")
            yield Build(name, partial(make, peer.prepare, dtype))
    if adds:
        yield Build("DeepGEMM, added", partial(make, prepare_deepgemm_added, form.out_dtype, 1.0))


def by(p: Product, name: str | None, options, invariant: bool = False) -> Product:
    """Our product by a candidate, or as it is planned."""
    how = {"fast_accumulation": options.fast, "batch_invariant": invariant}
    c = p.out if options.add else None
    return replace(
        p, run=partial(tuning.using(name)(octofold.gemm), p.a, p.b, c=c, out=p.out, **how)
    )


def without_gaps(p: Product) -> Product:
    """The product of codes whose rows lie next to each other."""
    a, b = (octofold.ScaledTensor(x.data.contiguous(), x.scale, x.granularity) for x in (p.a, p.b))
    return replace(p, a=a, b=b, run=partial(octofold.gemm, a, b, out=p.out))


def names_of(options, m: int) -> list[str]:
    """The candidates that could be the fastest for so many rows."""
    a, b = options.pair
    phrases = [f"gemm: m {m}, n 128, k 128, a e4m3 {a}, b e4m3 {b}, out {options.out}"]
    phrases += [f"c {options.out}"] if options.add else []
    phrases += ["fast_accumulation"] if options.fast else []
    phrases += ["operands_unaligned, out_unaligned, c_unaligned"] if options.unaligned else []
    names = tuning.candidates(", ".join(phrases))
    return [name for name in names if is_sensible(name, m)]


def measure(run, shape):
    """Returns the shape and our speed over BF16's."""
    options, (m, n, k) = run.options, shape
    form = GemmOptions(("e4m3", "e4m3"), tuple(options.pair), options.out, run.rounds,
                       fast_accumulation=options.fast)  # fmt: skip

    def operands():
        return tuple(normal(run, rows, k, dtype="float32") for rows in (m, n))

    sets = sets_of(operands, (m + n) * k + 4 * m * n, run)
    products = [prepare_octofold(x, w, form) for x, w in sets]
    if options.unaligned:
        products = [*map(without_gaps, products)]
    limit = PEER_ERROR_LIMIT if options.fast else limit_of(form, products[0])

    def make(name):
        added = 1.0 if options.add else None
        return implementation([by(p, name, options) for p in products], limit, added)

    others = [*peers(sets, form, options.add)]
    if not options.add:
        invariant = [by(p, None, options, invariant=True) for p in products]
        others.append(Build(INVARIANT, partial(implementation, invariant, limit), ours=True))
    names = [] if options.planned else names_of(options, m)
    facts = {"shape": [m, n, k], "pair": options.pair}
    times = measure_candidates(
        run, "gemm", text_of(shape), names, make, others, options.only, **facts
    )
    if PLANNED not in times or BFLOAT16.name not in times:
        return text_of(shape), None
    return text_of(shape), times[BFLOAT16.name][-1] / times[PLANNED][-1]


def summary(found):
    """The worst speeds over BF16's."""
    ordered = sorted((speed, shape) for shape, speed in found if speed is not None)
    if len(ordered) < 2:
        return
    speeds = [speed for speed, _ in ordered]
    level = sum(speed >= 1 for speed in speeds) / len(speeds)
    mean = statistics.geometric_mean(speeds)
    print(f"{len(speeds)} shapes: {mean:.2f} of BF16's speed, at least level at {level:.0%}")
    print("worst: " + ", ".join(f"{shape} {speed:.2f}" for speed, shape in ordered[:12]))
