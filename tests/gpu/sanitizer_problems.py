"""Small problems through every kernel path, to run under compute-sanitizer:

    compute-sanitizer --tool memcheck python tests/gpu/sanitizer_problems.py

Needs no pytest. Each result is compared with the CPU backend's, so that no kernel but ours computes
anything. With PYTORCH_NO_CUDA_MEMORY_CACHING=1 each tensor is an allocation of its own, and a step
over its edge is seen. Exit code 1 if a result is wrong.
"""

import itertools
import sys

import octofold
import torch
from octofold._library import library

PAIRS = (("tensor", "tensor"), ("channel", "channel"), ("1x128", "128x128"), ("1x128", "1x128"))
# Whole tiles in several waves; ragged in every dimension; one row; K that TMA cannot load, in words
# and not.
SHAPES = ((256, 384, 512), (131, 197, 272), (1, 264, 1024), (70, 90, 300), (70, 90, 301))
FLOATS = (torch.bfloat16, torch.float32)
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"


def operand(rows, cols, granularity):
    """On the CPU: codes, and scales that differ from neighbour to neighbour."""
    codes = (32 * torch.randn(rows, cols)).to(torch.float8_e4m3fn)
    scale = torch.exp2(4 * torch.rand(octofold.scale_shape(granularity, rows, cols)) - 8)
    return octofold.ScaledTensor(codes, scale, granularity)


def to_device(x):
    """In memory that ends with a unit of 16 bytes: rows that TMA cannot address are copied by
    cp.async of 16 with the count of those that are to be read, and memcheck knows no counts."""
    rows, cols = x.shape
    memory = torch.zeros(-(-rows * cols // 16) * 16, dtype=x.data.dtype, device=DEVICE)
    data = memory[: rows * cols].view(rows, cols)
    data.copy_(x.data)
    return octofold.ScaledTensor(data, x.scale.to(DEVICE), x.granularity)


def products():
    """Name, result and what the CPU backend gives."""
    for pair, (m, n, k), out_dtype in itertools.product(PAIRS, SHAPES, FLOATS):
        a, b = operand(m, k, pair[0]), operand(n, k, pair[1])
        c, bias = torch.randn(m, n), torch.randn(n)
        name = f"gemm {pair[0]} x {pair[1]} {m},{n},{k} {out_dtype}"
        expected = octofold.gemm(a, b, out_dtype=out_dtype)
        device_a, device_b = to_device(a), to_device(b)
        yield name, octofold.gemm(device_a, device_b, out_dtype=out_dtype), expected

        expected = octofold.gemm(a, b, c=c.to(out_dtype), bias=bias, out_dtype=out_dtype)
        out = c.to(out_dtype).to(DEVICE)
        octofold.gemm(device_a, device_b, out=out, c=out, bias=bias.to(DEVICE))
        yield name + " in place + bias", out, expected


def candidates():
    """The same of every configuration: BF16, and FP32 in place."""
    m, n, k = 300, 264, 1040
    a, b = operand(m, k, "1x128"), operand(n, k, "128x128")
    device_a, device_b = to_device(a), to_device(b)
    form = {"a": "e4m3", "a_granularity": "1x128", "b": "e4m3", "b_granularity": "128x128"}
    rest = {"bias": None, "fast_accumulation": False}
    for out_dtype, c_name in ((torch.bfloat16, None), (torch.float32, "float32")):
        c = torch.randn(m, n) if c_name else None
        expected = octofold.gemm(a, b, c=c, out_dtype=out_dtype)
        out_name = str(out_dtype).removeprefix("torch.")
        problem = {"m": m, "n": n, "k": k, **form, "out": out_name, "c": c_name, **rest}
        for name in library.gemm_candidates(problem, True, True):
            out = torch.zeros(m, n, dtype=out_dtype, device=DEVICE)
            if c is not None:
                out.copy_(c)
            library.gemm_by_candidate(
                device_a.data, device_a.scale, device_b.data, device_b.scale,
                out if c_name else None, None, out, "1x128", "128x128", False,
                torch.cuda.current_stream().cuda_stream, str(name),
            )  # fmt: skip
            yield f"{name} {out_name}", out, expected


def casts():
    """Name, result and what the CPU backend gives: the same bits, so the same values."""
    problems = itertools.product(
        ("tensor", "channel", "1x128", "128x128"),
        ((256, 384), (131, 200), (1, 1)),
        FLOATS,
        ("deepgemm", "vllm"),  # one multiplies, one divides
        (False, True),
    )
    # Rows that clusters share; more of them than clusters run at one time.
    wide = [("channel", (150, 40_000), dtype, "vllm", False) for dtype in FLOATS]
    for granularity, shape, dtype, profile, transpose in itertools.chain(problems, wide):
        x = torch.randn(shape).to(dtype)
        options = {"granularity": granularity, "profile": profile, "transpose": transpose}
        name = f"cast {options} {shape} {dtype}"
        cast = octofold.quantize(x.to(DEVICE), **options)
        yield name, cast.dequantize(), octofold.quantize(x, **options).dequantize()


def main():
    torch.manual_seed(0)
    count = 0
    for count, (name, actual, expected) in enumerate(  # noqa: B007
        itertools.chain(products(), candidates(), casts()), start=1
    ):
        actual, expected = actual.cpu().double(), expected.double()
        error = torch.linalg.norm(actual - expected) / torch.linalg.norm(expected)
        if not error < 5e-3:  # NaN is wrong too
            sys.exit(f"{name}: relative error {error:.1e} against the CPU backend")
    print(f"{count} problems computed as on the CPU")


main()
