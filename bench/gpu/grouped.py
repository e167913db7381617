"""Products of groups beside DeepGEMM and torch, measured in one run:

    python tests/gpu/measure_grouped.py grouped.jsonl
    python tests/gpu/measure_grouped.py grouped.jsonl --sections contiguous k --seconds 300
    python tests/gpu/measure_grouped.py grouped.jsonl --only 32×256 --rounds 21
    python tests/gpu/measure_grouped.py candidates.jsonl --candidates --sections k
    python tests/gpu/measure_grouped.py tiny.jsonl --device cpu --rounds 2     to try the script

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

Every result is first checked against FP64 of the dequantized operands, in memory full of NaN. Times
are medians of rounds in which all take turns, of CUDA graphs over operands that together are larger
than the L2 cache; ± is half the quartile range over the median. A peer that is not there, fails or
is wrong is left out, and said; exit code 1 if it was ours. Every result goes to the JSON-lines file
as it comes; tables come last: µs, and a peer's time over ours at the same sizes (above 1 ours is
faster), or ours over that of groups that are aligned.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from grouped_bench import candidates, gradients, k_groups, rows
from grouped_bench.cases import CASES, SECTIONS, TINY_CASES, Case
from grouped_bench.ways import OURS, Build, Timing, Watchdog, Way, checked, timed
from linear_bench.results import OutOfTime, Results
from octofold_tool.gpu.limits import measure_limits
from octofold_tool.gpu.timing import graph_sampler

MASKED_ROWS = 1024  # of each group, valid or not


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("output", type=Path, help="a file for lines of JSON")
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    add("--only", nargs="+", default=[], metavar="TEXT", help="parts of the cases' names")
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
    add("--share", type=int, nargs=2, help=argparse.SUPPRESS)
    add("--rounds", type=int, default=13)
    add("--seconds", type=float, default=500.0, help="then the rest is left out")
    add("--case-seconds", type=float, default=120.0, help="then something hangs: the end")
    add("--device", default="cuda", help="cpu: to try the script itself")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: expected at least 2")
    options.pair = tuple(options.pair)
    return options


def builders(case: Case, options: argparse.Namespace) -> Iterator[Build]:
    device = torch.device(options.device)
    if case.section == "contiguous":
        return rows.contiguous(case, options.pair, options.zipf, device)
    if case.section == "masked":
        return rows.masked(case, options.pair, max(MASKED_ROWS, case.each), device)
    if case.section == "decode":
        return rows.decode(case, options.pair, device)
    if case.section == "gated":
        return rows.gated(case, options.activation, options.zipf, device)
    if case.section == "gradients":
        return gradients.gradients(case, options.zipf, device)
    return k_groups.k_groups(case, k_groups.PAIRS, device)


def built(case: Case, options: argparse.Namespace, results: Results) -> Iterator[tuple[Way, float]]:
    """Ways that are right, and their errors."""
    for build in builders(case, options):
        if options.no_peers and not build.is_ours:
            continue
        try:
            way = build.build()
            yield way, checked(way)
        except Exception as error:
            results.leave_out(build.name, build.is_ours, error, case=case.name)
            if options.device != "cpu":
                torch.cuda.synchronize()  # raises again if the context is lost: nothing more to do


def bytes_of(case: Case) -> int:
    if case.section == "k":
        return k_groups.bytes_of(case)
    if case.section == "gradients":
        return gradients.bytes_of(case)
    n, k = case.sizes
    if case.section == "gated":  # a byte for each element of the result
        return rows.bytes_of(case.rows, case.groups, 2 * n, k) - 3 * case.rows * n
    return rows.bytes_of(case.rows, case.groups, n, k)


def operations(case: Case) -> float:
    return 2.0 * case.rows * case.sizes[0] * case.sizes[1] * (2 if case.section == "gated" else 1)


def measure(case: Case, options: argparse.Namespace, results: Results) -> dict[str, Timing]:
    found = list(built(case, options, results))
    if not found:
        return {}
    times = timed([way for way, _ in found], torch.device(options.device), options.rounds)
    for way, error in found:
        times[way.name] = replace(times[way.name], relative_error=error)
        seconds = times[way.name].microseconds * 1e-6
        results.add(
            "grouped",
            case=case.name,
            way=way.name,
            **asdict(times[way.name]),
            tflops=operations(case) / seconds * 1e-12,
            gigabytes_per_second=bytes_of(case) / seconds * 1e-9,
        )
    return times


def beside(name: str) -> str:
    """What a way is held against: the same of ours, or ours of aligned groups."""
    _, comma, sizes = name.partition(", ")
    if name.startswith(OURS):
        return name.partition(", ")[0]
    return f"{OURS}{comma}{sizes}"


def table(section: str, timings: dict[Case, dict[str, Timing]], results: Results) -> None:
    """A column for each case, a row for each way."""
    those = {case: times for case, times in timings.items() if case.section == section and times}
    names = list(dict.fromkeys(name for times in those.values() for name in times))
    rows_by_name = {name: [name] for name in names}
    rates = [["TFLOPS of the first"], ["GB/s of the first"]]
    for case, times in those.items():
        first = next(iter(times.values()))
        rates[0].append(f"{operations(case) / first.microseconds * 1e-6:.0f}")
        rates[1].append(f"{bytes_of(case) / first.microseconds * 1e-3:.0f}")
        for name in names:
            timing = times.get(name)
            text = "—"
            if timing is first:
                text = f"{timing.microseconds:.1f} ±{timing.spread:.1%}"
            elif timing:
                other = times.get(beside(name), first)
                other = first if other is timing else other
                ratio = timing.microseconds / other.microseconds
                text = f"{timing.microseconds:.1f} {ratio:6.3f}"
            rows_by_name[name].append(text)
    columns = ["µs, × ours", *(case.name.removeprefix(section + " ") for case in those)]
    results.table(section, columns, [*rows_by_name.values(), *rates] if those else [])


def chosen(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    return [
        case
        for case in cases
        if case.section in options.sections
        and (not options.only or any(text in case.name for text in options.only))
    ]


def ours(case: Case, options: argparse.Namespace) -> Iterator[Build]:
    return (build for build in builders(case, options) if build.is_ours)


def compile_share(options: argparse.Namespace) -> None:
    """Of the kernels of all cases; --only is of the large ones' names."""
    tiny = [case for case in TINY_CASES if case.section in options.sections]
    ways = ((case, build) for case in tiny for build in ours(case, options))
    candidates.compile_share(ways, options.candidates, *options.share)


