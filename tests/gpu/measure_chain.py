"""Chains of four layers at few rows, where what lies between two kernels counts: µs of a layer.

    python tests/gpu/measure_chain.py RESULTS.json SITE [SITE ...] [--rounds 5]

SITE is a folder with an installed Octofold; several are compared, in processes that take turns.
A layer is a cast and a product (`gemm`), a product that casts its input (`dynamic_gemm`), a product
of codes that lie ready, or torch.mm in BF16; four of them, each of the result of the one before, in
CUDA graphs that go round weights of more than 256 MB. Every chain is compared with BF16's first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

ROWS, WIDTHS, LAYERS = (1, 8, 64), (2048, 4096, 7168), 4
MIN_BYTES = 256_000_000


def chains(torch, octofold, rows, width):
    """By name: what runs a chain of a set, and its result."""
    sets = -(-MIN_BYTES // (LAYERS * width * width))
    generator = torch.Generator("cuda").manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, device="cuda", generator=generator, dtype=torch.bfloat16)

    x = normal(rows, width)
    wide = [[normal(width, width) / width**0.5 for _ in range(LAYERS)] for _ in range(sets)]
    weights = [[octofold.quantize(w, "128x128") for w in group] for group in wide]
    outs = [torch.empty_like(x) for _ in range(LAYERS)]
    codes = octofold.quantize(x)
    cast = octofold.quantize(x)

    def cast_and_product(group):
        value = x
        for weight, out in zip(group, outs, strict=True):
            octofold.quantize(value, out=cast)
            value = octofold.gemm(cast, weight, out=out)
        return value

    def dynamic(group):
        value = x
        for weight in group:
            value = octofold.dynamic_gemm(value, weight)
        return value

    def products(group):
        for weight, out in zip(group, outs, strict=True):
            octofold.gemm(codes, weight, out=out)
        return outs[-1]

    def bfloat16(group):
        value = x
        for weight, out in zip(group, outs, strict=True):
            value = torch.mm(value, weight.t(), out=out)
        return value

    named = {
        "cast, gemm": (cast_and_product, weights),
        "gemm": (products, weights),
        "BF16": (bfloat16, wide),
    }
    if rows <= 8:
        named["dynamic_gemm"] = (dynamic, weights)
    expected = bfloat16(wide[0]).float()
    for name, (run, groups) in named.items():
        for out in outs:
            out.fill_(torch.nan)
        result = run(groups[0]).float()
        error = float(torch.linalg.norm(result - expected) / torch.linalg.norm(expected))
        if name != "gemm" and not error < 0.12:  # four casts of each operand
            raise SystemExit(f"{name}, {rows} rows of {width}: relative error {error:.2g}")
    return named


def measure():
    """In a process of its own: JSON of medians to standard output."""
    import octofold
    import torch
    from octofold_tool.gpu.timing import graph_sampler, take_turns

    result = {}
    for width in WIDTHS:
        for rows in ROWS:
            named = chains(torch, octofold, rows, width)
            samplers = [
                graph_sampler([lambda run=run, group=group: run(group) for group in groups])
                for run, groups in named.values()
            ]
            for name, seconds in zip(named, take_turns(samplers, 7), strict=True):
                result[f"{rows},{width} {name}"] = statistics.median(seconds) / LAYERS * 1e6
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("sites", nargs="+", metavar="SITE")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    samples = {}
    for turn in range(options.rounds):
        for index in range(len(options.sites)):
            site = options.sites[(index + turn) % len(options.sites)]
            environment = {**os.environ, "PYTHONPATH": site}
            command = [sys.executable, __file__, "--measure"]
            run = subprocess.run(command, env=environment, capture_output=True, text=True)
            if run.returncode != 0:
                raise SystemExit(f"{site}: {run.stderr}{run.stdout}")
            for case, micro in json.loads(run.stdout.splitlines()[-1]).items():
                samples.setdefault(case, {}).setdefault(site, []).append(micro)
    medians = {
        case: {site: statistics.median(values) for site, values in by_site.items()}
        for case, by_site in samples.items()
    }
    for case, by_site in medians.items():
        print(f"{case:22}" + "".join(f" {by_site[site]:7.2f}" for site in options.sites))
    with open(options.results, "w") as file:
        json.dump({"samples": samples, "medians": medians}, file, indent=1)


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
    else:
        main()
