"""Experts that are spread over GPUs, forward and backward, beside BF16 by torch:

    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_experts RESULTS.jsonl
    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_experts RESULTS.jsonl --layers qwen3
        --tokens 8192
    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_experts RESULTS.jsonl
        --layers deepseek-v3 --experts 64

Layers are the routed experts of Qwen3-30B-A3B and DeepSeek-V3. The router is not part of them: each
token has k random experts, all alike, and each call takes the same ids and weights. A step is
forward, and backward by x, the routing weights, w13 and w2; weights are BF16, and ours are cast in
each step. By turns:

    BF16                all_to_all of a row for each choice, torch._grouped_mm: torchtitan's scheme
    BF16 compiled       the same; what is between exchanges and products by torch.compile
    octofold            FP8 products; tokens go once to each rank, as codes
    octofold input      the same with tokens in BF16 on the wire: wire="input"
    octofold halves     codes; the exchange of a half beside the products of the other
    octofold capacity   codes; room for all tokens of a rank, and the host waits for nothing
    octofold graph      that in a CUDA graph of forward and backward

y and all gradients are first compared with those of BF16; a row that finds no room is wrong, too.
Experts of DeepSeek-V3 on two ranks want most of the
memory of an H200; --experts and --variants make it less.
"""

import argparse
import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import octofold.distributed
import torch
import torch.distributed as dist
from common.ranks import DEVICE, ON_GPU, Call, RankRun, interleaved
from common.torch_experts import ExpertsOverRanks, Pieces
from octofold._timing import captured
from torch import Tensor

ROUNDS, SECONDS, ON_RANKS = 15, 540, True
BASE, COMPILED, GRAPH = "BF16", "BF16 compiled", "octofold graph"
OURS = ("octofold", "octofold input", "octofold halves", "octofold capacity", GRAPH)
ONLY_ON_GPU = (COMPILED, GRAPH)
Y_ERROR, GRADIENT_ERROR = 0.1, 0.13
NAMES = ("y", "x", "weights", "w13", "w2")
Forward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Layer(NamedTuple):
    hidden: int
    inner: int
    experts: int
    top_k: int
    tokens: tuple[int, ...]
    """The numbers of tokens of a rank, which are measured one after the other."""


