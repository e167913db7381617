"""Attention over FP8 keys and values beside torch's scaled_dot_product_attention over FP16, BF16
and FP32 ones; the rate is that at which keys and values are read.

    python bench/gpu/run.py attention RESULTS.jsonl [PROBLEM ...]

Problems, with 32 heads on 8 unless a line says otherwise:

- prefill (8192 tokens, causal), prefill4k (4 sequences of 4096), prefill16k (one of 16384), heads
  of 128; prefill64 and prefill256 (4 of 4096, heads of 64 and 256); prefill192 (4096, 128 heads
  with keys of 192 numbers and values of 128: DeepSeek-V3's prefill without absorption); full (2
  images of 4608 tokens, 24 heads)
- decode (64 sequences of 8192 keys), heads of 128; decode64, decode256; long, long256: one sequence
- mla-decode (64 sequences of 8192 keys), mla-prefill (2048 tokens, causal): DeepSeek-V3's 128 heads
  on a latent of 576 numbers, the first 512 of which are values. No backend of SDPA takes it, so its
  peer is three operations
- head64 (4096 queries and keys) and head128 (16384), one head each

Each result is held against FP64.
"""

from dataclasses import dataclass
from functools import partial

import octofold
import torch
from common.measure import Build
from common.measure import measure as measure_builds
from common.operands import normal, sets_of
from octofold_tool.gpu.measuring import Implementation, poison
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ROUNDS, SECONDS = 13, 240
ERROR_LIMIT = 5e-3  # of the norm; FP16 weights and results make 5e-4
FP8_LIMIT = 5e-2  # with codes of queries, which make 2.6e-2
PAGE_SIZES = (16, 128)
CHECKED_ROWS = 8
# These take FP16; FP32 has "efficient" alone. A backend that does not take a problem raises.
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def sdpa(backend, q, k, v, **options):
    """q, k, v [batch, heads, tokens, size]."""
    with sdpa_kernel(BACKENDS[backend]):
        return scaled_dot_product_attention(q, k, v, **options)


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
    latent: int = 0  # so many numbers of each key are its value
    values: int = 0  # the size of values, where that is not the keys'

    def value_size(self):
        return self.latent or self.values or self.size

    def numbers(self):
        """The number of elements of keys and values."""
        of_key = self.size if self.latent else self.size + self.value_size()
        return self.batch * self.keys * self.kv_heads * of_key

    def operations(self):
        seen = self.keys - (self.queries - 1) / 2 if self.causal else self.keys
        of_key = 2 * (self.size + self.value_size())
        return self.batch * self.heads * self.queries * seen * of_key


PROBLEMS = {
    "prefill": Problem(1, 8192, 8192, 32, 8, 128, causal=True),
    "prefill4k": Problem(4, 4096, 4096, 32, 8, 128, causal=True),
    "prefill16k": Problem(1, 16384, 16384, 32, 8, 128, causal=True),
    "prefill64": Problem(4, 4096, 4096, 32, 8, 64, causal=True),
    "prefill256": Problem(4, 4096, 4096, 16, 4, 256, causal=True),
    "prefill192": Problem(1, 4096, 4096, 128, 128, 192, causal=True, values=128),
    "full": Problem(2, 4608, 4608, 24, 24, 128),
    "decode": Problem(64, 1, 8192, 32, 8, 128, pages=True),
    "decode64": Problem(64, 1, 8192, 32, 8, 64),
    "decode256": Problem(64, 1, 4096, 32, 8, 256),
    "long": Problem(1, 1, 131072, 32, 8, 128),
    "long256": Problem(1, 1, 65536, 32, 8, 256),
    "mla-decode": Problem(64, 1, 8192, 128, 1, 576, latent=512),
    "mla-prefill": Problem(1, 2048, 2048, 128, 1, 576, causal=True, latent=512),
    "head64": Problem(1, 4096, 4096, 1, 1, 64),
    "head128": Problem(1, 16384, 16384, 1, 1, 128),
}
TINY = {
    "tiny": Problem(2, 256, 256, 4, 2, 64, causal=True, pages=True),
    "tiny192": Problem(1, 128, 128, 2, 2, 192, causal=True, values=128, pages=True),
    "tiny-mla": Problem(2, 3, 64, 4, 1, 72, causal=True, latent=64),
}


