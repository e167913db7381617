"""Two or more builds of Octofold beside each other on one GPU, in one run:

    python bench/gpu/compare_wheels.py OLD_SITE NEW_SITE [--json FILE] [--bound 1.01]
    python bench/gpu/compare_wheels.py SITE SITE ... --sections chains

Each SITE is a folder that a wheel was unpacked into (pip install --target). A process for each
holds the same operands, and they take turns. All are measured by the last one's timing
module. Sections:
    products  the shapes of docs/performance.md
    host      host time of a call, with torch.mm(out=) in the same turns
    chains    four layers at few rows, where what lies between two kernels counts: a cast and a
              product, one that casts its input (gemm of an array), a product of codes that lie
              ready, or torch.mm in BF16, each of the result of the one before

Prints times over the first build's; exit code 1 if a product of the last takes longer than --bound
times as long.
"""

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path

from common.builds import Build, Worker, serve, timing_of

LAYERS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
SHAPES = [(m, n, k) for m in (1, 64, 128, 1024, 4096) for n, k in LAYERS]
HOST_SHAPE = (64, 128, 512)  # done before the host has queued the next one
CHAINS = [(rows, width) for width in (2048, 4096, 7168) for rows in (1, 8, 64)]
CHAIN_LAYERS = 4
ERROR_LIMITS = {"products": 5e-3, "host": 5e-3, "chains": 0.12}  # four casts of each operand


# ---- In the process of one build ----------------------------------------------------------------


