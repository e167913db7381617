"""Two or more builds of Octofold beside each other on one GPU, in one run:

    python bench/gpu/compare_wheels.py OLD_SITE NEW_SITE [--json FILE] [--bound 1.01]
    python bench/gpu/compare_wheels.py SITE SITE ... --sections chains

Each SITE is a folder that a wheel was unpacked into (pip install --target). A process for each
holds the same operands, and they take turns. All are measured by the last one's timing
module. Sections:
    products  the shapes of docs/notes/products.md
    host      host time of a call, with torch.mm(out=) in the same turns
    chains    four layers at few rows, where what lies between two kernels counts: a cast and a
              product, one that casts its input (gemm of an array), a product of codes that lie
              ready, or torch.mm in BF16, each of the result of the one before
    groups    products of groups, gated ones among them
    casts     of arrays and of fused sources
    weights   products with FP8 weights

Prints times over the first build's; exit code 1 if one of the last's takes longer than --bound
times as long (but for host and chains).
"""

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path

from common.builds import Build, Worker, serve, timing_of
from common.wheel_sections import SECTIONS

# ---- The comparison -----------------------------------------------------------------------------


def compare(builds, timing, section, case, rounds):
    """By name: seconds of each build, samples in turns."""
    for build in builds:
        errors = build.ask("prepare", section, case)
        if not all(error < SECTIONS[section][2] for error in errors.values()):  # NaN is wrong too
            sys.exit(f"{build.site}: {section} {case}: relative errors {errors}")
    samplers = [partial(build.ask, "sample", name) for name in errors for build in builds]
    samples = iter(timing.take_turns(samplers, rounds))
    return {name: [next(samples) for _ in builds] for name in errors}


def show(timing, section, case, samples):
    """Ratios by name."""
    ratios = {}
    for name, of_builds in samples.items():
        medians = [statistics.median(seconds) for seconds in of_builds]
        ratios[name] = [median / medians[0] for median in medians]
        times = "  ".join(
            f"{median * 1e6:9.2f} ±{timing.spread(seconds):.1%} {ratio:6.3f}"
            for median, seconds, ratio in zip(medians, of_builds, ratios[name], strict=True)
        )
        print(f"{section:8} {','.join(map(str, case)):22} {name:22} {times}", flush=True)
    return ratios


def shape_of(text):
    m, n, k = (int(size) for size in text.split(","))
    return m, n, k


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("sites", nargs="*", type=Path, metavar="SITE", help="the oldest build first")
    add("--sections", nargs="+", choices=SECTIONS, default=["products", "host"])
    add("--shape", type=shape_of, action="append", metavar="M,N,K", help="of products")
    add("--rounds", type=int, default=13)
    add("--bound", type=float, default=1.01, help="new / old of a kernel's time")
    add("--json", type=Path, help="a file for all samples")
    add("--device", default="cuda", help="cpu: to try the script itself")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(Worker(arguments.device, {name: made for name, (made, *_) in SECTIONS.items()}))
        return 0
    if len(arguments.sites) < 2 or arguments.rounds < 2:
        parser.error("expected two SITEs and 2 rounds at least")
    newest = arguments.sites[-1]
    timing = timing_of(newest)
    builds = [Build(site, newest, arguments.device) for site in arguments.sites]
    print(f"{builds[-1].description}; µs, ±, time over the first's", flush=True)
    found, ratios = [], {}
    for section in arguments.sections:
        given = arguments.shape if section == "products" else None
        for case in given or SECTIONS[section][1]:
            samples = compare(builds, timing, section, case, arguments.rounds)
            found.append({"section": section, "case": case, "samples": samples})
            shown = show(timing, section, case, samples)
            if section not in ("host", "chains"):
                ratios |= {(section, case, name): of[-1] for name, of in shown.items()}
    for build in builds:
        build.end()
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")
    slower = [case for case, ratio in ratios.items() if ratio > arguments.bound]
    if ratios:
        worst = max(ratios, key=ratios.__getitem__)
        print(f"\nworst {ratios[worst]:.3f} at {worst}; {len(slower)} over {arguments.bound}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
