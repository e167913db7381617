"""Octofold beside Feather (github.com/SuriyaaMM/feather) and torch: dot products, products of a
matrix and a vector, attention of one head.

    python bench/gpu/feather.py RESULTS.jsonl [vector] [attention] [dot] --feather DIR
        [--sizes N,K ...]

DIR holds the package `feather`. Sizes: those of its benchmarks, and 16384,128 for attention; of dot
N, of vector N,K, of attention tokens,head size. All multiply the same numbers, random ones that
e5m2 or e4m3 hold. Packed words are made before, and held against Feather's packing. "called" is the
time from Python, of calls one after another, instead of a CUDA graph's. Feather's dot and gemv copy
their output from the host and so fit no graph: there the kernel is launched as they do, onto memory
of the GPU, and "called" has what they themselves take. SDPA has four dimensions here: of the three
in Feather's benchmark no fused kernel takes it. Each result is checked against FP64. Feather's e4m3
has no subnormal numbers: it is timed whatever its error.
"""

import importlib
import sys
import types
from functools import partial

import octofold
import torch
from common.measure import Build, Implementation, measure
from common.operands import DTYPES, calls_of, normal, sets_of
from common.run import Run, new_parser, sizes, text_of
from common.sdpa import BACKENDS, sdpa
from octofold._timing import WALL

# What was measured before comes first.
SIZES = {
    "vector": [(16384, 16384), (8192, 8192)]
    + [(n, k) for n in (4096, 8192, 16384) for k in (4096, 8192, 16384) if n != k or n == 4096],
    "attention": [(16384, 128), (4096, 64)]
    + [(n, d) for d in (64, 256, 512) for n in (128, 256, 512, 1024, 4096, 8192) if n != 4096]
    + [(4096, 256), (4096, 512)],
    "dot": [(10_000,), (500_000,), (1_500_000,)],
}
WIDE = ("float32", "bfloat16", "float16")
# Of a result's norm, of a dot product's sum of sizes. FP32 sums, and one rounding.
FP32_LIMIT = 1e-5
LIMITS = {"float32": FP32_LIMIT, "float16": 2e-3, "bfloat16": 5e-3}
FP16_WEIGHTS_LIMIT = 5e-3  # weights of the softmax are FP16
FEATHER_E4M3_LIMIT = 1.0