def operands(worker, shape):
    """The same numbers at the same places in each process: torch alone allocates. Where operands
    lie moves the time of a small product by up to 3 %."""
    m, n, k = shape
    torch, device = worker.torch, worker.device
    generator = torch.Generator(device).manual_seed(7)

    def scaled(rows, granularity, shape, strides):
        x = torch.randn(rows, k, generator=generator, device=device)
        scale = torch.empty_strided(shape, strides, device=device)
        scale.copy_(torch.rand(shape, generator=generator, device=device) + 0.5)
        return worker.octofold.ScaledTensor(x.to(torch.float8_e4m3fn), scale, granularity), x

    blocks = -(-k // 128)
    a, x = scaled(m, "1x128", (m, blocks), (1, -(-m // 4) * 4))
    b, w = scaled(n, "128x128", (-(-n // 128), blocks), (blocks, 1))
    return a, b, torch.empty(m, n, dtype=torch.bfloat16, device=device), x, w


def products(worker, m, n, k):
    count = worker.timing.set_count((m + n) * k + 2 * m * n) if worker.on_gpu else 2
    sets = [operands(worker, (m, n, k))[:3] for _ in range(max(2, count))]
    calls = [partial(worker.octofold.gemm, a, b, out=out) for a, b, out in sets]
    return {"gemm": (calls, partial(error_of, worker, *sets[0]), worker.timing.GRAPH)}


def error_of(worker, a, b, out):
    """Of some rows, against FP64."""
    expected = a.dequantize()[:64].double() @ b.dequantize().double().T
    error = worker.torch.linalg.norm(out[:64].double() - expected)
    return float(error / worker.torch.linalg.norm(expected))


def host(worker, *shape):
    torch, octofold = worker.torch, worker.octofold
    a, b, out, x, w = operands(worker, shape)
    x, w = x.bfloat16(), w.bfloat16().T
    wide = torch.empty_like(out)

    def multiply(a_data, a_scale, b_data, b_scale):
        left = octofold.ScaledTensor(a_data, a_scale, "1x128")
        return octofold.gemm(left, octofold.ScaledTensor(b_data, b_scale, "128x128"))

    method = worker.timing.Method("host", rest=0.0, passes=200)
    named = {
        "octofold.gemm(out=)": partial(octofold.gemm, a, b, out=out),
        "torch.mm(out=)": partial(torch.mm, x, w, out=wide),
        "compiled octofold.gemm": partial(
            torch.compile(multiply), a.data, a.scale, b.data, b.scale
        ),
        "compiled torch.mm": partial(torch.compile(torch.mm), x, w),
    }
    error = partial(error_of, worker, a, b, out)
    return {
        name: ([call], error if "octofold" in name else lambda: 0.0, method)
        for name, call in named.items()
    }


def chains(worker, rows, width):
    torch, octofold = worker.torch, worker.octofold
    generator = torch.Generator(worker.device).manual_seed(3)

    def normal(*shape):
        kind = {"device": worker.device, "dtype": torch.bfloat16}
        return torch.randn(*shape, generator=generator, **kind)

    count = worker.timing.set_count(CHAIN_LAYERS * width * width) if worker.on_gpu else 1
    x = normal(rows, width)
    wide = [[normal(width, width) / width**0.5 for _ in range(CHAIN_LAYERS)] for _ in range(count)]
    kind = {"format" if hasattr(octofold, "Format") else "granularity": "128x128"}
    weights = [[octofold.quantize(w, **kind) for w in group] for group in wide]
    outs = [torch.empty_like(x) for _ in range(CHAIN_LAYERS)]
    codes, cast = octofold.quantize(x), octofold.quantize(x)

    def cast_and_product(value, weight, out):
        octofold.quantize(value, out=cast)
        return octofold.gemm(cast, weight, out=out)

    layers = {
        "cast, gemm": (cast_and_product, weights),
        "gemm": (lambda _, weight, out: octofold.gemm(codes, weight, out=out), weights),
        "BF16": (lambda value, weight, out: torch.mm(value, weight.t(), out=out), wide),
    }
    if rows <= 8:
        dynamic = getattr(octofold, "dynamic_gemm", octofold.gemm)  # of earlier wheels
        layers["gemm of an array"] = (lambda value, weight, _: dynamic(value, weight), weights)

    def run(layer, group):
        value = x
        for weight, out in zip(group, outs, strict=True):
            value = layer(value, weight, out)
        return value

    expected = run(layers["BF16"][0], wide[0]).clone()

    def error(name, layer, groups):
        for out in outs:
            out.fill_(torch.nan)
        result = run(layer, groups[0]).double()
        if name == "gemm":  # of the same codes in each layer
            return 0.0
        return float(torch.linalg.norm(result - expected) / torch.linalg.norm(expected.double()))

    return {
        name: (
            [partial(run, layer, group) for group in groups],
            partial(error, name, layer, groups),
            worker.timing.GRAPH,
        )
        for name, (layer, groups) in layers.items()
    }


# ---- The comparison -----------------------------------------------------------------------------


def compare(builds, timing, section, case, rounds):
    """By name: seconds of each build, samples in turns."""
    for build in builds:
        errors = build.ask("prepare", section, case)
        if not all(error < ERROR_LIMITS[section] for error in errors.values()):  # NaN is wrong too
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
        print(f"{section:8} {','.join(map(str, case)):16} {name:22} {times}", flush=True)
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
    add("--sections", nargs="+", choices=ERROR_LIMITS, default=["products", "host"])
    add("--shape", type=shape_of, action="append", metavar="M,N,K", help="of products")
    add("--rounds", type=int, default=13)
    add("--bound", type=float, default=1.01, help="new / old of any product")
    add("--json", type=Path, help="a file for all samples")
    add("--device", default="cuda", help="cpu: to try the script itself")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        sections = {"products": products, "host": host, "chains": chains}
        serve(Worker(arguments.device, sections))
        return 0
    if len(arguments.sites) < 2 or arguments.rounds < 2:
        parser.error("expected two SITEs and 2 rounds at least")
    newest = arguments.sites[-1]
    timing = timing_of(newest)
    builds = [Build(site, newest, arguments.device) for site in arguments.sites]
    print(f"{builds[-1].description}; µs, ±, time over the first's", flush=True)
    cases = {"products": arguments.shape or SHAPES, "host": [HOST_SHAPE], "chains": CHAINS}
    found, ratios = [], {}
    for section in arguments.sections:
        for case in cases[section]:
            samples = compare(builds, timing, section, case, arguments.rounds)
            found.append({"section": section, "case": case, "samples": samples})
            shown = show(timing, section, case, samples)
            if section == "products":
                ratios[case] = shown["gemm"][-1]
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
