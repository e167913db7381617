"""Products of groups beside DeepGEMM and torch:

    python bench/gpu/run.py grouped RESULTS.jsonl
    python bench/gpu/run.py grouped RESULTS.jsonl --sections contiguous k --seconds 300
    python bench/gpu/run.py grouped RESULTS.jsonl --only 32×256 --rounds 21
    python bench/gpu/run.py grouped RESULTS.jsonl --candidates --sections k

Sections:
    contiguous  out[rows of g] = A[rows of g] · B[g]ᵀ; groups of equal sizes, and of sizes from a
                Zipf distribution, together as many rows: zeros among them, none aligned
    masked      the first rows of each group's, equally many
    k           weight gradients: K in groups, FP32 += ; other pairs of scales too; sizes that are
                multiples of 128, and ours of any
    gated       the first product of an expert with SwiGLU and its cast, beside both one after
                another

Each is first checked against FP64 of the dequantized operands, in memory full of NaN. "time" is
that over ours at the same sizes, or ours over that of groups that are aligned.
"""

from collections.abc import Iterator
from dataclasses import asdict

from common import grouped_depth, grouped_rows
from common.groups import OURS, Case
from common.measure import Build, measure_candidates
from common.measure import measure as measure_builds
from common.run import Run, add_candidates, add_choices, add_only
from octofold._timing import GRAPH
from octofold_tool.gpu.gemm import measure_limits

ROUNDS, SECONDS = 13, 500
EXPERT = ((4096, 7168), (7168, 2048))  # the two products of an expert of DeepSeek-V3's
SIZES = {  # groups, rows of each (of k: its K), and the two other sizes
    "contiguous": [(g, m, n, k) for n, k in EXPERT for g, m in ((4, 8192), (8, 4096), (32, 256))],
    "masked": [
        (g, m, n, k)
        for n, k in EXPERT
        for g, m in ((1, 1024), (2, 512), (4, 256), (16, 64), (32, 32))
    ],
    "k": [(4, 8192, 4096, 7168), (8, 4096, 7168, 2048), (32, 256, 4096, 7168)],
    "gated": [(32, 512, 2048, 7168), (128, 512, 768, 2048), (8, 2048, 14336, 4096)],
}
TINY = {
    "contiguous": [(3, 128, 256, 384)],
    "masked": [(3, 20, 256, 384)],
    "k": [(3, 256, 128, 256)],
    "gated": [(3, 128, 128, 256)],
}


def add_options(parser):
    add_choices(parser, "--sections", list(SIZES))
    add_only(parser)
    add_candidates(parser)
    add = parser.add_argument
    add("--pair", nargs=2, default=("1x128", "128x128"), help="of groups of rows")
    add("--activation", default="swiglu")
    add("--zipf", type=float, default=1.0, metavar="EXPONENT")
    add("--no-peers", action="store_true")


def cases(run: Run) -> Iterator[Case]:
    options = run.options
    if run.on_gpu and options.candidates is None:
        run.record("limits", **asdict(measure_limits(GRAPH, run.device)))
    for section in options.sections:
        for sizes in (SIZES if run.on_gpu else TINY)[section]:
            case = Case(section, *sizes)
            if any(text in case.name for text in options.only):
                yield case


def builds_of(run: Run, case: Case) -> Iterator[Build]:
    module = grouped_depth if case.section == "k" else grouped_rows
    return getattr(module, case.section)(run, case)


def beside(name: str) -> str:
    """Names what a time is held against: ours at the same sizes, or ours of aligned groups."""
    first, comma, sizes = name.partition(", ")
    return first if name.startswith(OURS) else f"{OURS}{comma}{sizes}"


def measure(run: Run, case: Case) -> None:
    options = run.options
    if options.candidates is not None:
        for build in builds_of(run, case):
            if build.names:
                title = f"{case.name} {build.name}"
                measure_candidates(
                    run, "candidates", title, build.names, build.make, texts=options.candidates
                )
        return
    builds = (build for build in builds_of(run, case) if build.ours or not options.no_peers)
    measure_builds(run, "grouped", case.name, builds, beside)
