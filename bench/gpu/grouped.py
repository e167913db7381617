"""Products of groups beside DeepGEMM and torch:

    python bench/gpu/grouped.py grouped.jsonl
    python bench/gpu/grouped.py grouped.jsonl --sections contiguous k --seconds 300
    python bench/gpu/grouped.py grouped.jsonl --only 32×256 --rounds 21
    python bench/gpu/grouped.py candidates.jsonl --candidates --sections k

Sections:
    contiguous  out[rows of g] = A[rows of g] · B[g]ᵀ; groups of equal sizes, and of sizes from a
                Zipf distribution, together as many rows: zeros among them, none aligned
    masked      the first rows of each group's, equally many
    k           weight gradients: K in groups, FP32 += ; other pairs of scales too; sizes that are
                multiples of 128, and ours of any
    gradients   weight gradients of an expert layer: K in groups of Zipf's sizes, new BF16; by the
                scales of its recipe, finer ones and none
    decode      a few rows a group
    gated       the first product of an expert with SwiGLU and its cast, beside both one after
                another

Each is first checked against FP64 of the dequantized operands, in memory full of NaN. A peer that
is not there, fails or is wrong is left out, and said; exit code 1 if it was ours. "time" is that
over ours at the same sizes, or ours over that of groups that are aligned.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict

from common import candidates
from common.measure import Build, measure, measure_candidates
from common.run import Run, new_parser
from grouped_products import k_groups, rows
from grouped_products.cases import CASES, OURS, SECTIONS, TINY_CASES, Case, Variant
from octofold._timing import GRAPH
from octofold_tool.gpu.limits import measure_limits

MASKED_ROWS = 1024  # of each group, valid or not


def parsed():
    parser = new_parser(__doc__, rounds=13, seconds=500)
    add = parser.add_argument
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    add("--only", nargs="+", metavar="TEXT", help="parts of the cases' names")
    add("--pair", nargs=2, default=("1x128", "128x128"), help="of groups of rows")
    add("--activation", default="swiglu")
    add("--zipf", type=float, default=1.0, metavar="EXPONENT")
    add("--no-peers", action="store_true")
    add(
        "--candidates",
        nargs="*",
        metavar="TEXT",
        help="time every configuration of ours instead (with a TEXT of these in its name)",
    )
    options = parser.parse_args()
    options.pair = tuple(options.pair)
    return options


def variants(case: Case, options, run: Run) -> Iterator[Variant]:
    if case.section == "contiguous":
        return rows.contiguous(case, options.pair, options.zipf, run)
    if case.section == "masked":
        return rows.masked(case, options.pair, max(MASKED_ROWS, case.each), run)
    if case.section == "decode":
        return rows.decode(case, options.pair, run)
    if case.section == "gated":
        return rows.gated(case, options.activation, options.zipf, run)
    if case.section == "gradients":
        return k_groups.gradients(case, options.zipf, run)
    return k_groups.k_groups(case, run)


def bytes_of(case: Case) -> int:
    if case.section == "k":
        return k_groups.bytes_of(case)
    if case.section == "gradients":
        return k_groups.gradient_bytes(case)
    if case.section == "gated":
        return rows.gated_bytes(case)
    return rows.bytes_of(case.rows, case.groups, *case.sizes)


def beside(name: str) -> str:
    """Names what a time is held against: ours at the same sizes, or ours of aligned groups."""
    first, comma, sizes = name.partition(", ")
    return first if name.startswith(OURS) else f"{OURS}{comma}{sizes}"


def names_of(case: Case, variant: Variant) -> list[str]:
    if case.section == "gated":
        return candidates.gated_gemm_names()
    adds = case.section == "k"
    out = "float32" if adds else "bfloat16"
    in_depth = case.section in ("k", "gradients")
    return candidates.grouped_gemm_names(variant.pair, out, adds, in_depth)


def measure_case(case: Case, options, run: Run) -> None:
    if options.candidates is not None:
        for variant in variants(case, options, run):
            if variant.ours:
                names = candidates.of_texts(names_of(case, variant), options.candidates)
                title = f"{case.name} {variant.name}"
                measure_candidates(run, "candidates", title, names, variant.make)
        return
    sizes = {"bytes": bytes_of(case), "operations": case.operations}
    builds = (
        Build(variant.name, variant.make, variant.ours, **sizes)
        for variant in variants(case, options, run)
        if variant.ours or not options.no_peers
    )
    measure(run, "grouped", case.name, builds, beside)


def main() -> int:
    options = parsed()
    with Run(options) as run:
        if run.on_gpu and options.candidates is None:
            run.record("limits", **asdict(measure_limits(GRAPH, run.device)))
        cases = CASES if run.on_gpu else TINY_CASES
        chosen = [
            case
            for case in cases
            if case.section in options.sections
            and (not options.only or any(text in case.name for text in options.only))
        ]
        for case in run.cases(chosen):
            measure_case(case, options, run)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
