"""Exchanges of so many bytes between ranks, and whether what came is what was sent.

All take their operands from the same memory. What a rank sends is drawn anew from a seed that is
its number, so that every rank can draw what the others have sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from common.ranks import DEVICE, ON_GPU, Call
from octofold.distributed._copy_engine import MatrixCopy
from octofold_tool.parallel.links import Exchange, Group, Links
from torch import Tensor

ROW = 8192  # bytes of a row that a copy engine copies
SMALL_INTEGERS = 8  # whose sums are exact in BF16
# Their names since torch 2.13, and before.
gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_into = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Prepared(NamedTuple):
    """An exchange over given bytes; and, behind the first call, whether its outcome is right."""

    call: Call
    is_right: Callable[[], bool]


class Memory:
    """What is sent, and room for what comes, of as many bytes as the largest exchange has."""

    def __init__(self, largest: int) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.sent = torch.empty(largest, dtype=torch.uint8, device=DEVICE)
        self.received = torch.empty_like(self.sent)
        self.next = (self.rank + 1) % self.ranks
        self.of_next: Tensor | None = None
        """What the next rank has in symmetric memory: the whole of drawn(...)."""
        if ON_GPU:
            self._share(largest)

    def _share(self, largest: int) -> None:
        from torch.distributed import _symmetric_memory as symmetric

        own = symmetric.empty(largest, dtype=torch.uint8, device=DEVICE)
        handle = symmetric.rendezvous(own, dist.group.WORLD.group_name)
        draw(own, self.rank)
        self.of_next = handle.get_buffer(self.next, (largest,), torch.uint8)
        self._own = own, handle
        torch.cuda.synchronize()
        dist.barrier()


def draw(target: Tensor, rank: int) -> Tensor:
    """The numbers of a rank: any bytes, or small integers."""
    generator = torch.Generator(DEVICE).manual_seed(rank)
    most = 256 if target.dtype == torch.uint8 else SMALL_INTEGERS
    return target.random_(0, most, generator=generator)


def drawn(count: int, rank: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return draw(torch.empty(count, dtype=dtype, device=DEVICE), rank)


def all_gather(memory: Memory, bytes_: int) -> Prepared:
    part = bytes_ // memory.ranks
    source, target = memory.sent[:part], memory.received[: part * memory.ranks]
    draw(source, memory.rank)

    def is_right() -> bool:
        return all(
            torch.equal(found, drawn(part, rank))
            for rank, found in enumerate(target.chunk(memory.ranks))
        )

    return Prepared(lambda: gather_into(target, source), is_right)


def reduce_scatter(memory: Memory, bytes_: int, dtype: torch.dtype) -> Prepared:
    part = bytes_ // memory.ranks // dtype.itemsize
    source = memory.sent.view(dtype)[: part * memory.ranks]
    target = memory.received.view(dtype)[:part]
    draw(source, memory.rank)

    def is_right() -> bool:
        own = slice(memory.rank * part, (memory.rank + 1) * part)
        expected = sum(drawn(source.numel(), rank, dtype)[own] for rank in range(memory.ranks))
        return torch.equal(target, expected)

    return Prepared(lambda: scatter_into(target, source), is_right)


def all_reduce(memory: Memory, bytes_: int, dtype: torch.dtype) -> Prepared:
    """In place: the sums of calls in a row become infinite, which takes no longer."""
    target = draw(memory.received.view(dtype)[: bytes_ // dtype.itemsize], memory.rank)

    def is_right() -> bool:
        return torch.equal(
            target, sum(drawn(target.numel(), rank, dtype) for rank in range(memory.ranks))
        )

    return Prepared(lambda: dist.all_reduce(target), is_right)


def all_to_all(memory: Memory, bytes_: int) -> Prepared:
    part = bytes_ // memory.ranks
    source, target = (each[: part * memory.ranks] for each in (memory.sent, memory.received))
    draw(source, memory.rank)

    def is_right() -> bool:
        return all(
            torch.equal(found, drawn(source.numel(), rank).chunk(memory.ranks)[memory.rank])
            for rank, found in enumerate(target.chunk(memory.ranks))
        )

    return Prepared(lambda: dist.all_to_all_single(target, source), is_right)


def pull(memory: Memory, bytes_: int) -> Prepared:
    """As many bytes as the others' parts have, from the next rank alone."""
    assert memory.of_next is not None
    part = bytes_ // memory.ranks * (memory.ranks - 1) // ROW * ROW
    source, target = memory.of_next[:part].view(-1, ROW), memory.received[:part].view(-1, ROW)

    def is_right() -> bool:
        whole = drawn(memory.of_next.numel(), memory.next)
        return torch.equal(target, whole[:part].view(-1, ROW))

    copy = MatrixCopy(target, source)
    return Prepared(lambda: copy.begin(torch.cuda.current_stream()), is_right)


@dataclass(frozen=True)
class Kind:
    """A kind of exchange over a buffer of so many bytes."""

    name: str
    link: str
    """With whose other times its times are fitted."""
    prepare: Callable[[Memory, int], Prepared]
    reckon: Callable[[Links, Group, float], Exchange]
    """What a plan says of it."""

    def steps(self, group: Group) -> float:
        """By which a plan multiplies the latency."""
        only_steps = Links(group.size, float("inf"), float("inf"), 1.0, 1.0)
        return self.reckon(only_steps, group, 1.0).seconds


def one_step(links: Links, group: Group, bytes_: float) -> Exchange:
    return links.all_to_all(bytes_ * (group.size - 1) / group.size, 0)


def with_type(
    prepare: Callable[[Memory, int, torch.dtype], Prepared], dtype: torch.dtype
) -> Callable[[Memory, int], Prepared]:
    return lambda memory, bytes_: prepare(memory, bytes_, dtype)


ALL_GATHER = Kind("all-gather", "gather", all_gather, Links.gather)
ALL_TO_ALL = Kind("all-to-all", "all-to-all", all_to_all, one_step)
COPY_ENGINE = Kind("copy engine", "copy engine", pull, one_step)
EXCHANGES = (
    ALL_GATHER,
    *(
        Kind(
            f"reduce-scatter {name}",
            "reduce-scatter",
            with_type(reduce_scatter, dtype),
            Links.reduce_scatter,
        )
        for name, dtype in (("BF16", torch.bfloat16), ("FP32", torch.float32))
    ),
    Kind("all-reduce FP32", "all-reduce", with_type(all_reduce, torch.float32), Links.all_reduce),
    ALL_TO_ALL,
    *((COPY_ENGINE,) if ON_GPU else ()),
)
