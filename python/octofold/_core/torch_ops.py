"""The ops as torch's own.

Calls go to the library at once wherever torch need not know of them. Where it has to (a compiler, a
tracer, a mode such as selective checkpointing's, tensors without memory), they go through a
registered op: torch.ops.octofold.<name> returns its results and changes no argument, so that torch
may keep them, drop them or call it again; its overload <name>.out writes what a caller gave as
`out`. No op has a gradient: backward through one raises RuntimeError.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .errors import UnsupportedError
from .frameworks import StreamLike, common_kind, stream_handle
from .ops import EXPORT_ERRORS, TABLE, Arrays, Options, Row
from .torch import (
    LIBRARY_TAKES_TENSORS,
    TorchFramework,
    increment_version,
    torch_framework_of,
)

PLAIN_TYPES: Final = (Tensor, torch.nn.Parameter)
"""The types of tensors that no subclass has changed."""
_ABSENT: Final = torch.bool
"""The dtype of an empty tensor in the place of a result that is left out: a schema has no optional
results, and none of ours is of this dtype."""

# Bound once: looking these up takes as long as the answers.
_is_compiling: Final = torch.compiler.is_compiling
_is_tracing: Final = torch._C._is_tracing
_is_grad_enabled: Final = torch.is_grad_enabled
_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
_innermost_transform: Final = torch._C._functorch.peek_interpreter_stack
_is_excluded: Final = torch._C._dispatch_tls_is_dispatch_key_excluded
_AUTOGRAD: Final = torch._C.DispatchKey.AutogradFunctionality
_JVP: Final = torch._C._functorch.TransformType.Jvp


def call(
    op: Row,
    inputs: Arrays,
    options: Options,
    dtype: str,
    out: Arrays | None,
    stream: StreamLike | None,
) -> Arrays:
    """The results of an op: at once if all inputs are plain tensors and torch need not know: no
    compiler or tracer, no transform of torch.func, no forward-mode differentiation, no dispatch
    mode, nothing to differentiate, no negation that torch still owes to the memory."""
    if stream is not None:
        return _on_stream(op, inputs, options, dtype, out, stream_handle(op.name, stream))
    if _is_compiling():
        if _is_differentiated(inputs, out):
            return _call_by_torch(op, inputs, options, dtype, out)
        traced: Arrays = _call_in_graph(op.name, inputs, options, dtype, out)
        return traced
    if is_called_at_once(inputs if out is None else inputs + out) and not inputs[0].is_meta:
        return op.launch(torch_framework_of(inputs[0]), inputs, options, dtype, out)
    return _call_by_torch(op, inputs, options, dtype, out)


def is_called_at_once(arrays: Sequence[Any]) -> bool:
    """True if a call with these tensors (None: not given), if they have memory, may go to the
    library with torch knowing nothing of it."""
    if torch_is_watching():
        return False
    with_gradients = _is_grad_enabled()
    for array in arrays:
        if array is not None and (
            type(array) not in PLAIN_TYPES
            or (with_gradients and array.requires_grad)
            or array.is_neg()
        ):
            return False
    return True


def torch_is_watching() -> bool:
    """True if torch has to know of what is called: a compiler, a tracer, a dispatch mode, a
    transform of torch.func, forward-mode differentiation."""
    return (
        _is_compiling()
        or _is_tracing()
        or _dispatch_modes() != 0
        or _innermost_transform() is not None
        or is_forward_mode()
    )


def is_forward_mode() -> bool:
    """True if this runs in torch.autograd.forward_ad.dual_level() or torch.func.jvp()."""
    return forward_ad._current_level >= 0


def refuse_tangents(operation: str, arrays: Sequence[Any]) -> None:
    """Before anything is computed from these (None: not given): raises UnsupportedError where torch
    differentiates forwards by one of them, as no result of ours would carry a tangent."""
    if not is_forward_mode() or not torch._C._is_fwd_grad_enabled():
        return
    transform = _innermost_transform()
    # Below autograd, as compiled functions call, and inside of several transforms, or of one within
    # a dual_level(), tangents cannot be seen.
    is_hidden = _is_excluded(_AUTOGRAD) or (
        transform is not None and (transform.key() != _JVP or transform.level() > 1)
    )
    for array in arrays:
        if not isinstance(array, Tensor) or not array.is_floating_point() or array.is_meta:
            continue
        if is_hidden or torch._VF._unpack_dual(array, level=0)[1] is not None:
            raise UnsupportedError(
                f"octofold.{operation} has no derivative, and forward-mode differentiation "
                "(torch.func.jvp, forward_ad.make_dual) came to it: use backward()"
            )


def _is_differentiated(inputs: Arrays, out: Arrays | None) -> bool:
    if _is_grad_enabled():
        for array in inputs if out is None else inputs + out:
            if isinstance(array, Tensor) and array.requires_grad:
                return True
    return False


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _call_in_graph(
    name: str, inputs: Arrays, options: Options, dtype: str, out: Arrays | None
) -> Arrays:
    """For torch.compile: what it looks into it guards, in each call."""
    return _call_by_torch(TABLE[name], inputs, options, dtype, out)


def _call_by_torch(
    op: Row, inputs: Arrays, options: Options, dtype: str, out: Arrays | None
) -> Arrays:
    """By the registered op."""
    options = op.checked_options(tuple(map(_specialized, options)))
    arrays = inputs + (out or ())
    refuse_tangents(op.name, arrays)
    if not all(array is None or isinstance(array, Tensor) for array in arrays):
        common_kind(op.name, op.names(), arrays)  # raises for the one that is another's
    differentiated = _is_differentiated(inputs, out)
    if out is not None:
        if differentiated:
            raise UnsupportedError(
                f"{op.name}: argument 'out': expected nothing to differentiate, because a result "
                "that is written in place has no gradient; got an argument that requires grad"
            )
        return _write(op, inputs, options, out)
    if differentiated or (not _is_compiling() and _innermost_transform() is not None):
        results: Arrays = _WithoutGradient.apply(  # type: ignore[no-untyped-call]
            op, options, dtype, *inputs
        )
        return results
    return _make(op, inputs, options, dtype)


def _specialized(option: Any) -> Any:
    """The number behind one that a compiler has taken for a variable: kernels depend on it."""
    if isinstance(option, torch.SymInt):
        return int(option)
    return float(option) if isinstance(option, torch.SymFloat) else option


def _make(op: Row, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    returned = _REGISTERED[op.name](*inputs, *options, dtype)
    results: list[Tensor | None] = [None] * len(op.results)
    for index, result in zip(
        op.returned, (returned,) if len(op.returned) == 1 else returned, strict=True
    ):
        results[index] = None if result.dtype == _ABSENT else result
    return tuple(results)


def _write(op: Row, inputs: Arrays, options: Options, results: Arrays) -> Arrays:
    """Into `results`. An op may not take what it writes a second time."""
    if op.in_place is not None:
        in_place = inputs[op.in_place] is results[0]
        options = (*options, in_place)
        if in_place:
            inputs = _with(inputs, op.in_place, None)
    _WRITING[op.name](*inputs, *results, *options)
    return results


def _with(arrays: Arrays, index: int, array: Tensor | None) -> Arrays:
    return (*arrays[:index], array, *arrays[index + 1 :])


class _WithoutGradient(torch.autograd.Function):
    """An op where torch differentiates or maps."""

    @staticmethod
    def forward(op: Row, options: Options, dtype: str, *inputs: Any) -> Arrays:
        return _make(op, inputs, options, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Arrays) -> None:
        ctx.name = inputs[0].name

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"octofold.{ctx.name} has no gradient, and backward came through it")

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], op: Row, options: Options, dtype: str, *inputs: Any
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
    op: Row, inputs: Arrays, options: Options, dtype: str, out: Arrays | None, stream: int
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


def _register(op: Row) -> Any:
    """The torch op, as one kernel for every device and a fake, which allocates the results."""
    count = len(op.inputs)

    def returned(results: Arrays, like: Tensor) -> Any:
        tensors = tuple(
            like.new_empty(0, dtype=_ABSENT) if results[index] is None else results[index]
            for index in op.returned
        )
        return tensors[0] if len(tensors) == 1 else tensors

    def kernel(*arguments: Any) -> Any:
        inputs, options, dtype = arguments[:count], arguments[count:-1], arguments[-1]
        framework = torch_framework_of(inputs[0])
        return returned(op.launch(framework, inputs, options, dtype, None), inputs[0])

    def fake(*arguments: Any) -> Any:
        inputs, options, dtype = arguments[:count], arguments[count:-1], arguments[-1]
        framework = TorchFramework(inputs[0])
        return returned(op.allocate(framework, inputs, options, dtype), inputs[0])

    define(op.name, op.schema(), kernel, fake)
    return getattr(torch.ops.octofold, op.name).default


def _register_writing(op: Row) -> Any:
    """Its overload that writes, with a fake that has nothing to write."""
    first_result, first_option = len(op.inputs), len(op.inputs) + len(op.results)
    last = first_option + len(op.options)

    def kernel(*arguments: Any) -> None:
        results = arguments[first_result:first_option]
        if op.in_place is not None and arguments[-1]:
            arguments = _with(arguments, op.in_place, results[0])
        if LIBRARY_TAKES_TENSORS:
            try:
                op.function(*arguments[:last], None)  # the schema's order is the library's
            except EXPORT_ERRORS:
                pass  # launch() says what is wrong
            else:
                for result in results:
                    if result is not None:
                        increment_version((result,))
                return
        inputs, options = arguments[:first_result], arguments[first_option:last]
        op.launch(torch_framework_of(inputs[0]), inputs, options, "", results)

    define(f"{op.name}.out", op.schema_of_out(), kernel, lambda *arguments: None)
    return getattr(torch.ops.octofold, op.name).out


def define(name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register torch.ops.octofold.<name>: one kernel for every device, and a fake that allocates
    what it returns. Graphs that a compiler keeps hold the op by its name."""

    def without_tangents(*arguments: Any) -> Any:
        refuse_tangents(name, arguments)
        return kernel(*arguments)

    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, without_tangents, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"octofold::{name}", fake, lib=_LIBRARY)


_LIBRARY: Final = torch.library.Library("octofold", "DEF")  # type: ignore[no-untyped-call]
_REGISTERED: Final = {name: _register(op) for name, op in TABLE.items()}
_WRITING: Final = {name: _register_writing(op) for name, op in TABLE.items()}
