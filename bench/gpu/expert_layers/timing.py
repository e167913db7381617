"""Times of a layer: as it is called, the host's part in it, and of a CUDA graph."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from octofold_tool.gpu.timing import REST, Call, Sampler, graph_sampler

WINDOW = 5e-3  # seconds of a sample of calls from the host
HOST_CALLS = 12  # fewer kernels in all than a stream's queue holds, so that no call waits for it


@dataclass(frozen=True)
class EagerSampler:
    """Seconds of one of some calls in a row, until the GPU is done with them."""

    call: Call
    count: int
    synchronize: Callable[[], None]

    def __call__(self) -> float:
        time.sleep(REST)
        self.synchronize()
        start = time.perf_counter()
        for _ in range(self.count):
            self.call()
        self.synchronize()
        return (time.perf_counter() - start) / self.count


@dataclass(frozen=True)
class HostSampler:
    """Seconds that the host spends in one of some calls in a row."""

    call: Call
    synchronize: Callable[[], None]

    def __call__(self) -> float:
        self.synchronize()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            self.call()
        seconds = (time.perf_counter() - start) / HOST_CALLS
        self.synchronize()
        return seconds


def synchronizer(device: torch.device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def eager_sampler(call: Call, device: torch.device) -> Sampler:
    """Of a call that has run before."""
    synchronize = synchronizer(device)
    once = EagerSampler(call, 1, synchronize)()
    return EagerSampler(call, max(1, round(WINDOW / once)), synchronize)


def graph_of(call: Call) -> Sampler:
    """Raises RuntimeError for what cannot be captured."""
    try:
        return graph_sampler([call])
    finally:
        torch.cuda.synchronize()