def run(
    options: argparse.Namespace, results: Results, timings: dict[Case, dict[str, Timing]]
) -> Iterator[tuple[Case, Callable[[], object]]]:
    """A case after another, each with what measures it."""
    rows_: list[list[str]] = []
    columns = ["", "planned, µs", "× it: the best", "second", "third"]

    def by_candidates(case: Case) -> None:
        for build in ours(case, options):
            device = torch.device(options.device)
            compared = candidates.compare(case, build, options.candidates, device, results)
            if compared:
                rows_.append(candidates.row(case, build, compared))

    def beside_peers(case: Case) -> None:
        timings[case] = measure(case, options, results)

    if options.candidates is not None:
        results.tables.append(("Candidates", columns, rows_))
    for case in chosen(CASES if options.device != "cpu" else TINY_CASES, options):
        yield case, partial(beside_peers if options.candidates is None else by_candidates, case)


def main() -> int:
    options = parsed()
    torch.manual_seed(0)
    on_gpu = options.device != "cpu"
    if options.share:
        compile_share(options)
        return 0
    results = Results(options.output, options.seconds, options.rounds)
    results.begin(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        device=torch.cuda.get_device_name() if on_gpu else "CPU",
        arguments=sys.argv[1:],
    )
    timings: dict[Case, dict[str, Timing]] = {}

    def show() -> None:
        for section in options.sections:
            table(section, timings, results)
        results.show()

    try:
        if options.candidates is not None:
            candidates.compile_in_parallel(Path(__file__), sys.argv[1:])
        elif on_gpu:
            limits = measure_limits(graph_sampler, torch.device(options.device))
            results.add("limits", **asdict(limits))
        for case, measure_it in run(options, results, timings):
            results.check_time()
            with Watchdog(options.case_seconds, case.name, show):
                measure_it()
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
    except OutOfTime:
        print(f"stopped after {options.seconds:.0f} s", flush=True)
    finally:
        show()
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
