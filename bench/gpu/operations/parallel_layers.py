"""Layers whose weights are split over ranks, beside BF16's of torch:

    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_layers RESULTS.jsonl
    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_layers RESULTS.jsonl --sizes 8192,28672
        --tokens 4096 --compiled 4096,8192,28672 --layouts split whole

--sizes are hidden,inner of gated MLPs (SwiGLU), --columns and --rows K,N of single layers; tokens
are those of all ranks. "split": each rank has a part of the tokens outside the layer, which are
gathered and reduce-scattered; "whole": all have all, and results are all-reduced. "forward" is
without gradients, "both" with those of x and of the weights, which are cast in each call.

A line has a layer's case, what computes it, microseconds of a call on the slowest rank (the median
of rounds, and half the spread between their quartiles) and the speed beside the first:

    BF16                        torch's ColwiseParallel and RowwiseParallel
    BF16 compiled               by torch.compile: collectives come before and after products
    BF16 overlapped             the same with torch's overlap of products and collectives ("async
                                TP"), as inductor makes it
    BF16 overlapped products    torch's overlapped products called directly, not compiled
    a recipe, and compiled      octofold's MLPParallel, ColumnParallel, RowParallel: codes travel

Compiled are the cases of --compiled (tokens,hidden,inner), of recipes the first: compilations take
much of the run. The output, the gradient of x and the rank's parts of weights' gradients are first
compared with BF16's.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import octofold
import torch
from common import parallel_linear as peers
from common.ranks import DEVICE, ON_GPU, RankRun, agreed, interleaved
from common.run import sizes, text_of
from octofold.distributed import ColumnParallel, MLPParallel, RowParallel
from octofold_tool.gpu.measuring import relative_error
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.distributed.tensor.placement_types import Placement

ROUNDS, SECONDS, ON_RANKS = 11, 120, True
BFLOAT16 = "BF16"
BFLOAT16_ERROR, FP8_ERROR = 0.02, 0.1
TOKENS = (1024, 4096, 16384) if ON_GPU else (256,)
# Llama 3's of 70B and of 8B, DeepSeek-V3's.
SIZES = ((8192, 28672), (4096, 14336), (7168, 18432)) if ON_GPU else ((256, 512),)
COLUMNS = SIZES[:1]
ROWS = ((28672, 8192),) if ON_GPU else ((512, 256),)
COMPILED = ((4096, 8192, 28672),) if ON_GPU else ((256, 256, 512),)
LAYOUTS: dict[str, Placement] = {"split": Shard(0), "whole": Replicate()}
FEATURES = Shard(-1)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", type=int, nargs="+", default=TOKENS)
    add("--sizes", type=sizes, nargs="*", default=SIZES, metavar="HIDDEN,INNER")
    add("--columns", type=sizes, nargs="*", default=COLUMNS, metavar="K,N")
    add("--rows", type=sizes, nargs="*", default=ROWS, metavar="K,N")
    add("--layouts", nargs="+", choices=LAYOUTS, default=["split"])
    add("--passes", nargs="+", choices=("forward", "both"), default=["forward", "both"])
    add("--recipes", nargs="+", default=["blockwise", "rowwise"])
    add("--compiled", type=sizes, nargs="*", default=COMPILED, metavar="TOKENS,HIDDEN,INNER")
    add("--no-compiled", dest="compiled", action="store_const", const=())


@dataclass(frozen=True)
class Case:
    kind: str
    tokens: int
    sizes: tuple[int, ...]
    layout: str
    compiled: bool

    @property
    def name(self) -> str:
        return f"{self.kind} {self.tokens},{text_of(self.sizes)} {self.layout}"

    @property
    def weights(self) -> list[tuple[int, int]]:
        """Shapes, [out, in]."""
        first, second = self.sizes
        return [(2 * second, first), (first, second)] if self.kind == "mlp" else [(second, first)]

    @property
    def layouts(self) -> tuple[Placement, Placement]:
        """The placements of x and of y."""
        tokens = LAYOUTS[self.layout]
        return {"mlp": (tokens, tokens), "column": (tokens, FEATURES), "row": (FEATURES, tokens)}[
            self.kind
        ]


class Inputs:
    """The same weights and tokens on all ranks; of the tokens each has its part."""

    def __init__(self, case: Case, mesh: DeviceMesh) -> None:
        generator = torch.Generator(DEVICE).manual_seed(0)

        def normal(rows: int, columns: int, deviation: float = 1.0) -> Tensor:
            shape = rows, columns
            values = torch.empty(shape, device=DEVICE, dtype=torch.bfloat16)
            return values.normal_(0, deviation, generator=generator)

        self.weights = [normal(n, k, k**-0.5) for n, k in case.weights]
        taken, given = case.layouts
        x = normal(case.tokens, case.weights[0][1])
        dy = normal(case.tokens, case.weights[-1][0])
        self.x = part(x, taken, mesh).requires_grad_()
        self.dy = part(dy, given, mesh)


def part(whole: Tensor, layout: Placement, mesh: DeviceMesh) -> Tensor:
    if not isinstance(layout, Shard):
        return whole
    return whole.chunk(mesh.size(), layout.dim)[mesh.get_local_rank()].contiguous()


@dataclass(frozen=True)
class Variant:
    name: str
    model: Any
    limit: float
    is_ours: bool = False


def peer(case: Case, given: Inputs, mesh: DeviceMesh) -> nn.Module:
    make = {"mlp": peers.mlp, "column": peers.column, "row": peers.row}[case.kind]
    return make(*given.weights, mesh, LAYOUTS[case.layout])


def ours(case: Case, given: Inputs, mesh: DeviceMesh, recipe: str) -> nn.Module:
    linears = [peers.linear(weight) for weight in given.weights]
    tokens = LAYOUTS[case.layout]
    if case.kind == "mlp":
        mlp = octofold.nn.MLP.from_linears(*linears, recipe=recipe, force_fp8=True)
        style = MLPParallel(input_layouts=tokens, output_layouts=tokens)
        return parallelize_module(mlp, mesh, style)
    layer = octofold.nn.Linear.from_linear(linears[0], recipe=recipe, force_fp8=True)
    if case.kind == "column":
        return parallelize_module(layer, mesh, ColumnParallel(input_layouts=tokens))
    return parallelize_module(layer, mesh, RowParallel(output_layouts=tokens))


def variants(
    case: Case, given: Inputs, mesh: DeviceMesh, recipes: Sequence[str]
) -> Iterator[Variant]:
    plain = peer(case, given, mesh)
    bfloat16 = partial(Variant, limit=BFLOAT16_ERROR)
    yield bfloat16(BFLOAT16, plain)
    if case.compiled:
        yield bfloat16(f"{BFLOAT16} compiled", peers.compiled(plain))
    if ON_GPU and case.layout == "split":
        group = peers.enable_overlap(mesh)
        if case.compiled:
            model = peers.compiled(plain, overlap=True)
            yield bfloat16(f"{BFLOAT16} overlapped", model)
        model = peers.overlapped(plain, case.kind, group)
        yield bfloat16(f"{BFLOAT16} overlapped products", model)
    for recipe in recipes:
        model = ours(case, given, mesh, recipe)
        fp8 = partial(Variant, limit=FP8_ERROR, is_ours=True)
        yield fp8(recipe, model)
        if case.compiled and recipe == recipes[0]:
            yield fp8(f"{recipe} compiled", peers.compiled(model))


def step(model: Any, given: Inputs, trains: bool) -> list[Tensor]:
    """y; and the gradients of x and of the weights, the rank's parts."""
    with torch.set_grad_enabled(trains):
        y = model(given.x)
    results = [y]
    if trains:
        results += torch.autograd.grad(y, (given.x, *model.parameters()), given.dy)
    return [own(result.detach()) for result in results]


