"""Octofold beside Feather (github.com/SuriyaaMM/feather) and torch: dot products, products of a
matrix and a vector, attention of one head.

    python tests/gpu/measure_feather.py RESULTS.jsonl [gemv] [attention] [dot]
        --feather DIR [--sizes N,K ...] [--rounds 13] [--seconds 400]

DIR holds the package `feather`. Sizes: those of its benchmarks, and 16384,128 for attention; of dot
N, of gemv N,K, of attention tokens,head size. All multiply the same numbers, random ones that e5m2
or e4m3 hold. Packed words are made before, and held against Feather's packing. Each result is
checked against FP64 first (of Octofold's, NaN there before too); one that is further off than its
arithmetic explains is WRONG, but timed: Feather's e4m3 has no subnormal numbers. Then all are taken
in turns, as CUDA graphs that go round operands of 256 MB together. "called" is the time from Python
instead, of calls one after another. Feather's dot and gemv copy their output from the host and so
fit no graph: there the kernel is launched as they do, onto memory of the GPU, and "called" has what
they themselves take. SDPA has four dimensions here: of the three in Feather's benchmark no fused
kernel takes it. A line of JSON for each problem.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass

import octofold
import torch
from bench_attention import BACKENDS
from measure_candidates import MAX_SETS, MIN_BYTES, in_turns, sampler, signal_alarm
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# What was measured before comes first.
SIZES = {
    "gemv": [(16384, 16384), (8192, 8192)]
    + [(n, k) for n in (4096, 8192, 16384) for k in (4096, 8192, 16384) if n != k or n == 4096],
    "attention": [(16384, 128), (4096, 64)]
    + [(n, d) for d in (64, 256, 512) for n in (128, 256, 512, 1024, 4096, 8192) if n != 4096]
    + [(4096, 256), (4096, 512)],
    "dot": [(10_000,), (500_000,), (1_500_000,)],
}
TYPES = {"e5m2": torch.float8_e5m2, "e4m3": torch.float8_e4m3fn, "float16": torch.float16}
WIDE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Of a result's norm, of a dot product's sum of sizes. FP32 sums, and one rounding.
FP32_LIMIT = 1e-5
LIMITS = {"float32": FP32_LIMIT, "float16": 2e-3, "bfloat16": 5e-3}
FP16_WEIGHTS_LIMIT = 5e-3  # weights of the softmax are FP16
CALLS = 16  # of a sample of "called"


@dataclass
class Way:
    """One call for each set of operands; `own` where the library's own call fits no graph; `over`
    computes the first over what it is given."""

    calls: list
    limit: float
    own: list | None = None
    over: Callable | None = None

    def first_results(self):
        first = self.calls[0]()
        yield first
        if self.own:
            yield self.own[0]()
        if self.over:
            yield self.over(torch.full_like(first, torch.nan))


class Feather:
    """Its functions and kernels. It does not need numba for those of the GPU."""

    def __init__(self, folder):
        sys.path.insert(0, folder)
        real = sys.modules.get("numba")
        stand_in = types.ModuleType("numba")
        stand_in.njit, stand_in.prange = lambda **_: lambda function: function, range
        sys.modules["numba"] = stand_in
        try:
            self.dot = importlib.import_module("feather.routines.dot")
        finally:
            del sys.modules["numba"]
            if real is not None:
                sys.modules["numba"] = real
        self.gemv = importlib.import_module("feather.routines.gemv")
        self.attention = importlib.import_module("feather.routines.attention")
        self.pack = importlib.import_module("feather.packers.fp8").pack_fp8_tensor
        self.check_words()

    def check_words(self):
        x = torch.randn(4096, device="cuda", dtype=torch.float16)
        for name in ("e5m2", "e4m3"):
            theirs = self.pack(x, mode=name.upper()).view(torch.int32)
            assert torch.equal(words(x.to(TYPES[name])).view(torch.int32).cpu(), theirs), name

    def dot_way(self, name, pairs):
        kernel, own = {
            "e5m2": (self.dot._dot_fp8_e5m2_acc_fp32_kernel, self.dot.dot_fp8_e5m2_acc_fp32_gpu),
            "float16": (self.dot._dot_fp16_acc_fp32_kernel, self.dot.dot_fp16_acc_fp32_gpu),
        }[name]
        packed = [(words(a), words(b)) for a, b in pairs]

        def call(a, b):
            out = torch.zeros((), device="cuda")
            kernel[(-(-a.numel() // 1024),)](a, b, out, a.numel(), BLOCK_SIZE=1024)
            return out

        # Of FP16 numbers it makes FP16 products.
        limit = FP32_LIMIT if name == "e5m2" else LIMITS["float16"]
        return Way(bound(call, packed), limit, bound(own, packed))

    def gemv_way(self, name, pairs):
        kernel = getattr(self.gemv, f"_gemv_fp8_{name}_acc_fp32_kernel")
        own = getattr(self.gemv, f"gemv_fp8_{name}_acc_fp32_gpu")
        packed = [(words(w), words(x), tuple(w.shape)) for w, x in pairs]

        def call(w, x, shape):
            out = torch.empty(shape[0], device="cuda")
            kernel[(shape[0],)](w, x, out, shape[1] // 4, BLOCK_SIZE=1024)
            return out

        return Way(bound(call, packed), FP32_LIMIT, bound(own, packed))

    def attention_way(self, sets):
        own = self.attention.flash_attention_fp8_e5m2_acc_fp32_gpu
        packed = [
            (*map(words, operands), operands[0].shape[0], operands[0].shape[1] // 4)
            for operands in sets
        ]
        return Way(bound(own, packed), FP16_WEIGHTS_LIMIT)


def words(numbers):
    """Packed, in the type that Feather's kernels take."""
    return octofold.ops.as_words(numbers).view(torch.uint32)


