"""torch tensors in and out of the library, and the ops as torch's own.

Calls go to the library at once wherever torch need not know of them. Where it has to (a compiler, a
tracer, a mode, tensors without memory), results are allocated by torch, and a registered op writes
them: torch.ops.octofold.<name>, which a compiler takes as it is. No op has a gradient: backward
through one raises RuntimeError.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from .._library import library
from .._tvm_ffi import tvm_ffi
from ..errors import UnsupportedError
from .dtypes import DLPACK_NAMES
from .frameworks import column_stride, common_kind, reinterpret
from .ops import TABLE, Arrays, Op, Options, Torch, row_count
from .streams import StreamLike, stream_handle

DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}

_PLAIN_TYPES: Final = (Tensor, torch.nn.Parameter)

# Bound once: looking these up takes as long as the answers.
_is_compiling: Final = torch.compiler.is_compiling
_is_tracing: Final = torch._C._is_tracing
_is_grad_enabled: Final = torch.is_grad_enabled
_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
_innermost_transform: Final = torch._C._functorch.peek_interpreter_stack
_increment_version: Final = torch.autograd.graph.increment_version


class TorchFramework:
    """Tensors on the device of `like`, and of its kind. The library takes them as they are, with
    torch's current stream."""

    library_takes_arrays = True
    stream: int | None = None

    def __init__(self, like: Tensor) -> None:
        self._like = like

    def export(self, array: Tensor, writable: bool) -> "tvm_ffi.Tensor":
        tensor = array.detach()
        if tensor.dtype.itemsize > 1:
            return tvm_ffi.from_dlpack(tensor)
        # Not every torch exports FP8 by DLPack; all export bytes.
        name = NAMES.get(tensor.dtype)
        if name is None:
            raise BufferError(f"dtype {tensor.dtype} is unknown")
        return reinterpret(tvm_ffi.from_dlpack(tensor.view(torch.uint8)), name)

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        return self._like.new_empty(shape, dtype=DTYPES[dtype])

    def empty_scale(self, shape: Sequence[int], granularity: str) -> Tensor:
        if granularity != "1x128" or self._like.device.type != "cuda":
            return self._like.new_empty(shape, dtype=torch.float32)
        strides = [1]
        for size in reversed(shape[1:-1]):
            strides.insert(0, strides[0] * size)
        strides.append(column_stride(row_count(shape)))
        return self._like.new_empty_strided(shape, strides, dtype=torch.float32)

    def deliver(self, array: Tensor) -> Tensor:
        return array

    def mark_written(self, array: Tensor) -> None:
        _increment_version(array)


class OlderTorchFramework(TorchFramework):
    """Of torch before 2.10: tensors are exported, and the stream is asked for."""

    library_takes_arrays = False

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        if like.device.type == "cuda":
            self.stream = int(torch.cuda.current_stream(like.device).cuda_stream)


def _library_takes_tensors() -> bool:
    """Whether this torch gives tensors of all dtypes to tvm-ffi by DLPack's C interface."""
    if not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return False
    try:
        for name, dtype in DTYPES.items():
            library.reinterpret(torch.empty(1, dtype=dtype), DLPACK_NAMES.get(name, name))
    except (BufferError, RuntimeError, TypeError, ValueError):
        return False
    return True


_LIBRARY_TAKES_TENSORS: Final = _library_takes_tensors()
_FRAMEWORKS: Final[dict[torch.device, TorchFramework]] = {}


def _framework_of(tensor: Tensor) -> TorchFramework:
    """For tensors on the device of this one."""
    framework = _FRAMEWORKS.get(tensor.device)
    if framework is None:
        like = torch.empty(0, device=tensor.device)
        if not _LIBRARY_TAKES_TENSORS:
            return OlderTorchFramework(like)  # as the stream is now
        framework = _FRAMEWORKS[tensor.device] = TorchFramework(like)
    return framework


def call(
    op: Op,
    inputs: Arrays,
    options: Options,
    dtype: str,
    out: Arrays | None,
    stream: StreamLike | None,
) -> Arrays:
    """The results of an op: at once if all inputs are plain tensors and torch need not know: no
    compiler or tracer, no transform of torch.func, no dispatch mode, nothing to differentiate, no
    negation that torch still owes to the memory."""
    if stream is not None:
        return _on_stream(op, inputs, options, dtype, out, stream_handle(op.name, stream))
    with_gradients = _is_grad_enabled()
    if not (
        _is_compiling() or _is_tracing() or _dispatch_modes() or _innermost_transform() is not None
    ):
        for array in inputs if out is None else inputs + out:
            if array is not None and (
                type(array) not in _PLAIN_TYPES
                or (with_gradients and array.requires_grad)
                or array.is_neg()
            ):
                break
        else:
            first = inputs[0]
            if not first.is_meta:
                return op.launch(_framework_of(first), inputs, options, dtype, out)
    options = op.checked_options(options)
    arrays = inputs + (out or ())
    if not all(array is None or isinstance(array, Tensor) for array in arrays):
        common_kind(op.name, op.names(), arrays)  # raises for the one that is another's
    differentiated = with_gradients and any(
        array is not None and array.requires_grad for array in arrays
    )
    if out is not None:
        if differentiated:
            raise UnsupportedError(
                f"{op.name}: argument 'out': expected nothing to differentiate, as a result that "
                "is written in place has no gradient; got an argument that requires grad"
            )
        return _write(op, inputs, options, out)
    if differentiated or (not _is_compiling() and _innermost_transform() is not None):
        results: Arrays = _WithoutGradient.apply(  # type: ignore[no-untyped-call]
            op, options, dtype, *inputs
        )
        return results
    return _make(op, inputs, options, dtype)