def own(tensor: Tensor) -> Tensor:
    """The rank's part, there: a collective of torch's styles may still be on its way, and nothing
    but a use of its result would wait for it."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local


def errors(actual: list[Tensor], expected: list[Tensor]) -> dict[str, float]:
    names = ("y", "dx", "dw", "dw of down")
    pairs = zip(names, actual, expected, strict=False)
    return {
        name: relative_error(a, e) if a.shape == e.shape else float("inf") for name, a, e in pairs
    }


def check(case: str, variant: Variant, found: dict[str, float], run: RankRun) -> None:
    for name, value in found.items():
        words = f"{case}, {variant.name}: error of {name} is {value:.4f}"
        run.require(value <= variant.limit, f"{words}, more than {variant.limit}")
    run.record("errors", case=case, name=variant.name, **found)


def tried(variant: Variant, call: Any, run: RankRun) -> list[Tensor] | None:
    """Results; None, which is said, of what cannot: of ours that is wrong."""
    results = None
    try:
        results = call()
    except Exception as failure:
        if variant.name == BFLOAT16:
            raise
        run.line(f"  left out: {variant.name}: {str(failure).splitlines()[0][:120]}")
    if agreed(results is not None):
        return results
    run.require(not variant.is_ours, f"{variant.name} cannot")
    return None


def measure(run: RankRun, of_case: tuple[Case, str, DeviceMesh]) -> None:
    case, passes, mesh = of_case
    torch.compiler.reset()
    trains, name = passes == "both", f"{case.name} {passes}"
    given = Inputs(case, mesh)
    calls = {}
    expected: list[Tensor] = []
    for variant in variants(case, given, mesh, run.options.recipes):
        call = partial(step, variant.model, given, trains)
        results = tried(variant, call, run)
        if results is None:
            continue
        expected = expected or results
        check(name, variant, errors(results, expected), run)
        calls[variant.name] = call
    # Calls that are shorter than what the host does for them: more in a row, so that it shows.
    repeats = max(1, 4096 // case.tokens) if ON_GPU else 1
    run.times(
        "parallel layer", name, interleaved(calls, run.rounds, repeats), BFLOAT16, passes=passes
    )


def cases(run: RankRun) -> list[tuple[Case, str, DeviceMesh]]:
    """Returns the compiled cases first, as there may be no time for the rest."""
    options = run.options
    mesh = init_device_mesh(DEVICE.type, (torch.distributed.get_world_size(),))
    kinds = {"mlp": options.sizes, "column": options.columns, "row": options.rows}
    chosen = [
        Case(kind, tokens, sizes, layout, kind == "mlp" and (tokens, *sizes) in options.compiled)
        for kind, all_sizes in kinds.items()
        for sizes in all_sizes
        for tokens in options.tokens
        for layout in options.layouts
    ]
    chosen.sort(key=lambda case: not case.compiled)
    return [(case, passes, mesh) for case in chosen for passes in options.passes]
