"""Computation beside an exchange.

An exchange itself goes on a stream of its backend's (NCCL has one for each group), and the stream
that has asked for it waits where it needs what arrives. What another stream was given to compute
before goes on meanwhile.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

_STREAMS: Final[dict[torch.device, torch.cuda.Stream]] = {}


def on_second_stream(function: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    """Begins function(x) on a stream beside the current one, and gives what waits for the result.
    Backward goes there too, as torch runs it on the streams of forward. On the CPU, and while
    torch.compile traces, the function runs at once. A CUDA graph may hold both streams."""
    if not x.is_cuda or torch.compiler.is_compiling():
        result = function(x)
        return lambda: result
    current, beside = torch.cuda.current_stream(x.device), _stream(x.device)
    beside.wait_stream(current)
    with torch.cuda.stream(beside):
        y = function(x)
    x.record_stream(beside)  # in backward too, when the memory may go to the other stream

    def waited() -> Tensor:
        now = torch.cuda.current_stream(y.device)
        now.wait_stream(beside)
        y.record_stream(now)
        return y

    return waited


def _stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _STREAMS[device]
