"""Dot products of vectors of several types beside torch.dot.

python bench/gpu/dot.py RESULTS.jsonl [SIZE ...]
"""

import functools
import sys

import octofold
import torch
from common.measure import Build, Implementation, measure
from common.operands import bytes_of, calls_of, normal, scaled, sets_of
from common.run import Run, new_parser

SIZES = (2**14, 2**20, 2**24, 2**27)
# Types of both vectors, "1x128" with scales.
OURS = ("e5m2", "e4m3", "e4m3 1x128", "float16", "bfloat16", "float32", "e4m3·float32")
PEERS = ("float16", "bfloat16", "float32")


def vector(run, size, kind):
    dtype, *granularity = kind.split()
    if not granularity:
        return normal(run, size, dtype=dtype)
    x = scaled(run, 1, size, "1x128", dtype)
    return octofold.ScaledTensor(x.data[0], x.scale[0], "1x128")


def values(x):
    if isinstance(x, octofold.ScaledTensor):
        return x.data.double() * x.scale.double().repeat_interleave(128)[: x.shape[0]]
    return x.double()


def build(run, size, kind, call):
    left, _, right = kind.partition("·")

    def pair():
        return vector(run, size, left), vector(run, size, right or left)

    def make():
        sets = [first, *sets_of(pair, read, run)[1:]]
        # torch.dot of FP16 rounds its result.
        limit = 1e-5 if call is octofold.ops.dot else 1e-2
        return Implementation(calls_of(call, sets), error, limit)

    def error():
        a, b = map(values, first)
        return abs(float(call(*first)) - float(a @ b)) / float(a.abs() @ b.abs())

    first = pair()
    read = bytes_of(*first)
    ours = call is octofold.ops.dot
    return Build(kind if ours else f"torch {kind}", make, ours, read)


def main():
    parser = new_parser(__doc__, rounds=7, seconds=300)
    parser.add_argument("sizes", nargs="*", type=int, metavar="SIZE")
    options = parser.parse_args()
    with Run(options) as run:
        for size in run.cases(options.sizes or (SIZES if run.on_gpu else (1000,))):
            builds = functools.partial(build, run, size)
            cases = [
                *((kind, octofold.ops.dot) for kind in OURS),
                *((kind, torch.dot) for kind in PEERS),
            ]
            measure(run, "dot", str(size), (builds(*case) for case in cases), "torch float32")
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
