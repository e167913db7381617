"""Experts that are spread over GPUs, forward and backward, beside BF16 by torch:

    torchrun --nproc-per-node 2 bench/gpu/parallel_experts.py experts.jsonl
    torchrun --nproc-per-node 2 bench/gpu/parallel_experts.py --layers qwen3 --tokens 8192
    torchrun --nproc-per-node 2 bench/gpu/parallel_experts.py --layers deepseek-v3 --experts 64
    torchrun --nproc-per-node 2 bench/gpu/parallel_experts.py --layers qwen3 --hidden 256 \\
        --inner 128 --experts 16 --tokens 40 --rounds 2                to try the script on a CPU

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

"step" lines have the time on the slowest rank, the spread between quartiles, and the speed beside
BF16. "exchange" lines have the four exchanges of a step alone, with as many bytes and nothing else
going on, and the speed beside BF16's. "traffic" lines have the bytes of a step that leave a rank
for others, forward and backward, the rate of the exchange alone, and its part of the step's time.

y and all gradients are first compared with those of BF16; the exit code is 1 if one is off by more
than FP8 explains, or if a row found no room. Experts of DeepSeek-V3 on two ranks want most of the
memory of an H200; --experts and --variants make it less.
"""

import argparse
import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from common.ranks import DEVICE, ON_GPU, Call, Report, Times, interleaved, ranks  # before torch

