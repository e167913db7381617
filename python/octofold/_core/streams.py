"""CUDA streams of any framework as the handle that the library takes."""

from typing import Annotated, Any, TypeAlias

from .errors import invalid_argument

StreamLike: TypeAlias = Annotated[Any, "stream"]
"""A cudaStream_t or CUstream as an int, or an object that has one: torch.cuda.Stream,
cupy.cuda.Stream, or anything with `__cuda_stream__`."""


def stream_handle(operation: str, stream: StreamLike) -> int:
    """The address of a stream."""
    handle: object = None
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle = stream
    elif hasattr(stream, "__cuda_stream__"):  # (version of the protocol, handle)
        protocol = stream.__cuda_stream__
        handle = (protocol() if callable(protocol) else protocol)[1]
    elif hasattr(stream, "cuda_stream"):
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        handle = stream.ptr
    if not isinstance(handle, int) or not 0 <= handle < 2**63:
        raise invalid_argument(
            operation,
            "stream",
            "None, the address of a CUDA stream, or an object with __cuda_stream__, cuda_stream or "
            "ptr",
            repr(stream),
        )
    return handle