LAYERS = {
    "qwen3": Layer(2048, 768, 128, 8, (2048, 8192, 16384)),
    "deepseek-v3": Layer(7168, 2048, 256, 8, (2048, 8192)),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    add("--variants", nargs="+", choices=(COMPILED, *OURS), default=[COMPILED, *OURS])
    add("--tokens", type=int, nargs="+", help="of a rank; others than the layers' own")
    for size in ("hidden", "inner", "experts"):
        add(f"--{size}", type=int, help="another one than the layers' own")


def layer_of(name: str, options: argparse.Namespace) -> Layer:
    given = {key: getattr(options, key) for key in ("hidden", "inner", "experts", "tokens")}
    return LAYERS[name]._replace(**{key: value for key, value in given.items() if value})


def normal(*shape: int, deviation: float = 1.0) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(std=deviation)


class Problem(NamedTuple):
    """The problem of one rank: its tokens, and its experts' weights."""

    x: Tensor
    ids: Tensor
    weights: Tensor
    w13: Tensor
    w2: Tensor
    dy: Tensor

    def step(self, forward: Forward) -> list[Tensor]:
        """y, and the gradients in the order of NAMES; nothing is kept in .grad. Leaves are new, so
        that autograd's nodes for them are of the stream that a graph is captured on."""
        leaves = [t.detach().requires_grad_() for t in (self.x, self.weights, self.w13, self.w2)]
        x, weights, w13, w2 = leaves
        y = forward(x, self.ids, weights, w13, w2)
        return [y.detach(), *torch.autograd.grad(y, leaves, self.dy)]


def expert_weights(layer: Layer) -> tuple[Tensor, Tensor]:
    """w13 and w2 of this rank, which all variants and numbers of tokens share."""
    own, hidden, inner = layer.experts // dist.get_world_size(), layer.hidden, layer.inner
    w13 = normal(own, 2 * inner, hidden, deviation=hidden**-0.5)
    w2 = normal(own, hidden, inner, deviation=inner**-0.5)
    return w13, w2


def problem_of(layer: Layer, tokens: int, w13: Tensor, w2: Tensor) -> Problem:
    best = torch.randn(tokens, layer.experts, device=DEVICE).topk(layer.top_k, dim=1)
    x, weights = normal(tokens, layer.hidden), best.values.softmax(dim=1)
    ids, dy = best.indices.int(), normal(tokens, layer.hidden)
    return Problem(x, ids, weights, w13, w2, dy)


def in_graph(call: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """Its replay, after calls on a side stream, which autograd wants before it is captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    release()  # as memory of that stream is of no use to a graph
    return captured(call, "thread_local")  # NCCL's watchdog asks for events meanwhile


def steps(
    problem: Problem, layer: Layer, chosen: list[str], dropped: Tensor
) -> Iterator[tuple[str, Callable[[], list[Tensor]]]]:
    """dropped: counts rows that find no room."""
    tokens = len(problem.x)
    choices = tokens * layer.top_k
    # If experts are chosen alike, a rank gets about as many choices as it has itself.
    room = {"capacity": tokens, "local_rows": choices + choices // 4 + 128, "dropped": dropped}
    how = {
        "octofold": {},
        "octofold input": {"wire": "input"},
        "octofold halves": {"halves": 2},
        "octofold capacity": room,
        GRAPH: room,
    }
    for name in chosen:
        if name in ONLY_ON_GPU and not ON_GPU:
            continue
        forward: Forward = ExpertsOverRanks(Pieces.compiled() if name == COMPILED else None)
        if name in how:
            forward = partial(octofold.distributed.experts, **how[name])
        call = partial(problem.step, forward)
        yield name, in_graph(call) if name == GRAPH else call


def error(actual: Tensor, wanted: Tensor) -> float:
    """‖actual − wanted‖ / ‖wanted‖; in parts, as weights' gradients are gigabytes."""
    difference, norm = (torch.zeros((), dtype=torch.float64, device=DEVICE) for _ in range(2))
    for left, right in zip(actual.split(16), wanted.split(16), strict=True):
        difference += (left.float() - right.float()).square().sum()
        norm += right.float().square().sum()
    return float((difference / norm).sqrt())


def check(run: RankRun, case: str, name: str, results: list[Tensor], wanted: list[Tensor]) -> None:
    errors = [error(left, right) for left, right in zip(results, wanted, strict=True)]
    limits = (Y_ERROR, *[GRADIENT_ERROR] * 4)
    right = all(value <= limit for value, limit in zip(errors, limits, strict=True))  # NaN is not
    found = ", ".join(f"{what} {value:.4f}" for what, value in zip(NAMES, errors, strict=True))
    run.line(f"  {case:<34} {name:<34} error {found}")
    run.record("error", case=case, name=name, **dict(zip(NAMES, errors, strict=True)))
    run.require(right, f"{case}, {name}: {found} on rank 0")


def checked(
    run: RankRun, case: str, problem: Problem, layer: Layer, chosen: list[str]
) -> dict[str, Call]:
    """Returns the calls that are measured: BF16, and those whose results were compared with it."""
    dropped = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    calls: dict[str, Call] = {BASE: partial(problem.step, ExpertsOverRanks())}
    wanted = calls[BASE]()
    for name, call in steps(problem, layer, chosen, dropped):
        check(run, case, name, call(), wanted)
        calls[name] = call
    run.require(not dropped.item(), f"{case}: {dropped.item()} rows found no room")
    return calls


def release() -> None:
    """Also graphs, which hold on to NCCL's communicator: none may be left when it goes."""
    gc.collect()
    if ON_GPU:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def cases(run: RankRun) -> Iterator[tuple[str, Problem, Layer]]:
    for name in run.options.layers:
        layer = layer_of(name, run.options)
        w13, w2 = expert_weights(layer)
        for tokens in layer.tokens:
            yield f"{name} {tokens}", problem_of(layer, tokens, w13, w2), layer
        del w13, w2
        torch._dynamo.reset()  # the next layer's pieces are compiled for its sizes
        release()


def measure(run: RankRun, of_case: tuple[str, Problem, Layer]) -> None:
    case, problem, layer = of_case
    run.line(f"\n{case}: compared with {BASE}")
    calls = checked(run, case, problem, layer, run.options.variants)
    release()  # what it was compared with
    found = interleaved(calls, run.rounds)
    sizes = layer._replace(tokens=len(problem.x))._asdict()
    run.times("step", case, found, BASE, **sizes)
    calls.clear()
    release()