def _make(op: Op, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    results = op.allocate(TorchFramework(inputs[0]), inputs, options, dtype)
    return _write(op, inputs, options, results)


def _write(op: Op, inputs: Arrays, options: Options, results: Arrays) -> Arrays:
    """By the registered op. It may not take what it writes a second time."""
    if op.in_place is not None:
        in_place = inputs[op.in_place] is results[0]
        options = (*options, in_place)
        if in_place:
            inputs = _with(inputs, op.in_place, None)
    _REGISTERED[op.name](*inputs, *results, *options)
    return results


def _with(arrays: Arrays, index: int, array: Tensor | None) -> Arrays:
    return (*arrays[:index], array, *arrays[index + 1 :])


class _WithoutGradient(torch.autograd.Function):
    """An op where torch differentiates or maps."""

    @staticmethod
    def forward(op: Op, options: Options, dtype: str, *inputs: Any) -> Arrays:
        return _make(op, inputs, options, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Arrays) -> None:
        ctx.name = inputs[0].name

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"octofold.{ctx.name} has no gradient, and backward came through it")

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], op: Op, options: Options, dtype: str, *inputs: Any
    ) -> tuple[Arrays, tuple[int | None, ...]]:
        slices = [
            call(
                op,
                tuple(
                    array if dim is None else array.select(dim, index)
                    for array, dim in zip(inputs, dims[3:], strict=True)
                ),
                options,
                dtype,
                None,
                None,
            )
            for index in range(info.batch_size)
        ]
        results = tuple(
            None if parts[0] is None else torch.stack(parts) for parts in zip(*slices, strict=True)
        )
        return results, tuple(None if result is None else 0 for result in results)


def _on_stream(
    op: Op, inputs: Arrays, options: Options, dtype: str, out: Arrays | None, stream: int
) -> Arrays:
    """With the stream of this address as the current one. Results lie in memory of that stream; no
    memory is reused before the stream, and the one that is current outside, are done with what they
    were given."""
    tensors = [
        array for array in inputs + (out or ()) if isinstance(array, Tensor) and array.is_cuda
    ]
    if not tensors:
        return call(op, inputs, options, dtype, out, None)
    device = tensors[0].device
    current = torch.cuda.current_stream(device)
    if stream == current.cuda_stream:
        return call(op, inputs, options, dtype, out, None)
    theirs: torch.cuda.Stream = (
        torch.cuda.ExternalStream(stream, device)  # type: ignore[no-untyped-call]
        if stream != 0
        else torch.cuda.default_stream(device)
    )
    with torch.cuda.stream(theirs):
        results = call(op, inputs, options, dtype, out, None)
    for tensor in tensors:
        tensor.record_stream(theirs)
    for result in results:
        if result is not None:
            result.record_stream(current)
    return results


def same_bytes(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape, device and bytes."""
    if (left.dtype, left.shape, left.device) != (right.dtype, right.shape, right.device):
        return False
    integers = torch.uint8 if left.dtype.itemsize == 1 else torch.int32
    return torch.equal(left.view(integers), right.view(integers))


def moved(
    data: Tensor, scale: Tensor, granularity: str, device: str | int | torch.device
) -> tuple[Tensor, Tensor] | None:
    """Codes and scales on another device, None if they are there."""
    codes = data.to(torch.device(device))
    if codes is data and scale.device == data.device:
        return None
    scales = TorchFramework(codes).empty_scale(scale.shape, granularity)
    return codes, scales.copy_(scale)


def _register(op: Op) -> Any:
    """The torch op, as one kernel for every device and a fake, which has nothing to write."""
    _LIBRARY.define(op.schema(), tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    first_result = len(op.inputs)
    first_option = first_result + len(op.results)

    def kernel(*arguments: Any) -> None:
        inputs, options = arguments[:first_result], arguments[first_option:]
        results = arguments[first_result:first_option]
        if op.in_place is not None:
            *_, in_place = options
            options = options[:-1]
            if in_place:
                inputs = _with(inputs, op.in_place, results[0])
        op.launch(_framework_of(inputs[0]), inputs, options, "", results)

    _LIBRARY.impl(op.name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"octofold::{op.name}", lambda *arguments: None, lib=_LIBRARY)
    return getattr(torch.ops.octofold, op.name).default


_LIBRARY: Final = torch.library.Library("octofold", "DEF")  # type: ignore[no-untyped-call]
_REGISTERED: Final = {name: _register(op) for name, op in TABLE.items()}
Torch.types, Torch.call = _PLAIN_TYPES, staticmethod(call)
