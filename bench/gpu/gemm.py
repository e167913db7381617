"""Every GEMM configuration at many shapes, beside cuBLASLt, BF16 and DeepGEMM: what the planner's
costs come from, and what it is judged by.

    python bench/gpu/gemm.py RESULTS.jsonl SHAPE ... [--pair 1x128 128x128] [--out float32] [--add]
        [--fast] [--unaligned] [--only TEXT ... | --planned]

    python bench/gpu/gemm.py RESULTS.jsonl --planned --draw 69 [--multiple 128] [--seed 1]

SHAPE is M,N,K; M may be several, with slashes: 1/16/64,4096,7168; @FILE has one a line. All are
checked, screened in turns, and the best timed with the peers and the planner's own choice once
more. A line of JSON for each shape: microseconds by name, the second number where it was timed
again.

--draw: shapes at random, M from 1 to 16384, N and K from 64 to 16384, each by its logarithm; N and
K of every other one are multiples of 8. Where K is no multiple of 16, the product of codes without
gaps between rows is timed too. The last lines name the worst beside BF16.
"""

import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace

import octofold
from common import candidates
from common.measure import (
    PEER_ERROR_LIMIT,
    PLANNED,
    Build,
    Implementation,
    measure_candidates,
)
from common.operands import normal, sets_of
from common.run import Run, new_parser, shapes_of, text_of
from octofold_tool.gpu.check import compared, error_of
from octofold_tool.gpu.peers import (
    BFLOAT16,
    PEERS,
    Product,
    prepare_deepgemm_added,
    prepare_octofold,
)
from octofold_tool.gpu.tune import is_sensible
from octofold_tool.measure import error_limit
from octofold_tool.products import GemmOptions

GAPLESS = "octofold, codes without gaps"
NAMES = {"cublaslt_same_scales": "same scales", "cublaslt_tensor_scales": "tensor scales"}


def implementation(products: list[Product], limit: float, added=None):
    return Implementation([p.run for p in products], lambda: error_of(products[0], added), limit)


def others(sets, form: GemmOptions, dtypes):
    """Yields the products of peers into each of these types of results: without c."""
    for peer in PEERS:
        for dtype in dtypes:
            name = NAMES.get(peer.name, peer.name) + (f", {dtype}" if len(dtypes) > 1 else "")

            def make(prepare=peer.prepare, dtype=dtype):
                into = replace(form, out_dtype=dtype)
                products = [prepare(x, w, into) for x, w in sets]
                return implementation(products, PEER_ERROR_LIMIT)

            yield Build(name, make)


def adds(sets, form: GemmOptions):
    """DeepGEMM's sum in place."""

    def make():
        products = [prepare_deepgemm_added(x, w, form) for x, w in sets]
        return implementation(products, PEER_ERROR_LIMIT, 1.0)

    return Build("DeepGEMM, added", make)


def without_gaps(p: Product) -> Product:
    """Returns the product of codes whose rows lie next to each other."""
    a, b = (octofold.ScaledTensor(x.data.contiguous(), x.scale, x.granularity) for x in (p.a, p.b))
    return replace(p, a=a, b=b, run=candidates.gemm(a, b, p.out, None))


def gapless(products: list[Product], limit):
    return Build(GAPLESS, lambda: implementation([*map(without_gaps, products)], limit), ours=True)


def drawn(count: int, seed: int, multiple: int) -> Iterator[tuple[int, int, int]]:
    numbers = random.Random(seed)
    for i in range(count):
        m, n, k = (round(2 ** numbers.uniform(low, 14)) for low in (0, 6, 6))
        yield (m, n, k) if i % 2 else (m, *(max(x // multiple, 1) * multiple for x in (n, k)))


def print_worst(speeds: dict[str, float]) -> None:
    """Speeds over BF16's, by shape."""
    ordered = sorted(speeds.items(), key=lambda item: item[1])
    level = sum(speed >= 1 for speed in speeds.values()) / len(speeds)
    mean = statistics.geometric_mean(speeds.values())
    print(f"{len(speeds)} shapes: {mean:.2f} of BF16's speed, at least level at {level:.0%}")
    print("worst: " + ", ".join(f"{shape} {speed:.2f}" for shape, speed in ordered[:12]))


def measure_shape(run, options, m, n, k):
    form = GemmOptions(
        ("e4m3", "e4m3"),
        tuple(options.pair),
        options.out,
        run.rounds,
        fast_accumulation=options.fast,
    )
    bytes_ = (m + n) * k + 4 * m * n

    def operands():
        return tuple(normal(run, rows, k, dtype="float32") for rows in (m, n))

    sets = sets_of(operands, bytes_, run)
    products = [prepare_octofold(x, w, form) for x, w in sets]
    if options.unaligned:
        products = [*map(without_gaps, products)]
    limit = PEER_ERROR_LIMIT if options.fast else error_limit(options.out, compared(products[0]))

    def make(name):
        made = []
        for p in products:
            c = p.out if options.add else None
            call = candidates.gemm(p.a, p.b, p.out, name, c, options.fast)
            made.append(replace(p, run=call))
        return implementation(made, limit, 1.0 if options.add else None)

    names = []
    if run.on_gpu and not options.planned:
        form_of_names = options.pair, options.out, options.add, options.fast, not options.unaligned
        names = candidates.of_texts(candidates.gemm_names(*form_of_names), options.only)
    names = [name for name in names if is_sensible(name, m)]
    dtypes = ("float32", "bfloat16") if options.add else (options.out,)
    peers = [*others(sets, form, dtypes), *([adds(sets, form)] if options.add else [])]
    if options.draw and k % 16 != 0:
        peers.append(gapless(products, limit))
    times, _ = measure_candidates(
        run, "gemm", text_of((m, n, k)), names, make, peers, shape=[m, n, k], pair=options.pair
    )
    return times


def main():
    parser = new_parser(__doc__, rounds=7, seconds=300)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    parser.add_argument("--pair", nargs=2, default=["1x128", "128x128"])
    parser.add_argument("--out", default="bfloat16")
    parser.add_argument("--add", action="store_true", help="c is out")
    parser.add_argument("--fast", action="store_true", help="fast_accumulation")
    parser.add_argument(
        "--unaligned", action="store_true", help="no gaps between rows, K no multiple of 16"
    )
    parser.add_argument("--only", nargs="*", help="parts of candidates' names")
    parser.add_argument("--planned", action="store_true", help="what gemm() takes, and peers")
    parser.add_argument("--draw", type=int, default=0, metavar="COUNT", help="shapes at random")
    parser.add_argument("--multiple", type=int, default=8, help="of every other N and K of --draw")
    parser.add_argument("--seed", type=int, default=1, help="of --draw")
    options = parser.parse_intermixed_args()
    shapes = [*shapes_of(options.shapes), *drawn(options.draw, options.seed, options.multiple)]
    speeds = {}
    with Run(options) as run:
        for shape in run.cases(shapes or shapes_of(["1/20,256,512"])):
            times = measure_shape(run, options, *shape)
            if PLANNED in times and BFLOAT16.name in times:
                speeds[text_of(shape)] = times[BFLOAT16.name][-1] / times[PLANNED][-1]
    if options.draw and speeds:
        print_worst(speeds)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
