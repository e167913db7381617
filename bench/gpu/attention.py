"""Attention over FP8 keys and values beside torch's scaled_dot_product_attention over FP16 and FP32
ones: microseconds, the rate at which keys and values are read, and that of products.

    python tests/gpu/bench_attention.py RESULTS.jsonl [PROBLEM ...] [--seconds 240]

Problems: prefill (8192 tokens, causal), decode (64 sequences of 8192 keys), both with 32 heads on 8
of 128, and head64 (4096 queries and keys) and head128 (16384), one head each. Each result is held
against FP64 first, NaN there before. Then all are taken in turns, as CUDA graphs that go round keys
and values of 256 MB together. A line of JSON for each problem. SDPA is named by its backend; one
that does not take a problem is left out, and said.
"""

import argparse
import json
import time
from dataclasses import dataclass

import octofold
import torch
from measure_candidates import MAX_SETS, MIN_BYTES, in_turns, sampler, signal_alarm
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ERROR_LIMIT = 5e-3  # of the norm; FP16 weights and results make 5e-4
PAGE_SIZES = (16, 128)
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
CHECKED_ROWS = 8


@dataclass(frozen=True)
class Problem:
    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    size: int
    causal: bool = False
    pages: bool = False

    def numbers(self):
        """Of keys and values."""
        return 2 * self.batch * self.keys * self.kv_heads * self.size

    def flops(self):
        seen = self.keys - (self.queries - 1) / 2 if self.causal else self.keys
        return 4 * self.batch * self.heads * self.queries * seen * self.size


PROBLEMS = {
    "prefill": Problem(1, 8192, 8192, 32, 8, 128, causal=True),
    "decode": Problem(64, 1, 8192, 32, 8, 128, pages=True),
    "head64": Problem(1, 4096, 4096, 1, 1, 64),
    "head128": Problem(1, 16384, 16384, 1, 1, 128),
}


def normal(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.float16)


class Set:
    """Operands of one call, and what the codes stand for in other types."""

    def __init__(self, problem):
        p = self.problem = problem
        self.q = normal(p.batch, p.queries, p.heads, p.size)
        shape = p.batch, p.keys, p.kv_heads, p.size
        # Values that both formats have, but for some near 0.
        self.k, self.v = (
            normal(*shape).to(torch.float8_e5m2).half().to(torch.float8_e4m3fn) for _ in range(2)
        )
        self.scales = [0.5 + torch.rand(p.kv_heads, device="cuda") for _ in range(2)]

    def ours(self, kind="float16", scaled=True):
        q = self.q if kind == "float16" else self.q.bfloat16()
        out = torch.full_like(q, torch.nan)
        k_scale, v_scale = self.scales if scaled else (None, None)
        options = {"k_scale": k_scale, "v_scale": v_scale, "causal": self.problem.causal}
        return lambda: octofold.attention(q, self.k, self.v, **options, out=out)

    def of_e5m2(self):
        """The same keys and values as codes of the other format."""
        out = torch.full_like(self.q, torch.nan)
        k, v = (x.half().to(torch.float8_e5m2) for x in (self.k, self.v))
        k_scale, v_scale = self.scales
        options = {"k_scale": k_scale, "v_scale": v_scale, "causal": self.problem.causal}
        return lambda: octofold.attention(self.q, k, v, **options, out=out)

    def paged(self, page_size):
        """The same keys in pages anywhere."""
        p = self.problem
        count = p.batch * p.keys // page_size
        order = torch.randperm(count, device="cuda")
        table = order.view(p.batch, -1).int()
        shape = count, page_size, p.kv_heads, p.size
        pages = []
        for codes in (self.k, self.v):
            memory = torch.empty(shape, dtype=torch.uint8, device="cuda")
            memory[order] = codes.view(torch.uint8).view(shape)
            pages.append(memory.view(codes.dtype))
        counts = torch.full((p.batch,), p.keys, dtype=torch.int32, device="cuda")
        options = {"k_scale": self.scales[0], "v_scale": self.scales[1], "causal": p.causal}
        options |= {"key_counts": counts, "page_table": table}
        out = torch.full_like(self.q, torch.nan)
        return lambda: octofold.attention(self.q, *pages, **options, out=out)

    def theirs(self, dtype, backend):
        """Heads before tokens in memory, as SDPA likes it best."""
        k, v = (
            (x.to(dtype) * scale.to(dtype)[:, None]).transpose(1, 2).contiguous()
            for x, scale in zip((self.k, self.v), self.scales, strict=True)
        )
        q = self.q.to(dtype).transpose(1, 2).contiguous()
        grouped = self.problem.heads != self.problem.kv_heads

        def call():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(
                    q, k, v, is_causal=self.problem.causal, enable_gqa=grouped
                ).transpose(1, 2)

        return call

    def error(self, out, scaled=True):
        """Of some rows, relative to their norm in FP64."""
        p, wrong, norm = self.problem, 0.0, 0.0
        group = p.heads // p.kv_heads
        scales = self.scales if scaled else [torch.ones(p.kv_heads, device="cuda")] * 2
        for _ in range(CHECKED_ROWS):
            sequence, query = (int(torch.randint(count, ())) for count in (p.batch, p.queries))
            seen = p.keys - p.queries + query + 1 if p.causal else p.keys
            k, v = (
                (x[sequence, :seen].double() * scale.double()[:, None])
                .repeat_interleave(group, dim=1)
                .transpose(0, 1)
                for x, scale in zip((self.k, self.v), scales, strict=True)
            )
            q = self.q[sequence, query].double()[:, :, None]
            weights = (k @ q * p.size**-0.5).softmax(dim=1)
            expected = (weights * v).sum(dim=1)
            gap = out[sequence, query].double() - expected
            wrong, norm = wrong + float(gap.square().sum()), norm + float(expected.square().sum())
        return (wrong / norm) ** 0.5


