"""FSDP's gathers run on streams of its own, outside backward and in it."""

from typing import Final, Generic, TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")


class AnyStream(Generic[_T]):
    """A value that was made on the current stream, for others too: FSDP asks for what is to be
    gathered on streams that do not wait for a forward's pre-hooks, nor for each other.

    value: of these tensors.
    """

    def __init__(self, value: _T, *tensors: Tensor | None) -> None:
        self._value = value
        self._tensors: Final = [tensor for tensor in tensors if tensor is not None]
        on_gpu = self._tensors[0].is_cuda
        self._ready = torch.cuda.current_stream().record_event() if on_gpu else None

    def here(self) -> _T:
        """It, for the current stream, which waits until it is there; its memory is kept as long as
        this stream needs it."""
        if self._ready is not None:
            stream = torch.cuda.current_stream(self._tensors[0].device)
            stream.wait_event(self._ready)
            for tensor in self._tensors:
                tensor.record_stream(stream)
        return self._value


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
