"""What an FP8 product and an exchange lose beside each other, each on a stream of its own."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import octofold
import torch
from common.ranks import DEVICE, ON_GPU, Call, Report, interleaved

from .exchanges import ALL_GATHER, COPY_ENGINE, Memory

REPEATS = 4
AHEAD = 3  # times as long as the other takes alone, so that it is beside the whole of the call


class Streams:
    """FSDP gathers on a stream of high priority, too. A CPU has none: there one call comes behind
    the other, and times mean even less."""

    def __init__(self) -> None:
        self._product = torch.cuda.Stream(DEVICE) if ON_GPU else None
        self._exchange = torch.cuda.Stream(DEVICE, priority=-1) if ON_GPU else None

    def product(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._product) if ON_GPU else nullcontext()

    def exchange(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._exchange) if ON_GPU else nullcontext()


@contextmanager
def settled() -> Iterator[None]:
    """What was queued on other streams is done before, and what is queued here after."""
    if ON_GPU:
        torch.cuda.synchronize()
    yield
    if ON_GPU:
        torch.cuda.synchronize()


class Product:
    """D = A · Bᵀ of square matrices, recipe blockwise."""

    def __init__(self, size: int) -> None:
        self._x = octofold.quantize(torch.randn(size, size, device=DEVICE), "1x128")
        self._w = octofold.quantize(torch.randn(size, size, device=DEVICE), "128x128")
        self.out = torch.empty(size, size, dtype=torch.bfloat16, device=DEVICE)

    def __call__(self) -> None:
        octofold.gemm(self._x, self._w, out=self.out)


def measure_contention(report: Report, memory: Memory, size: int, bytes_: int, rounds: int) -> None:
    """Times of a product of size³ and of exchanges over so many bytes, alone and beside others."""
    product, streams = Product(size), Streams()
    product()
    expected = product.out.clone()
    for kind in (ALL_GATHER, COPY_ENGINE) if ON_GPU else (ALL_GATHER,):
        exchange = kind.prepare(memory, bytes_)
        alone = interleaved({"product": product, "exchange": exchange.call}, 3, REPEATS)
        ratio = alone["product"].median / alone["exchange"].median
        beside_product = beside(product, exchange.call, streams.exchange, ratio)
        beside_exchange = beside(exchange.call, product, streams.product, 1 / ratio)
        with settled(), streams.product():
            calls = {"alone": product, f"beside {kind.name}": beside_product}
            found = interleaved(calls, rounds, REPEATS)
        sizes = {"size": size, "bytes": bytes_, "exchange": kind.name}
        report.times("contention", f"product {size}³", found, "alone", **sizes)
        with settled(), streams.exchange():
            calls = {"alone": exchange.call, "beside products": beside_exchange}
            found = interleaved(calls, rounds, REPEATS)
        report.times("contention", f"{kind.name} {bytes_ >> 10} KiB", found, "alone", **sizes)
        report.require(exchange.is_right(), f"{kind.name} beside products")
        report.require(torch.equal(product.out, expected), f"the product beside {kind.name}")


def beside(call: Call, other: Call, stream, ratio: float) -> Call:
    """The call, with enough of the other on its stream; `ratio` of the former takes to one of the
    latter."""
    count = max(2, math.ceil(AHEAD * ratio))

    def both() -> None:
        with stream():
            for _ in range(count):
                other()
        call()

    return both