def ways(problem):
    """Names, what makes the call of a set, and the bytes of a number of its keys and values."""
    yield "octofold", Set.ours, 1
    yield "octofold, no scales", lambda s: s.ours(scaled=False), 1
    yield "octofold, e5m2", Set.of_e5m2, 1
    if torch.cuda.get_device_capability() >= (8, 0):
        yield "octofold, bfloat16", lambda s: s.ours("bfloat16"), 1
    for page_size in PAGE_SIZES if problem.pages else ():
        yield f"octofold, pages of {page_size}", lambda s, n=page_size: s.paged(n), 1
    for name, backend in BACKENDS.items():
        yield f"SDPA FP16 {name}", lambda s, b=backend: s.theirs(torch.float16, b), 2
    if problem.heads == 1:
        fp32 = SDPBackend.EFFICIENT_ATTENTION
        yield "SDPA FP32", lambda s: s.theirs(torch.float32, fp32), 4


def measured(problem):
    """(Microseconds, bytes) by name; a line for what was left out."""
    count = min(MAX_SETS, max(1, -(-MIN_BYTES // problem.numbers())))
    sets = [Set(problem) for _ in range(count)]
    samplers, sizes = {}, {}
    for name, call_of, item in ways(problem):
        calls = [call_of(operands) for operands in sets]
        try:
            out = calls[0]()
        except (RuntimeError, octofold.UnsupportedError) as reason:
            print(f"{name}: {str(reason).splitlines()[0]}", flush=True)
            continue
        error = sets[0].error(out, name != "octofold, no scales")
        limit = ERROR_LIMIT if "bfloat16" not in name else 8 * ERROR_LIMIT
        assert error < limit, f"{name}: error {error:.1e}"
        samplers[name], sizes[name] = sampler(calls), item * problem.numbers()
    return {name: (t, sizes[name]) for name, t in in_turns(samplers, 13, 10e-3).items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--seconds", type=float, default=240)
    options = parser.parse_args()
    begin = time.monotonic()
    with open(options.results, "a") as results:
        for name in options.problems:
            if time.monotonic() - begin > options.seconds:
                print(f"no time for {name} and what follows", flush=True)
                break
            problem = PROBLEMS[name]
            signal_alarm(120)  # a kernel that hangs ends the process
            times = measured(problem)
            signal_alarm(0)
            line = {"problem": name, "times": {way: t for way, (t, _) in times.items()}}
            print(json.dumps(line), file=results, flush=True)
            for way, (microseconds, size) in times.items():
                print(
                    f"{name:<8} {way:<24} {microseconds:10.2f} µs"
                    f" {size / microseconds * 1e-3:8.1f} GB/s"
                    f" {problem.flops() / microseconds * 1e-6:7.1f} TFLOPS",
                    flush=True,
                )
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