# isort: split
import octofold.distributed
import torch
import torch.distributed as dist
from octofold._timing import captured
from octofold.distributed.expert_parallel.message import Field, packed, token_fields
from parallel_peers.experts import ExpertsOverRanks, Pieces
from torch import Tensor

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


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("results", nargs="?", type=Path, help="a file, to which lines of JSON are appended")
    add("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    add("--variants", nargs="+", choices=(COMPILED, *OURS), default=[COMPILED, *OURS])
    add("--tokens", type=int, nargs="+", help="of a rank; others than the layers' own")
    for size in ("hidden", "inner", "experts"):
        add(f"--{size}", type=int, help="another one than the layers' own")
    add("--rounds", type=int, default=15)
    return parser.parse_args()


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


class Traffic(NamedTuple):
    """The traffic of a step: rows to each rank and from each, and the bytes of a row to the
    experts and back, in forward, and likewise in backward."""

    leaving: list[int]
    arriving: list[int]
    row_bytes: tuple[int, int, int, int]

    @staticmethod
    def of(leaving: Tensor, *row_bytes: int) -> "Traffic":
        """Collective."""
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        return Traffic(leaving.tolist(), arriving.tolist(), (*row_bytes,))

    def bytes(self) -> tuple[int, int]:
        """Collective: what leaves a rank for others in forward and in backward, the most of all
        ranks."""
        own = dist.get_rank()
        away, home = (sum(rows) - rows[own] for rows in (self.leaving, self.arriving))
        there, back, dy, gradients = self.row_bytes
        most = torch.tensor([away * there + home * back, away * dy + home * gradients])
        most = most.to(DEVICE)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        forward, backward = most.tolist()
        return forward, backward

    def exchanges(self) -> Call:
        """The four, in memory that is there."""
        rows = max(sum(self.leaving), sum(self.arriving))
        size = rows * max(self.row_bytes)
        memory = [torch.zeros(size, dtype=torch.uint8, device=DEVICE) for _ in range(2)]

        def exchange(away: bool, row: int) -> None:
            splits = (self.leaving, self.arriving) if away else (self.arriving, self.leaving)
            sent, received = (
                part[: sum(rows) * row].view(-1, row)
                for part, rows in zip(memory, splits, strict=True)
            )
            dist.all_to_all_single(received, sent, splits[1], splits[0])

        def call() -> None:
            for index, row in enumerate(self.row_bytes):
                exchange(index % 2 == 0, row)

        return call


def row_bytes(*parts: Field) -> int:
    """Bytes of a row of these parts on the wire."""
    row = packed([torch.empty((0, part.numbers), dtype=part.dtype) for part in parts])
    return row.shape[1] * row.itemsize


def traffics(problem: Problem, layer: Layer) -> dict[str, Traffic]:
    """By the variant whose traffic it is. That of "halves" is "octofold"'s, that of a graph
    "capacity"'s. docs/distributed/experts.md has the parts of a row."""
    size, hidden, k = dist.get_world_size(), layer.hidden, layer.top_k
    owners = problem.ids // (layer.experts // size)
    goes = owners.unsqueeze(-1) == torch.arange(size, device=DEVICE)
    choices, once = goes.sum((0, 1)), goes.any(1).sum(0)
    room = torch.full_like(once, len(problem.x))
    (whole,) = token_fields(hidden, torch.bfloat16, None)
    codes = token_fields(hidden, torch.bfloat16, octofold.Format(granularity="1x128"))
    ids, weights = Field(torch.int32, k), Field(torch.float32, k)
    back, gradients = row_bytes(whole), row_bytes(whole, weights)
    of_codes = (row_bytes(*codes, ids, weights), back, row_bytes(*codes), gradients)
    of_input = (row_bytes(whole, ids, weights), back, back, gradients)
    return {
        BASE: Traffic.of(choices, back, back, back, back),
        "octofold": Traffic.of(once, *of_codes),
        "octofold input": Traffic.of(once, *of_input),
        "octofold capacity": Traffic.of(room, *of_codes),
    }


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


def check(
    report: Report, case: str, name: str, results: list[Tensor], wanted: list[Tensor]
) -> None:
    errors = [error(left, right) for left, right in zip(results, wanted, strict=True)]
    limits = (Y_ERROR, *[GRADIENT_ERROR] * 4)
    right = all(value <= limit for value, limit in zip(errors, limits, strict=True))  # NaN is not
    found = ", ".join(f"{what} {value:.4f}" for what, value in zip(NAMES, errors, strict=True))
    report.line(f"  {case:<34} {name:<34} error {found}")
    report.write("error", case, name=name, **dict(zip(NAMES, errors, strict=True)))
    report.require(right, f"{case}, {name}: {found} on rank 0")


def checked(
    report: Report, case: str, problem: Problem, layer: Layer, chosen: list[str]
) -> dict[str, Call]:
    """Returns the calls that are measured: BF16, and those whose results were compared with it."""
    dropped = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    calls: dict[str, Call] = {BASE: partial(problem.step, ExpertsOverRanks())}
    wanted = calls[BASE]()
    for name, call in steps(problem, layer, chosen, dropped):
        check(report, case, name, call(), wanted)
        calls[name] = call
    report.require(not dropped.item(), f"{case}: {dropped.item()} rows found no room")
    return calls


def say_traffic(
    report: Report,
    case: str,
    traffic: dict[str, Traffic],
    found: dict[str, Times],
    alone: dict[str, Times],
) -> None:
    for name, of in traffic.items():
        forward, backward = of.bytes()
        rate = (forward + backward) / alone[name].median / 1e3
        share = alone[name].median / found[name].median
        report.line(
            f"  {case:<34} {name:<34} {forward / 1e6:8.1f} MB forward {backward / 1e6:8.1f} MB"
            f" backward {rate:6.0f} GB/s {share:4.0%} of the step"
        )
        values = {"forward_bytes": forward, "backward_bytes": backward}
        report.write("traffic", case, name=name, **values, gigabytes_per_second=rate, share=share)


def say_memory(report: Report, case: str) -> None:
    """Reports the first rank's memory of all variants together: what a graph uses stays with it."""
    if ON_GPU:
        most = torch.cuda.max_memory_reserved()
        retries = torch.cuda.memory_stats()["num_alloc_retries"]
        report.line(
            f"  {case:<34} {'memory, at most':<34} {most / 1e9:10.1f} GB,"
            f" {retries} times none was left and torch gave back what it kept, which takes time"
        )
        report.write("memory", case, reserved=most, retries=retries)
        torch.cuda.reset_peak_memory_stats()


def release() -> None:
    """Also graphs, which hold on to NCCL's communicator: none may be left when it goes."""
    gc.collect()
    if ON_GPU:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def measure(
    report: Report, case: str, problem: Problem, layer: Layer, options: argparse.Namespace
) -> None:
    report.line(f"\n{case}: compared with {BASE}")
    calls = checked(report, case, problem, layer, options.variants)
    release()  # what it was compared with
    report.line("step, forward and backward")
    found = interleaved(calls, options.rounds)
    sizes = layer._replace(tokens=len(problem.x))._asdict()
    report.times("step", case, found, BASE, **sizes)
    say_memory(report, case)
    calls.clear()
    release()
    report.line("exchange, what a step sends and nothing else")
    traffic = {name: of for name, of in traffics(problem, layer).items() if name in found}
    exchanges = {name: of.exchanges() for name, of in traffic.items()}
    alone = interleaved(exchanges, options.rounds)
    report.times("exchange", case, alone, BASE)
    report.line("traffic, what leaves a rank for others in a step")
    say_traffic(report, case, traffic, found, alone)


def main() -> None:
    options = parsed()
    with ranks(options.results) as report:
        for name in options.layers:
            layer = layer_of(name, options)
            w13, w2 = expert_weights(layer)
            for tokens in layer.tokens:
                problem = problem_of(layer, tokens, w13, w2)
                measure(report, f"{name} {tokens}", problem, layer, options)
                del problem
                release()
            del w13, w2
            torch._dynamo.reset()  # the next layer's pieces are compiled for its sizes
            release()


if __name__ == "__main__":
    main()
