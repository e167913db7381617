"""Dot products of vectors of several types beside torch.dot: microseconds, and the rate at which
the vectors are read.

    python tests/gpu/measure_dot.py RESULTS.jsonl [SIZE ...]

Each is checked first against FP64. Then all are taken in turns, as CUDA graphs that go round
vectors of 256 MB together, or 64 pairs. A line of JSON for each length.
"""

import argparse
import json

import octofold
import torch
from measure_candidates import MAX_SETS, MIN_BYTES, in_turns, sampler, signal_alarm

SIZES = (2**14, 2**20, 2**24, 2**27)
TYPES = {
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
# Ours: types of both, with or without scales of 128; torch.dot's.
OURS = ("e5m2", "e4m3", "e4m3 1x128", "float16", "bfloat16", "float32", "e4m3·float32")
PEERS = ("float16", "bfloat16", "float32")


def vector(size, kind):
    name, *granularity = kind.split()
    codes = torch.randn(size, device="cuda").to(TYPES[name])
    if not granularity:
        return codes
    scale = torch.rand(octofold.ops.scale_shape("1x128", 1, size), device="cuda")[0] + 0.5
    return octofold.ScaledTensor(codes, scale, "1x128")


def values(x):
    if isinstance(x, octofold.ScaledTensor):
        return x.data.double() * x.scale.double().repeat_interleave(128)[: x.shape[0]]
    return x.double()


def bytes_of(x):
    if isinstance(x, octofold.ScaledTensor):
        return x.data.nbytes + x.scale.nbytes
    return x.nbytes


def problem(size, kind, call):
    """Calls that go round, and the bytes of one."""
    left, _, right = kind.partition("·")
    pair = [vector(size, left), vector(size, right or left)]
    read = sum(map(bytes_of, pair))
    sets = [pair]
    while len(sets) < min(MAX_SETS, max(2, -(-MIN_BYTES // read))):
        sets.append([vector(size, left), vector(size, right or left)])
    a, b = map(values, pair)
    error = abs(float(call(*pair)) - float(a @ b)) / float(a.abs() @ b.abs())
    # torch.dot of FP16 rounds its result.
    assert error < (1e-5 if call is octofold.ops.dot else 1e-2), f"{kind}: error {error:.1e}"
    return [lambda a=a, b=b: call(a, b) for a, b in sets], read


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, metavar="SIZE")
    options = parser.parse_args()
    with open(options.results, "a") as results:
        for size in options.sizes:
            signal_alarm(120)  # a kernel that hangs ends the process
            problems = {kind: problem(size, kind, octofold.ops.dot) for kind in OURS}
            problems |= {f"torch {kind}": problem(size, kind, torch.dot) for kind in PEERS}
            times = in_turns({name: sampler(calls) for name, (calls, _) in problems.items()}, 7, 0)
            signal_alarm(0)
            print(json.dumps({"size": size, "times": times}), file=results, flush=True)
            for name, microseconds in times.items():
                rate = problems[name][1] / microseconds * 1e-6
                print(f"{size:>10} {name:<16} {microseconds:9.2f} µs {rate:6.2f} TB/s", flush=True)


if __name__ == "__main__":
    main()
