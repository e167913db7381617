"""torch: which calls go to the library at once, and which through the registered torch ops.

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
from ._operations import CastOptions, Operations, Scaled
from ._torch_framework import DTYPES, on_device_of

_PLAIN_TYPES: Final = (Tensor, torch.nn.Parameter)

# Bound once: looking these up takes as long as the answers.
_is_compiling: Final = torch.compiler.is_compiling
_is_tracing: Final = torch._C._is_tracing
_is_grad_enabled: Final = torch.is_grad_enabled
_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
_innermost_transform: Final = torch._C._functorch.peek_interpreter_stack


def direct_operations(arrays: Sequence[Array | None]) -> Operations | None:
    """What to call when all arrays are plain tensors (None: not given) and torch need not know:
    no compiler or tracer, no transform of torch.func, no dispatch mode, nothing to differentiate,
    no negation that torch still owes to the memory."""
    if (
        _is_compiling()
        or _is_tracing()
        or _dispatch_modes() > 0
        or _innermost_transform() is not None
    ):
        return None
    with_gradients = _is_grad_enabled()
    for array in arrays:
        if array is not None and (
            type(array) not in _PLAIN_TYPES
            or (with_gradients and array.requires_grad)
            or array.is_neg()
        ):
            return None
    first = arrays[0]
    return None if first is None or first.is_meta else on_device_of(first)


class RegisteredOperations:
    """The registered ops with the signatures of Operations."""

    def quantize(
        self, x: Tensor, dtype: str, options: CastOptions, transpose: bool
    ) -> tuple[Tensor, Tensor]:
        data, scale = _torch_ops.quantize(x, DTYPES[dtype], *options, transpose)
        return data, scale

    def quantize_both(
        self, x: Tensor, dtype: str, options: CastOptions
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        data, scale, transposed_data, transposed_scale = _torch_ops.quantize_both(
            x, DTYPES[dtype], *options
        )
        return data, scale, transposed_data, transposed_scale

    def dequantize(self, x: Scaled, dtype: str) -> Array:
        return _torch_ops.dequantize(x.data, x.scale, x.granularity, DTYPES[dtype])

    def convert(self, x: Tensor, dtype: str, overflow: str) -> Array:
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
        operands = (a.data, a.scale, a.granularity, b.data, b.scale, b.granularity)
        return _torch_ops.gemm(*operands, c, bias, DTYPES[out_dtype], fast_accumulation)

    def gemm_out(
        self,
        out: Tensor,
        a: Scaled,
        b: Scaled,
        c: Tensor | None,
        bias: Tensor | None,
        fast_accumulation: bool,
    ) -> None:
        operands = (a.data, a.scale, a.granularity, b.data, b.scale, b.granularity)
        in_place = c is out
        addend = None if in_place else c
        _torch_ops.gemm_out(out, *operands, addend, bias, in_place, fast_accumulation)


REGISTERED: Final = RegisteredOperations()

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
