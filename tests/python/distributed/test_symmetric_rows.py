"""Rows in symmetric memory: who reads what, and when its flag is set. Two ranks in one process, on
the CPU, with a driver that copies at once."""

import contextlib
import ctypes
import types

import octofold
import pytest
import torch

pytest.importorskip("torch.distributed._symmetric_memory")

from octofold.distributed import overlap

RANKS = 2


class Driver:
    """cuMemcpy2DAsync and cuStreamWriteValue32, as they come, and their order and the barriers'."""

    def __init__(self):
        self.calls = []

    def cuMemcpy2DAsync_v2(self, request, stream):  # noqa: N802
        copy = request._obj
        assert copy.width <= copy.src_pitch
        assert copy.width <= copy.dst_pitch
        for row in range(copy.height):
            target, source = copy.dst + row * copy.dst_pitch, copy.src + row * copy.src_pitch
            ctypes.memmove(target, source, copy.width)
        self.calls.append("copy")
        return 0

    def cuStreamWriteValue32_v2(self, stream, address, value, flags):  # noqa: N802
        ctypes.c_uint32.from_address(address.value).value = value.value
        self.calls.append("flag")
        return 0


class Stream:
    cuda_stream = 0

    def __init__(self, device=None):
        pass

    def wait_stream(self, other):
        pass


class Handle:
    def __init__(self, memories, calls):
        self._memories = memories
        self._calls = calls

    def get_buffer(self, rank, sizes, dtype):
        return self._memories[rank]

    def barrier(self):
        self._calls.append("barrier")


@pytest.fixture
def driver(monkeypatch):
    from torch.distributed import _symmetric_memory as symmetric

    driver, memories = Driver(), []

    def empty(size, dtype, device):
        if not memories:  # all ranks have theirs before one asks for another's
            memories.extend(torch.full((size,), 0x7F, dtype=dtype) for _ in range(RANKS))
        return memories[empty.rank]

    def rendezvous(memory, name):
        empty.rank += 1
        return Handle(memories, driver.calls)

    empty.rank = 0
    monkeypatch.setattr(overlap, "_driver", lambda: driver)
    monkeypatch.setattr(symmetric, "empty", empty)
    monkeypatch.setattr(symmetric, "rendezvous", rendezvous)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return driver


@pytest.mark.parametrize("words", ["1x128", "channel", "e5m2 1x128"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 256), (5, 300), (1, 128)])
def test_rows_come_from_their_ranks(driver, words, rows, columns):
    cast = octofold.quantize(torch.zeros(1, 128), words)
    form = types.SimpleNamespace(
        dtype="e5m2" if "e5m2" in words else "e4m3", granularity=cast.granularity
    )
    ranks = []
    for rank in range(RANKS):
        product = types.SimpleNamespace(
            rank=rank, ranks=RANKS, rows=rows, columns=columns, format=form, device="cpu"
        )
        product._group = types.SimpleNamespace(name="group")
        ranks.append(overlap._Overlapped(product))
    w = octofold.quantize(torch.randn(72, columns), "128x128")
    for turn in range(4):
        x = torch.randn(RANKS, rows, columns)
        whole = octofold.quantize(x.flatten(0, 1), words)
        shards = [octofold.quantize(each, words) for each in x]
        first, last = (0, 1) if turn % 2 else (1, 0)
        ranks[first].begin(shards[first])
        driver.calls.clear()
        mine, arrivals = ranks[last].begin(shards[last])
        assert driver.calls == ["barrier", "copy", "copy", "flag"]
        assert mine.equals(whole)
        assert arrivals.own == last
        assert arrivals.flags.tolist() == [1, 1]
        ranks[last].end()
        y = octofold.gemm(mine, w, arrivals=arrivals)
        assert torch.equal(y, octofold.gemm(whole, w))