class Set:
    """Operands of one call, and what the codes stand for in other types."""

    def __init__(self, run, problem):
        p = self.problem = problem
        self.q = normal(run, p.batch, p.queries, p.heads, p.size, dtype="float16")
        shape = p.batch, p.keys, p.kv_heads
        # Values that both formats have, but for some near 0.
        self.k, self.v = (
            normal(run, *shape, size, dtype="e5m2").half().to(torch.float8_e4m3fn)
            for size in (p.size, p.value_size())
        )
        if p.latent:
            self.v = self.k[..., : p.latent]
        self.scales = [0.5 + torch.rand(p.kv_heads, device=run.device) for _ in range(2)]
        if p.latent:
            self.scales[1] = self.scales[0]

    def ours(self, q=None, k=None, v=None, **options):
        q, k, v = (own if x is None else x for x, own in ((q, self.q), (k, self.k), (v, self.v)))
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        poison(out)
        options |= {"k_scale": self.scales[0], "v_scale": self.scales[1]}
        return lambda: octofold.attention(q, k, v, causal=self.problem.causal, **options, out=out)

    def paged(self, page_size):
        """The same keys in pages anywhere."""
        p, device = self.problem, self.q.device
        count = p.batch * p.keys // page_size
        order = torch.randperm(count, device=device)
        pages = []
        for codes in (self.k, self.v):
            shape = count, page_size, p.kv_heads, codes.shape[-1]
            memory = torch.empty(shape, dtype=torch.uint8, device=device)
            memory[order] = codes.view(torch.uint8).view(shape)
            pages.append(memory.view(codes.dtype))
        counts = torch.full((p.batch,), p.keys, dtype=torch.int32, device=device)
        table = order.view(p.batch, -1).int()
        return self.ours(None, *pages, key_counts=counts, page_table=table)

    def theirs(self, dtype, backend):
        """Heads before tokens in memory, as SDPA likes it best."""
        k, v = (
            (x.to(dtype) * scale.to(dtype)[:, None]).transpose(1, 2).contiguous()
            for x, scale in zip((self.k, self.v), self.scales, strict=True)
        )
        q = self.q.to(dtype).transpose(1, 2).contiguous()
        grouped = self.problem.heads != self.problem.kv_heads
        options = {"is_causal": self.problem.causal, "enable_gqa": grouped}
        return lambda: sdpa(backend, q, k, v, **options).transpose(1, 2)

    def products(self):
        """Three operations of a latent in FP16: scores, softmax and sums alone, without a mask."""
        p = self.problem
        k = (self.k.half() * self.scales[0].half()[:, None])[:, :, 0]
        q = self.q.reshape(p.batch, p.queries * p.heads, p.size) * p.size**-0.5
        shape = p.batch, p.queries, p.heads, p.latent
        return lambda: (((q @ k.mT).softmax(dim=-1)) @ k[..., : p.latent]).view(shape)

    def error(self, out):
        """Returns the error of some rows, relative to their norm in FP64."""
        p, wrong, norm = self.problem, 0.0, 0.0
        group = p.heads // p.kv_heads
        for _ in range(CHECKED_ROWS):
            sequence, query = (int(torch.randint(count, ())) for count in (p.batch, p.queries))
            seen = p.keys - p.queries + query + 1 if p.causal else p.keys
            k, v = (
                (x[sequence, :seen].double() * scale.double()[:, None])
                .repeat_interleave(group, dim=1)
                .transpose(0, 1)
                for x, scale in zip((self.k, self.v), self.scales, strict=True)
            )
            q = self.q[sequence, query].double()[:, :, None]
            weights = (k @ q * p.size**-0.5).softmax(dim=1)
            expected = (weights * v).sum(dim=1)
            gap = out[sequence, query].double() - expected
            wrong, norm = wrong + float(gap.square().sum()), norm + float(expected.square().sum())
        return (wrong / norm) ** 0.5


def builds(run, problem):
    sets = sets_of(partial(Set, run, problem), problem.numbers(), run)

    def build(name, call_of, item=1, limit=ERROR_LIMIT):
        """call_of: makes the call of a set; item: bytes of a number of its keys and values."""

        def make():
            calls = [call_of(operands) for operands in sets]
            return Implementation(calls, lambda: sets[0].error(calls[0]()), limit)

        ours = name.startswith("octofold")
        return Build(name, make, ours, item * problem.numbers(), problem.operations())

    yield build("octofold", Set.ours)
    if problem.queries > 1 and not problem.latent:
        # The error that codes of queries cost is the option's, not a kernel's.
        yield build("octofold, fp8 scores", lambda s: s.ours(compute="fp8"), limit=FP8_LIMIT)
    if not run.on_gpu or torch.cuda.get_device_capability() >= (8, 0):
        yield build("octofold, bfloat16", lambda s: s.ours(s.q.bfloat16()), limit=8 * ERROR_LIMIT)
    yield build("octofold, batch-invariant", lambda s: s.ours(batch_invariant=True))
    for page_size in PAGE_SIZES if problem.pages else ():
        yield build(f"octofold, pages of {page_size}", lambda s, n=page_size: s.paged(n))
    if problem.latent:
        limit = float("inf") if problem.causal else ERROR_LIMIT  # nothing is masked
        yield build("three operations FP16", Set.products, 2, limit)
        return
    for name in BACKENDS:
        yield build(f"SDPA FP16 {name}", lambda s, b=name: s.theirs(torch.float16, b), 2)
    for name in ("flash", "cuDNN") if problem.queries > 1 else ():
        limit = 8 * ERROR_LIMIT
        yield build(f"SDPA BF16 {name}", lambda s, b=name: s.theirs(torch.bfloat16, b), 2, limit)
    if problem.heads == 1:
        yield build("SDPA FP32", lambda s: s.theirs(torch.float32, "efficient"), 4)


def add_options(parser):
    parser.add_argument("problems", nargs="*", choices=[[], *PROBLEMS], metavar="PROBLEM")


def cases(run):
    return run.options.problems or (PROBLEMS if run.on_gpu else TINY)


def measure(run, name):
    problem = (PROBLEMS | TINY)[name]
    measure_builds(run, "attention", name, builds(run, problem), "octofold")
