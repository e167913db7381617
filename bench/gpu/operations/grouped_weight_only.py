"""Experts with FP8 weights and 16-bit activations beside torch's products of groups and a loop of
torch.mm in BF16; the rate is that at which the weights of the experts that are used are read.

    python bench/gpu/run.py grouped_weight_only RESULTS.jsonl [EXPERTS,SLOTS,N,K ...]
        [--tokens 1/8/64/512/4096] [--granularity 128x128] [--candidates [TEXT ...]]

Tokens go to SLOTS of the experts at random. Ours gathers their rows itself, and is also timed with
rows that have been gathered before, as those of the peers have. The loop knows how many rows each
expert has, which on the host nobody does.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import octofold
import torch
from common.grouped_rows import grouped_mm
from common.measure import Build, measure_candidates
from common.measure import measure as measure_builds
from common.operands import calls_of, normal
from common.run import Run, add_candidates, add_shapes, sizes
from octofold import Rows, ScaledTensor, grouped_gemm_weight_only, tuning
from octofold.ops import Gathered, grouped_gemm_weight_only_gradient, sort_by_expert
from octofold_tool.gpu.measuring import Implementation, relative_error
from torch import Tensor

ROUNDS, SECONDS = 13, 500
# Both products of an expert: Qwen3-30B-A3B, Mixtral 8x7B, DeepSeek-V3.
LAYERS = ("128,8,1536,2048", "128,8,2048,768", "8,2,28672,4096", "8,2,4096,14336",
          "256,8,4096,7168", "256,8,7168,2048")  # fmt: skip
TINY = ("8,2,64,128",)
TOKENS = "1/8/64/512/4096"
ROUTINGS = 12  # so that caches do not have the experts of the next call
ERROR_LIMIT = 5e-3  # of the norm; BF16 alone makes 1.7e-3
BASELINE = "torch grouped_mm bfloat16"


def add_options(parser):
    add_shapes(parser, "EXPERTS,SLOTS,N,K")
    add_candidates(parser)
    parser.add_argument("--tokens", metavar="T/T/...")
    parser.add_argument("--granularity", default="128x128")


def cases(run: Run) -> Iterator[tuple[str, int]]:
    layers = run.options.shapes or (LAYERS if run.on_gpu else TINY)
    tokens = run.options.tokens or (TOKENS if run.on_gpu else "1/5")
    return itertools.product(layers, map(int, tokens.split("/")))


def measure(run: Run, problem: tuple[str, int]) -> None:
    layer, tokens = problem
    title = f"{layer} tokens {tokens}"
    case = Case(run, sizes(layer), tokens, run.options.granularity)
    if run.options.candidates is not None:
        first = next(builds(case))  # which gathers
        texts = run.options.candidates
        names = tuning.candidates(case.problem())
        measure_candidates(run, "grouped-weight-only", title, names, first.make, texts=texts)
    else:
        measure_builds(run, "grouped-weight-only", title, builds(case), BASELINE)


@dataclass
class Routed:
    """Tokens and where they go."""

    x: Tensor
    offsets: Tensor
    sources: Tensor
    slots: int
    bounds: list[int]

    @property
    def rows(self) -> Tensor:
        return self.x[(self.sources // self.slots).long()]

    @property
    def used(self) -> int:
        return sum(begin < end for begin, end in itertools.pairwise(self.bounds))


class Case:
    def __init__(self, run: Run, layer: Sequence[int], tokens: int, granularity: str) -> None:
        self.run, self.tokens, self.granularity = run, tokens, granularity
        self.experts, self.slots, self.n, self.k = layer
        # Codes of 1/8 up to 1.875, without drawing them one by one in FP32.
        shape = self.experts, self.n, self.k
        codes = torch.randint(0x20, 0x40, shape, dtype=torch.uint8, device=run.device)
        codes |= torch.randint(0, 2, shape, dtype=torch.uint8, device=run.device) << 7
        of_one = octofold.ops.scale_shape(granularity, self.n, self.k)
        of_all = (self.experts,) if granularity == "tensor" else (self.experts, *of_one)
        scale = torch.rand(of_all, device=run.device) + 0.5
        self.w = ScaledTensor(codes.view(torch.float8_e4m3fn), scale, granularity)
        self.routed = [self._route(self.k) for _ in range(ROUTINGS if run.on_gpu else 1)]
        self.back = [self._route(self.n) for _ in self.routed] if tokens >= 64 else []

    def _route(self, width: int) -> Routed:
        ids = torch.rand(self.tokens, self.experts, device=self.run.device).topk(self.slots).indices
        order = sort_by_expert(ids.int(), self.experts)
        x = normal(self.run, self.tokens, width)
        return Routed(x, order.offsets, order.sources, self.slots, order.offsets.tolist())

    def part(self, group: int) -> Tensor:
        one = ScaledTensor(self.w.data[group], self._scale(group), self.granularity)
        return one.dequantize(torch.bfloat16)

    def _scale(self, group: int) -> Tensor:
        scale = self.w.scale[group]
        return scale.reshape(1) if self.granularity == "tensor" else scale

    def wide(self) -> Tensor:
        """The weights in BF16, [experts, N, K]."""
        shape = self.experts, self.n, self.k
        weights = torch.empty(shape, dtype=torch.bfloat16, device=self.run.device)
        for group in range(self.experts):
            weights[group] = self.part(group)
        return weights

    def error(self, call: Callable[..., Tensor], routed: Routed, *operands: Any) -> float:
        """Returns the larger error of two groups: the first and the last that have rows."""
        out, worst = call(*operands), 0.0
        groups = [g for g, (a, b) in enumerate(itertools.pairwise(routed.bounds)) if a < b]
        for group in {groups[0], groups[-1]}:
            begin, end = routed.bounds[group : group + 2]
            right = self.part(group).float()
            left = routed.rows[begin:end].float()
            expected = left @ (right.T if left.shape[1] == self.k else right)
            worst = max(worst, relative_error(out[begin:end], expected))
        return worst

    def build(
        self,
        name: str,
        operands: Callable[[], Sequence[Sequence[Any]]],
        call: Callable[..., Tensor],
        routed: Sequence[Routed],
        ours: bool = True,
        bytes_: int = 1,
    ) -> Build:
        def make(candidate: str | None = None) -> Implementation:
            by, taken = call, operands()
            if candidate is not None:
                by = tuning.using(candidate)(grouped_gemm_weight_only)
            error = partial(self.error, by, routed[0], *taken[0])
            return Implementation(calls_of(by, taken), error, ERROR_LIMIT)

        size = self.n * self.k
        used = sum(each.used for each in routed) / len(routed)
        operations = 2 * self.tokens * self.slots * size
        return Build(name, make, ours, bytes_ * used * size, operations)

    def problem(self) -> str:
        """Describes the product that gathers."""
        sizes = f"m {self.tokens * self.slots}, n {self.n}, k {self.k}, w e4m3 {self.granularity}"
        return f"grouped_gemm_weight_only: {sizes}, groups {self.experts} of rows, gathered"

    def gathered(self, routed: Sequence[Routed]) -> list[tuple[Any, ...]]:
        return [
            (Gathered(each.x, each.sources, slots=self.slots), self.w, Rows(each.offsets))
            for each in routed
        ]


def loop(x: Tensor, weights: Tensor, bounds: Sequence[int], out: Tensor) -> Tensor:
    for group, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if begin < end:
            torch.mm(x[begin:end], weights[group].T, out=out[begin:end])
    return out


def builds(case: Case) -> Iterator[Build]:
    routed = case.routed
    yield case.build("gathers", partial(case.gathered, routed), grouped_gemm_weight_only, routed)
    rows = [(each.rows, case.w, Rows(each.offsets)) for each in routed]
    yield case.build("gathered before", lambda: rows, grouped_gemm_weight_only, routed)
    if case.back:
        gradient = grouped_gemm_weight_only_gradient
        yield case.build("gradient", partial(case.gathered, case.back), gradient, case.back)
    weights = case.wide()
    wide = [(x, weights.transpose(1, 2), groups.offsets[1:]) for x, _, groups in rows]
    yield case.build(BASELINE, lambda: wide, grouped_mm, routed, False, 2)
    outs = [torch.empty(len(x), case.n, dtype=x.dtype, device=x.device) for x, _, _ in rows]
    looped = [
        (x, weights, each.bounds, out)
        for (x, _, _), each, out in zip(rows, routed, outs, strict=True)
    ]
    yield case.build("torch.mm in a loop", lambda: looped, loop, routed, False, 2)
