"""Products with FP8 weights beside torch.mm in BF16, and Humming where it is installed; the rate is
that at which weights are read.

    python bench/gpu/run.py weight_only RESULTS.jsonl [M/M/...,N,K ...] [--granularity 128x128]
        [--formats e4m3 e5m2] [--x bfloat16 float16] [--candidates [TEXT ...]]

Up to 16 rows x in FP32 and e4m3 too, and a single row as a vector; for more rows, the gradient.
"batch-invariant" is a call of which rows do not depend on the rows beside them, x in BF16.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import octofold
import torch
from common import humming
from common.measure import Build, measure_candidates
from common.measure import measure as measure_builds
from common.operands import DTYPES, calls_of, normal, scaled, sets_of
from common.run import Run, add_candidates, add_shapes, shapes_of, text_of
from octofold import tuning
from octofold_tool.gemm_options import DEEPSEEK_V3
from octofold_tool.gpu.measuring import PEER_ERROR_LIMIT, Implementation, relative_error
from torch import Tensor

ROUNDS, SECONDS = 13, 500
ROWS = "1/4/16/64/1024/4096"
FEW_ROWS = 16  # x may be of any type
HALF = ("bfloat16", "float16")
ERROR_LIMIT = 5e-3  # of the norm; BF16 alone makes 1.7e-3
BASELINE = "torch.mm bfloat16"

Pair = tuple[Tensor, Any]


def add_options(parser):
    add_shapes(parser)
    add_candidates(parser)
    parser.add_argument("--granularity", default="128x128")
    parser.add_argument("--formats", nargs="+", choices=("e4m3", "e5m2"), default=["e4m3", "e5m2"])
    x = (*HALF, "float32", "e4m3")
    parser.add_argument("--x", nargs="+", choices=x, default=x)


def cases(run: Run) -> Iterator["Case"]:
    options = run.options
    default = [f"{ROWS},{n},{k}" for n, k in DEEPSEEK_V3] if run.on_gpu else ["1/20,256,384"]
    for shape in shapes_of(options.shapes or default):
        yield Case(run, *shape, options.granularity)


class Case:
    """Operands of M, N, K, and the products of them."""

    def __init__(self, run: Run, m: int, n: int, k: int, granularity: str) -> None:
        self.run, self.m, self.n, self.k, self.granularity = run, m, n, k, granularity
        self.xs = sets_of(partial(normal, run, m, k), n * k + 2 * m * (n + k), run)
        self._weights: dict[str, list[octofold.ScaledTensor]] = {}

    @cached_property
    def wide(self) -> list[Tensor]:
        count = max(2, len(self.xs) // 2)
        return [normal(self.run, self.n, self.k) for _ in self.xs[:count]]

    def weights(self, name: str) -> list[octofold.ScaledTensor]:
        if name not in self._weights:
            made = [scaled(self.run, self.n, self.k, self.granularity, name) for _ in self.xs]
            self._weights[name] = made
        return self._weights[name]

    def pairs(self, name: str, dtype: str, xs: Sequence[Tensor] | None = None) -> list[Pair]:
        left = (x.to(DTYPES[dtype]) for x in xs or self.xs)
        return list(zip(left, self.weights(name), strict=True))

    def build(
        self,
        name: str,
        pairs: Sequence[Pair],
        call: Callable[..., Tensor],
        values: Callable[[], Tensor],
        ours: bool = True,
        repacked: Callable[[Any], Any] | None = None,
        names: Sequence[str] = (),
    ) -> Build:
        """pairs: operands of the calls. values: what the first pair's right operand stands for.
        repacked: what the call takes in place of a right operand. names: the call's candidates."""

        def make(candidate: str | None = None) -> Implementation:
            by = tuning.using(candidate)(call) if names else call
            taken = [(x, repacked(w)) for x, w in pairs] if repacked else pairs

            def error() -> float:
                return relative_error(by(*taken[0]), pairs[0][0].float() @ values())

            limit = ERROR_LIMIT if ours or repacked is None else PEER_ERROR_LIMIT
            return Implementation(calls_of(by, taken), error, limit)

        size = self.n * self.k
        bytes_ = size * pairs[0][1].data.itemsize
        return Build(name, make, ours, bytes_, 2 * self.m * size, names)

    def values(self, name: str) -> Tensor:
        return self.weights(name)[0].dequantize().T

    def ours(self, name: str, dtypes: Sequence[str]) -> Iterator[Build]:
        """By weights of a format and x of these types, where there is such a product."""
        values = partial(self.values, name)
        for dtype in dtypes:
            if dtype in HALF or self.m <= FEW_ROWS:
                call = octofold.gemm_weight_only if dtype in HALF else to_float32
                pairs = self.pairs(name, dtype)
                yield self.build(f"weight only {name} x {dtype}", pairs, call, values)
        if self.m > FEW_ROWS:
            pairs = self.pairs(
                name, "bfloat16", [normal(self.run, self.m, self.n) for _ in self.xs]
            )
            call = octofold.ops.gemm_weight_only_gradient
            yield self.build(f"gradient {name}", pairs, call, lambda: values().T)
        invariant = partial(octofold.gemm_weight_only, batch_invariant=True)
        yield self.build(f"batch-invariant {name}", self.pairs(name, "bfloat16"), invariant, values)
        for dtype in dtypes if self.m == 1 else ():
            vectors = self.pairs(name, dtype, [x[0] for x in self.xs])
            yield self.build(f"vector {name} x {dtype}", vectors, to_float32, values)

    def by_humming(self, name: str, dtypes: Sequence[str]) -> Iterator[Build]:
        if not self.run.on_gpu or not humming.is_installed():
            return
        values = partial(self.values, name)
        for dtype in dtypes:
            for way in humming.ways(self.granularity) if dtype in HALF else ():
                layer = partial(humming.Layer, name=name, way=way, x=dtype, rows=self.m)
                pairs, title = self.pairs(name, dtype), f"Humming {way} {name} x {dtype}"
                yield self.build(title, pairs, humming.multiply, values, False, layer)

    def matrices(self) -> Build:
        """torch.mm in BF16."""
        pairs = list(zip(self.xs, (w.T for w in self.wide), strict=False))
        return self.build(BASELINE, pairs, torch.mm, pairs[0][1].float, ours=False)

    def tunable(self, name: str, dtype: str) -> Build:
        """Our product with x of 16 bits, and its candidates."""
        names = tuning.candidates(
            f"gemm_weight_only: m {self.m}, n {self.n}, k {self.k}, x {dtype}, "
            f"w {name} {self.granularity}, out {dtype}"
        )
        values, call = partial(self.values, name), octofold.gemm_weight_only
        return self.build(f"{name} x {dtype}", self.pairs(name, dtype), call, values, names=names)


def measure(run: Run, case: Case) -> None:
    options, size = run.options, text_of((case.m, case.n, case.k))
    if options.candidates is None:
        measure_builds(run, "weight-only", size, builds(case, options), BASELINE)
        return
    for name in options.formats:
        for dtype in (x for x in options.x if x in HALF):
            ours, peers = case.tunable(name, dtype), case.by_humming(name, [dtype])
            measure_candidates(
                run,
                "weight-only",
                f"{size} {ours.name}",
                ours.names,
                ours.make,
                [*peers, case.matrices()],
                options.candidates,
            )


def builds(case: Case, options: Any) -> Iterator[Build]:
    for name in options.formats:
        yield from case.ours(name, options.x)
        yield from case.by_humming(name, options.x)
    yield case.matrices()


def to_float32(x: Tensor, w: octofold.ScaledTensor) -> Tensor:
    return octofold.gemm_weight_only(x, w, out_dtype=torch.float32)