class Feather:
    """Its functions and kernels. It does not need numba for those of the GPU."""

    def __init__(self, run, folder):
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
        self.vector = importlib.import_module("feather.routines.gemv")
        self.attention = importlib.import_module("feather.routines.attention")
        self.pack = importlib.import_module("feather.packers.fp8").pack_fp8_tensor
        self.check_words(run)

    def check_words(self, run):
        x = normal(run, 4096, dtype="float16")
        for name in ("e5m2", "e4m3"):
            theirs = self.pack(x, mode=name.upper()).view(torch.int32)
            assert torch.equal(words(x.to(DTYPES[name])).view(torch.int32).cpu(), theirs), name

    def dot_calls(self, name):
        """What makes operands of pairs, a call that fits a graph, and the library's own."""
        kernel, own = {
            "e5m2": (self.dot._dot_fp8_e5m2_acc_fp32_kernel, self.dot.dot_fp8_e5m2_acc_fp32_gpu),
            "float16": (self.dot._dot_fp16_acc_fp32_kernel, self.dot.dot_fp16_acc_fp32_gpu),
        }[name]

        def call(a, b):
            out = torch.zeros((), device="cuda")
            kernel[(-(-a.numel() // 1024),)](a, b, out, a.numel(), BLOCK_SIZE=1024)
            return out

        return lambda pair: tuple(map(words, pair)), call, own

    def vector_calls(self, name):
        kernel = getattr(self.vector, f"_gemv_fp8_{name}_acc_fp32_kernel")
        own = getattr(self.vector, f"gemv_fp8_{name}_acc_fp32_gpu")

        def call(w, x, shape):
            out = torch.empty(shape[0], device="cuda")
            kernel[(shape[0],)](w, x, out, shape[1] // 4, BLOCK_SIZE=1024)
            return out

        return lambda pair: (*map(words, pair), tuple(pair[0].shape)), call, own

    def attention_calls(self):
        own = self.attention.flash_attention_fp8_e5m2_acc_fp32_gpu

        def packed(operands):
            tokens, size = operands[0].shape
            return *map(words, operands), tokens, size // 4

        return packed, own, own


def words(numbers):
    """Packed, in the type that Feather's kernels take."""
    return octofold.ops.as_words(numbers).view(torch.uint32)


def unchanged(operands):
    return operands


def builds_of(name, sets, error, limit, prepared, call, own=None):
    """In a graph, and called. prepared: what the calls take of a set."""

    def make(function, method=None):
        made = [prepared(operands) for operands in sets]

        def errors():
            first = function(*made[0])
            if ours:
                first = function(*made[0], out=torch.full_like(first, torch.nan))
            return error(first)

        return Implementation(calls_of(function, made), errors, limit, method=method)

    ours = name.startswith("octofold")
    yield Build(name, partial(make, call), ours)
    yield Build(f"{name}, called", partial(make, own or call, WALL), ours)


def error_of(expected, norm=None):
    norm = expected.norm() if norm is None else norm
    return lambda out: float((out.double().reshape(expected.shape) - expected).norm() / norm)


def wide(kind):
    return lambda operands: tuple(x.to(DTYPES[kind]) for x in operands)


def dot_problem(run, feather, n):
    for name in ("e5m2", "float16"):
        draw = partial(normal, run, n, dtype=name)
        pairs = sets_of(lambda draw=draw: (draw(), draw()), 2 * n, run)
        a, b = (x.double() for x in pairs[0])
        error = error_of(a @ b, a.abs() @ b.abs())
        yield from builds_of(
            f"octofold {name}", pairs, error, FP32_LIMIT, unchanged, octofold.ops.dot
        )
        # Of FP16 numbers Feather makes FP16 products.
        limit = FP32_LIMIT if name == "e5m2" else LIMITS["float16"]
        yield from builds_of(f"feather {name}", pairs, error, limit, *feather.dot_calls(name))
        for kind in WIDE if name == "e5m2" else ["float16"]:
            title = f"torch {kind} of {name}"
            yield from builds_of(title, pairs, error, LIMITS[kind], wide(kind), torch.dot)


def with_scale(pair):
    w, x = pair
    one = torch.ones(octofold.ops.scale_shape("tensor", *w.shape), device=w.device)
    return x, octofold.ScaledTensor(w, one, "tensor")


def vector_problem(run, feather, n, k):
    for name in ("e5m2", "e4m3"):
        draw = partial(normal, run, dtype=name)
        pairs = sets_of(lambda draw=draw: (draw(n, k), draw(k)), n * k, run)
        w, x = pairs[0]
        error = error_of(w.double() @ x.double())
        ours = octofold.gemm_weight_only
        yield from builds_of(f"octofold {name}", pairs, error, FP32_LIMIT, with_scale, ours)
        limit = FP32_LIMIT if name == "e5m2" else FEATHER_E4M3_LIMIT
        yield from builds_of(f"feather {name}", pairs, error, limit, *feather.vector_calls(name))
        for kind in WIDE if name == "e5m2" else ():
            title = f"torch {kind} of {name}"
            yield from builds_of(title, pairs, error, LIMITS[kind], wide(kind), torch.mv)


def attention_problem(run, feather, tokens, size):
    draw = partial(normal, run, tokens, size, dtype="e5m2")
    sets = sets_of(lambda: [draw() for _ in range(3)], 2 * tokens * size, run)
    q, k, v = (x.double() for x in sets[0])
    rows = [(part @ k.T * size**-0.5).softmax(dim=1) @ v for part in q.split(2048)]
    error = error_of(torch.cat(rows))

    def one_head(operands):
        """One sequence, one head; queries are FP16 here, of the same values."""
        q, k, v = operands
        return [x[None, :, None] for x in (q.half(), k, v)]

    def four(kind):
        return lambda operands: [x[None, None] for x in wide(kind)(operands)]

    limit = FP16_WEIGHTS_LIMIT
    yield from builds_of("octofold e5m2", sets, error, limit, one_head, octofold.attention)
    yield from builds_of("feather e5m2", sets, error, limit, *feather.attention_calls())
    fp32 = partial(sdpa, "efficient")
    yield from builds_of("SDPA float32 of e5m2", sets, error, 1e-4, four("float32"), fp32)
    for backend in BACKENDS:
        title, call = f"SDPA float16 {backend} of e5m2", partial(sdpa, backend)
        yield from builds_of(title, sets, error, limit, four("float16"), call)


PROBLEMS = {"vector": vector_problem, "attention": attention_problem, "dot": dot_problem}


def subnormals(run, feather):
    """The errors of products of nothing but e4m3's subnormal numbers and ones."""
    codes = torch.randint(1, 8, (256, 4096), dtype=torch.uint8, device=run.device)
    pair = codes.view(DTYPES["e4m3"]), torch.ones(4096, device=run.device).to(DTYPES["e4m3"])
    error = error_of(pair[0].double() @ pair[1].double())
    prepared, call, _ = feather.vector_calls("e4m3")
    ours = octofold.gemm_weight_only(*with_scale(pair))
    return {"feather": error(call(*prepared(pair))), "octofold": error(ours)}


def main():
    parser = new_parser(__doc__, rounds=13, seconds=400)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--feather", required=True, metavar="DIR")
    parser.add_argument("--sizes", nargs="*", type=sizes, metavar="N,K")
    options = parser.parse_args()
    with Run(options) as run:
        feather = Feather(run, options.feather)
        if "vector" in options.problems:
            errors = subnormals(run, feather)
            run.record("subnormals", **errors)
            print(f"vector of e4m3's subnormal numbers, errors: {errors}")
        cases = [
            (problem, size)
            for problem in options.problems
            for size in options.sizes or SIZES[problem]
        ]
        for problem, size in run.cases(cases):
            builds = PROBLEMS[problem](run, feather, *size)
            measure(run, problem, text_of(size), builds, "octofold e5m2")
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
