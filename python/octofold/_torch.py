"""torch: tensors in and out of the library, and the operations as registered torch ops.

The public functions go through torch.ops.octofold wherever torch has to know of them, so that
torch.compile sees one opaque op with known shapes; elsewhere they call the library at once, as
torch's way to an op in Python takes longer than a small product. None has a gradient: backward
through one raises RuntimeError.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from . import _torch_ops
from ._frameworks import Array
from ._operations import CastOptions, Scaled
from ._torch_framework import DTYPES, on_device_of

_PLAIN_TYPES: Final = (Tensor, torch.nn.Parameter)


def _is_eager(*tensors: Tensor | None) -> bool:
    """Whether nobody watches: no compiler, no tracing or other dispatch mode, no subclass of
    Tensor, nothing to differentiate."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    with_gradients = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in _PLAIN_TYPES or (with_gradients and tensor.requires_grad)
        ):
            return False
    return True


class TorchOperations:
    """The operations with the signatures of Operations."""

    def quantize(
        self, x: Tensor, dtype: str, options: CastOptions, transpose: bool
    ) -> tuple[Tensor, Tensor]:
        if _is_eager(x):
            return on_device_of(x).quantize(x, dtype, options, transpose)
        data, scale = _torch_ops.quantize(x, DTYPES[dtype], *options, transpose)
        return data, scale

    def quantize_both(
        self, x: Tensor, dtype: str, options: CastOptions
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if _is_eager(x):
            return on_device_of(x).quantize_both(x, dtype, options)
        data, scale, transposed_data, transposed_scale = _torch_ops.quantize_both(
            x, DTYPES[dtype], *options
        )
        return data, scale, transposed_data, transposed_scale

    def dequantize(self, x: Scaled, dtype: str) -> Array:
        if _is_eager(x.data, x.scale):
            return on_device_of(x.data).dequantize(x, dtype)
        return _torch_ops.dequantize(*x, DTYPES[dtype])

    def convert(self, x: Tensor, dtype: str, overflow: str) -> Array:
        if _is_eager(x):
            return on_device_of(x).convert(x, dtype, overflow)
        return _torch_ops.convert(x, DTYPES[dtype], overflow)

    def gemm(
        self,
        a: Scaled,
        b: Scaled,
        c: Tensor | None,
        bias: Tensor | None,
        out_dtype: str,
        fast_accumulation: bool,
    ) -> Array:
        if _is_eager(a.data, a.scale, b.data, b.scale, c, bias):
            return on_device_of(a.data).gemm(a, b, c, bias, out_dtype, fast_accumulation)
        return _torch_ops.gemm(*a, *b, c, bias, DTYPES[out_dtype], fast_accumulation)

    def gemm_out(
        self,
        out: Tensor,
        a: Scaled,
        b: Scaled,
        c: Tensor | None,
        bias: Tensor | None,
        fast_accumulation: bool,
    ) -> None:
        if _is_eager(out, a.data, a.scale, b.data, b.scale, c, bias):
            on_device_of(a.data).gemm_out(out, a, b, c, bias, fast_accumulation)
            torch.autograd.graph.increment_version(out)
            return
        in_place = c is out
        _torch_ops.gemm_out(out, *a, *b, None if in_place else c, bias, in_place, fast_accumulation)


OPERATIONS: Final = TorchOperations()

_Result = TypeVar("_Result")


def on_stream(stream: int, inputs: Sequence[Tensor | None], call: Callable[[], _Result]) -> _Result:
    """`call` with the stream of this address as the current one. Results lie in memory of that
    stream; no memory is reused before the stream, and the one that is current outside, are done
    with what they were given."""
    tensors = [tensor for tensor in inputs if tensor is not None and tensor.is_cuda]
    if not tensors:
        return call()
    device = tensors[0].device
    current = torch.cuda.current_stream(device)
    if stream == current.cuda_stream:
        return call()
    theirs: torch.cuda.Stream = (
        torch.cuda.ExternalStream(stream, device)  # type: ignore[no-untyped-call]
        if stream != 0
        else torch.cuda.default_stream(device)
    )
    with torch.cuda.stream(theirs):
        result = call()
    for tensor in tensors:
        tensor.record_stream(theirs)
    results: Any = result if isinstance(result, tuple) else (result,)
    for tensor in results:
        if tensor is not None:
            tensor.record_stream(current)
    return result