def bound(call, sets):
    return [lambda arguments=arguments: call(*arguments) for arguments in sets]


def wide(name, sets):
    return [[x.to(WIDE[name]) for x in operands] for operands in sets]


def set_count(size):
    return min(MAX_SETS, max(2, -(-MIN_BYTES // size)))


def random(name, *shape):
    return torch.randn(shape, device="cuda", dtype=torch.float16).to(TYPES[name])


def error_of(expected, norm=None):
    norm = expected.norm() if norm is None else norm
    return lambda out: float((out.double().reshape(expected.shape) - expected).norm() / norm)


def octofold_way(call, sets, limit):
    return Way(bound(call, sets), limit, over=lambda out: call(*sets[0], out=out))


def dot_problem(feather, n):
    """Ways by name, each with the error of its result."""
    for name in ("e5m2", "float16"):
        pairs = [(random(name, n), random(name, n)) for _ in range(set_count(2 * n))]
        a, b = (x.double() for x in pairs[0])
        error = error_of(a @ b, a.abs() @ b.abs())
        yield f"feather {name}", lambda p=pairs, name=name: feather.dot_way(name, p), error
        yield (
            f"octofold {name}",
            lambda p=pairs: octofold_way(octofold.ops.dot, p, FP32_LIMIT),
            error,
        )
        for kind in WIDE if name == "e5m2" else ["float16"]:
            yield (
                f"torch {kind} of {name}",
                lambda p=pairs, kind=kind: Way(bound(torch.dot, wide(kind, p)), LIMITS[kind]),
                error,
            )


def octofold_gemv(pairs):
    one = torch.ones(octofold.ops.scale_shape("tensor", *pairs[0][0].shape), device="cuda")
    scaled = [(x, octofold.ScaledTensor(w, one, "tensor")) for w, x in pairs]
    return octofold_way(octofold.gemm_weight_only, scaled, FP32_LIMIT)


def gemv_problem(feather, n, k):
    for name in ("e5m2", "e4m3"):
        pairs = [(random(name, n, k), random(name, k)) for _ in range(set_count(n * k))]
        w, x = pairs[0]
        error = error_of(w.double() @ x.double())
        yield f"feather {name}", lambda p=pairs, name=name: feather.gemv_way(name, p), error
        yield f"octofold {name}", lambda p=pairs: octofold_gemv(p), error
        for kind in WIDE if name == "e5m2" else ():
            yield (
                f"torch {kind} of {name}",
                lambda p=pairs, kind=kind: Way(bound(torch.mv, wide(kind, p)), LIMITS[kind]),
                error,
            )


def octofold_attention(sets):
    # One sequence, one head; queries are FP16 here, of the same values.
    shaped = [[x[None, :, None] for x in (q.half(), k, v)] for q, k, v in sets]
    return octofold_way(octofold.attention, shaped, FP16_WEIGHTS_LIMIT)


def sdpa(kind, backend, sets):
    def call(q, k, v):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v)

    shaped = [[x[None, None] for x in operands] for operands in wide(kind, sets)]
    limit = 1e-4 if kind == "float32" else FP16_WEIGHTS_LIMIT
    return Way(bound(call, shaped), limit)


def attention_problem(feather, tokens, size):
    sets = [
        [random("e5m2", tokens, size) for _ in range(3)]
        for _ in range(set_count(2 * tokens * size))
    ]
    q, k, v = (x.double() for x in sets[0])
    rows = [(part @ k.T * size**-0.5).softmax(dim=1) @ v for part in q.split(2048)]
    error = error_of(torch.cat(rows))
    yield "feather e5m2", lambda: feather.attention_way(sets), error
    yield "octofold e5m2", lambda: octofold_attention(sets), error
    fp32 = SDPBackend.EFFICIENT_ATTENTION
    yield "SDPA float32 of e5m2", lambda: sdpa("float32", fp32, sets), error
    for name, backend in BACKENDS.items():
        yield f"SDPA float16 {name} of e5m2", lambda b=backend: sdpa("float16", b, sets), error


PROBLEMS = {"gemv": gemv_problem, "attention": attention_problem, "dot": dot_problem}


def called(calls):
    """Microseconds of a call from Python, of some one after another, until all are done."""
    samples = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for index in range(CALLS):
            calls[index % len(calls)]()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(samples)


def measured(problem, rounds):
    """By name: {us, called_us, error, wrong} or {failed}."""
    results, samplers = {}, {}
    for name, make, error_in in problem:
        try:
            way = make()
            errors = [error_in(result) for result in way.first_results()]
            error = max(errors) if all(e == e for e in errors) else float("nan")
            wrong = not error < way.limit  # NaN is wrong too
            samplers[name] = sampler(way.calls)
            results[name] = {
                "error": error,
                "wrong": wrong,
                "called_us": called(way.own or way.calls),
            }
        except Exception as reason:  # a peer may fail in any way; the others go on
            samplers.pop(name, None)
            first = (str(reason).splitlines() or [""])[0]
            results[name] = {"failed": f"{type(reason).__name__}: {first}"}
    for name, microseconds in in_turns(samplers, rounds, 0.01).items():
        results[name]["us"] = microseconds
    return results


def print_table(title, results):
    for name, result in results.items():
        if "failed" in result:
            print(f"{title:<22} {name:<30} failed: {result['failed']}", flush=True)
            continue
        ours = results.get(f"octofold {name.split()[-1]}", {}).get("us")
        print(
            f"{title:<22} {name:<30} {result['us']:9.2f} µs "
            f"{result['us'] / ours if ours else 0:6.2f} × Octofold's "
            f"called {result['called_us']:9.2f} µs error {result['error']:.1e}"
            f"{' WRONG' if result['wrong'] else ''}",
            flush=True,
        )


def subnormals(feather):
    """The errors of products of nothing but e4m3's subnormal numbers and ones."""
    codes = torch.randint(1, 8, (256, 4096), dtype=torch.uint8, device="cuda")
    pairs = [(codes.view(TYPES["e4m3"]), torch.ones(4096, device="cuda").to(TYPES["e4m3"]))]
    error = error_of(pairs[0][0].double() @ pairs[0][1].double())
    ways = {"feather": feather.gemv_way("e4m3", pairs), "octofold": octofold_gemv(pairs)}
    return {name: error(way.calls[0]()) for name, way in ways.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--feather", required=True, metavar="DIR")
    parser.add_argument("--sizes", nargs="*", metavar="N,K")
    parser.add_argument("--rounds", type=int, default=13)
    parser.add_argument("--seconds", type=float, default=400)
    options = parser.parse_args()
    begin = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = False
    feather = Feather(options.feather)
    sizes = [tuple(map(int, size.split(","))) for size in options.sizes or ()]
    cases = [(problem, size) for problem in options.problems for size in sizes or SIZES[problem]]
    with open(options.results, "a") as results:
        for problem, size in cases:
            if time.monotonic() - begin > options.seconds:
                print(f"no time for {problem} {size} and what follows", flush=True)
                break
            signal_alarm(240)  # a kernel that hangs ends the process
            times = measured(PROBLEMS[problem](feather, *size), options.rounds)
            signal_alarm(0)
            line = {"problem": problem, "size": size, "results": times}
            print(json.dumps(line), file=results, flush=True)
            print_table(f"{problem} {','.join(map(str, size))}", times)
            torch.cuda.empty_cache()
        if "gemv" in options.problems:
            line = {"problem": "gemv of e4m3's subnormals", "errors": subnormals(feather)}
            print(json.dumps(line), file=results, flush=True)
            print(*line.values(), flush=True)


if __name__ == "__main__":
    main()
