"""octofold bench evidence: what docs/evidence.md says of our machines, of this one. Everything is
drawn anew in each run, computed on the device, and held against what does not come from it.
"""

import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import octofold
import torch
from octofold import Rule, ScaledTensor, UnsupportedError, tuning
from octofold._sample_product import sample_product
from torch import Tensor

from ..report import print_table
from .draws import KINDS, Draw, drawn
from .measuring import relative_error
from .tune import check_of

MOST: Final = {"cpu": (512, 1e9), "cuda": (16384, 1e12)}
"""The largest size of a drawn product, and its operations."""
GRANULARITIES: Final = ("tensor", "channel", "1x128", "128x128")
ATTENTION_LIMIT: Final = 5e-3  # of the norm, in BF16
MOST_ATTENTION: Final = 2**22  # scores


@dataclass
class Finding:
    """A part: it was computed beside something else so often, and went wrong here."""

    what: str
    beside: str
    cases: int = 0
    worst: float = 0.0
    """The largest error over its limit; of bits, 0, or infinite where any differ."""
    wrong: list[str] = field(default_factory=list)
    missing: str = ""
    """Why nothing was computed, where nothing was."""

    def add(self, case: str, error: float) -> None:
        self.cases += 1
        if not error <= 1.0:  # NaN is wrong too
            self.wrong.append(f"{case}: {error:.3g} of what is allowed")
        self.worst = max(self.worst, math.inf if math.isnan(error) else error)


Part = tuple[Finding, Callable[[], tuple[str, float]]]
"""A finding and what computes one more case of it: its name, and its error over what is allowed."""


def run(device: torch.device, seconds: float, seed: int) -> list[Finding]:
    """Findings of so many seconds, in which all parts take turns; each has one case at least."""
    most, operations = MOST[device.type]
    parts = [_products(kind, Draw(f"{seed} {kind}", most), operations, device) for kind in KINDS]
    parts += [_casts(device, seed), _attention(device, seed), _rows_alone(device, seed)]
    end = time.monotonic() + seconds
    for number, (finding, compute) in enumerate(itertools.cycle(parts)):
        if number >= len(parts) and time.monotonic() > end:
            break
        if finding.missing:
            continue
        try:
            finding.add(*compute())
        except UnsupportedError as error:
            finding.missing = str(error) if finding.cases == 0 else ""
    return [finding for finding, _ in parts]


def show(findings: list[Finding], where: str) -> None:
    rows = [
        [
            finding.what,
            finding.beside,
            str(finding.cases),
            f"{finding.worst:.2f}" if finding.cases else "—",
            str(len(finding.wrong)),
        ]
        for finding in findings
    ]
    columns = ["on " + where, "held against", "cases", "worst, of\nthe limit", "wrong"]
    print_table("What was computed right", columns, rows)


def _products(kind: str, draw: Draw, operations: float, device: torch.device) -> Part:
    def compute() -> tuple[str, float]:
        problem = tuning.complete(drawn(kind, draw, operations))
        product = sample_product(problem, device)
        error, limit = check_of(problem, product)
        share = error(product.call) / limit
        first = product.result().clone()
        product.call()
        return problem, share if torch.equal(first, product.result()) else math.nan

    return Finding(f"products: {kind}", "FP64 of the codes, and itself again"), compute


def _casts(device: torch.device, seed: int) -> Part:
    """Each rule with each granularity, of BF16 with zeros and numbers of all sizes."""
    formats = itertools.cycle(itertools.product(Rule, GRANULARITIES))
    numbers = torch.Generator().manual_seed(seed)

    def compute() -> tuple[str, float]:
        rule, granularity = next(formats)
        rows, cols = torch.randint(1, 700, (2,), generator=numbers).tolist()
        x = torch.randn(rows, cols, generator=numbers)
        x *= torch.exp2(torch.randint(-20, 20, (rows, 1), generator=numbers))
        x[torch.rand(rows, cols, generator=numbers) < 0.05] = 0
        half, format_ = x.to(torch.bfloat16), octofold.Format("e4m3", granularity, rule=rule)
        here = octofold.quantize(half.to(device), format_).to("cpu")
        expected = octofold.quantize(half, format_)
        return f"{format_} of [{rows}, {cols}]", 0.0 if here.equals(expected) else math.nan

    finding = Finding("casts", "the bytes of the CPU's")
    if device.type == "cpu":
        finding.missing = "the CPU's casts are what others are compared with"
    return finding, compute


def _attention(device: torch.device, seed: int) -> Part:
    numbers = random.Random(seed)

    def compute() -> tuple[str, float]:
        size, (heads, kv_heads) = numbers.choice((64, 128)), numbers.choice(((8, 2), (4, 4)))
        batch, keys = numbers.randint(1, 4), numbers.randint(1, 3000)
        queries = min(numbers.choice((1, 1, 7, 300)), keys, MOST_ATTENTION // (32 * keys) + 1)
        shape = (batch, keys, kv_heads, size)
        q = torch.randn(batch, queries, heads, size, device=device, dtype=torch.bfloat16)
        k, v = (torch.randn(shape, device=device).to(torch.float8_e4m3fn) for _ in "kv")
        y = octofold.attention(q, k, v, causal=True)
        repeats = heads // kv_heads
        wide_k, wide_v = (
            each.double().transpose(1, 2).repeat_interleave(repeats, 1) for each in (k, v)
        )
        mask = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.double().transpose(1, 2), wide_k, wide_v, attn_mask=mask
        )
        error = relative_error(y.transpose(1, 2), expected)
        case = f"{queries} queries, {keys} keys, {heads} heads of {size}"
        return case, error / ATTENTION_LIMIT

    return Finding("attention", "softmax in FP64 over the codes"), compute


def _rows_alone(device: torch.device, seed: int) -> Part:
    draw = Draw(f"{seed} rows", MOST[device.type][0])

    def compute() -> tuple[str, float]:
        n, k, rows = draw.size(128, 4096, 16), draw.size(128, 4096, 16), draw.size(2, 2048)
        x, w = (torch.randn(count, k, device=device) for count in (rows, n))
        a, b = octofold.quantize(x, "1x128"), octofold.quantize(w, "128x128")

        def row(at: slice) -> Tensor:
            part = ScaledTensor(a.data[at], a.scale[at], "1x128")
            y: Tensor = octofold.gemm(part, b, batch_invariant=True)
            return y[-1]

        last = rows // 2
        same = torch.equal(row(slice(last + 1)), row(slice(last, last + 1)))
        return f"row {last} of {rows}, {n}, {k}", 0.0 if same else math.nan

    return Finding("a row by itself, batch-invariant", "its bits beside other rows"), compute
