"""Records of named values as flat tensors, and back.

torch.autograd.Function takes, saves and returns tensors one by one. Our functions compute with
records: NamedTuples of tensors, ScaledTensors, other records and options. A Layout remembers what
flatten() has taken apart, so that a Function has records on both sides:

    layout, tensors = flatten(inputs)
    _Function.apply(layout, *tensors)

    def forward(ctx, layout, *tensors):
        inputs = layout.record(tensors)
        needs = layout.needs(ctx)
        ...
        save(ctx, kept)  # another record

    def backward(ctx, dy):
        kept = saved(ctx)
        ...
        return layout.gradients(ctx, x=dx, weight=dw)
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.errors import UnsupportedError, invalid_argument
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch_ops import is_forward_mode, refuse_tangents

_is_compiling: Final = torch.compiler.is_compiling


class _Scaled(NamedTuple):
    """The places of a ScaledTensor's tensors. It has no gradient."""

    data: int
    scale: int
    granularity: str


class _Option(NamedTuple):
    """A value that is not a tensor, such as None."""

    value: Any


_NONE: Final = _Option(None)


class Layout(NamedTuple):
    """The places of a record's fields among flat tensors. As the first argument of a Function it is
    not differentiated."""

    kind: type
    """The class of the record: one of NamedTuples, or tuple."""
    fields: tuple[Any, ...]
    """For each field the place of its tensor, or a _Scaled, an _Option or a Layout."""

    def record(self, tensors: Sequence[Tensor | None]) -> Any:
        """The record, made of these tensors."""
        return _made(self, [_value(field, tensors) for field in self.fields])

    def needs(self, ctx: Any) -> Any:
        """A record of truth values: whether the Function is to give the gradient of a tensor."""
        return self._needs(ctx.needs_input_grad[1:])

    def _needs(self, needed: Sequence[bool]) -> Any:
        values: list[Any] = []
        for field in self.fields:
            if type(field) is Layout:
                values.append(field._needs(needed))
            else:
                values.append(type(field) is int and needed[field])
        return _made(self, values)

    def gradients(self, ctx: Any, **gradients: Any) -> tuple[Tensor | None, ...]:
        """The values that backward returns: the gradients of these fields as far as needed,
        and None for all else. The gradients of a record within are a record or a tuple."""
        needed = ctx.needs_input_grad
        flat: list[Tensor | None] = [None] * len(needed)
        names: tuple[str, ...] = self.kind._fields  # type: ignore[attr-defined]
        for name, field in zip(names, self.fields, strict=True):
            if name in gradients:
                _place(field, gradients[name], needed, flat)
        return tuple(flat)


def flatten(record: tuple[Any, ...]) -> tuple[Layout, tuple[Tensor, ...]]:
    """The tensors of a record, and where they are in it."""
    tensors: list[Tensor] = []
    layout = _layout(record, tensors)
    return layout, tuple(tensors)


def save(ctx: Any, record: tuple[Any, ...]) -> None:
    """Keeps a record for backward. Its tensors must not be written to until then."""
    ctx.saved_layout, tensors = flatten(record)
    save_tensors(ctx, *tensors)


def saved(ctx: Any) -> Any:
    """The record that save() kept."""
    return ctx.saved_layout.record(saved_tensors(ctx))


def result_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a layer's result: autocast's where it is on, else that of x."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def memory(count: int, like: Tensor) -> Tensor | None:
    """So many bytes where a tensor is, for one call of a layer (_ops/layer_passes.py); None for
    none."""
    if count == 0:
        return None
    return torch.empty(count, dtype=torch.uint8, device=like.device)


def save_tensors(ctx: Any, *tensors: Tensor | None) -> None:
    """ctx.save_for_backward(), for saved_tensors()."""
    ctx.save_for_backward(*tensors)
    if not _is_compiling():
        ctx.saved_as = [
            None if t is None else (t.dtype, t.device, t.shape, t.stride()) for t in tensors
        ]


def saved_tensors(ctx: Any) -> Sequence[Any]:
    """Returns what save_tensors() kept, with the strides that it had, which hooks of autograd
    (torch.autograd.graph.saved_tensors_hooks) may have changed. Raises InvalidArgumentError for
    what can no longer be these values."""
    tensors: tuple[Any, ...] = ctx.saved_tensors
    # None: forward was compiled, and perhaps backward is not.
    saved_as = None if _is_compiling() else getattr(ctx, "saved_as", None)
    return tensors if saved_as is None else tuple(map(_restored, tensors, saved_as))


def _restored(tensor: Tensor | None, saved_as: Any) -> Tensor | None:
    if tensor is None:
        return None
    dtype, device, shape, strides = saved_as
    if tensor.dtype != dtype or tensor.shape != shape or tensor.device != device:
        expected = f"{dtype} on {device}, {shape}"
        got = f"{tensor.dtype} on {tensor.device}, {tensor.shape}"
        raise invalid_argument("backward", "what saved_tensors_hooks unpacks", expected, got)
    if tensor.stride() == strides and not tensor.is_neg():
        # The library's own memory (bytes, or int32) has to be aligned, which a hook's need not be.
        is_own = not dtype.is_floating_point and type(tensor) is Tensor
        return tensor.clone() if is_own and tensor.data_ptr() % 16 else tensor
    if 0 in strides:  # rows that were one are as many now
        return tensor.contiguous()
    return torch.empty_strided(shape, strides, dtype=dtype, device=device).copy_(tensor)


def _layout(record: tuple[Any, ...], tensors: list[Tensor]) -> Layout:
    fields: list[Any] = []
    for value in record:
        if value is None:
            fields.append(_NONE)
        elif isinstance(value, Tensor):
            fields.append(len(tensors))
            tensors.append(value)
        elif isinstance(value, ScaledTensor):
            fields.append(_scaled(value, tensors))
        elif isinstance(value, tuple):
            fields.append(_layout(value, tensors))
        else:
            fields.append(_Option(value))
    return Layout(type(record), tuple(fields))


def _scaled(value: ScaledTensor, tensors: list[Tensor]) -> _Scaled:
    # A tensor and its transpose may share a scale, and Dynamo takes no tensor twice.
    shared = [index for index, tensor in enumerate(tensors) if tensor is value.scale]
    data, scale = len(tensors), shared[0] if shared else len(tensors) + 1
    tensors.append(value.data)
    if not shared:
        tensors.append(value.scale)
    return _Scaled(data, scale, value.granularity)


def _value(field: Any, tensors: Sequence[Tensor | None]) -> Any:
    if type(field) is int:
        return tensors[field]
    if type(field) is _Scaled:
        return ScaledTensor(tensors[field.data], tensors[field.scale], field.granularity)
    return field.record(tensors) if type(field) is Layout else field.value


def _made(layout: Layout, values: list[Any]) -> Any:
    return tuple(values) if layout.kind is tuple else layout.kind(*values)


def _place(field: Any, gradient: Any, needed: Sequence[bool], flat: list[Tensor | None]) -> None:
    """Puts gradients where their tensors are; the first argument of a Function is its layout."""
    if type(field) is int:
        if needed[field + 1]:
            flat[field + 1] = gradient
    elif type(field) is Layout and gradient is not None:
        for index, value in enumerate(gradient):
            _place(field.fields[index], value, needed, flat)


_innermost_transform: Final = torch._C._functorch.peek_interpreter_stack
_is_batch: Final = torch._C._functorch.is_legacy_batchedtensor


def in_transform() -> bool:
    """True if this runs inside a transform of torch.func or in forward-mode differentiation. False
    while a compiler traces."""
    return not _is_compiling() and (_innermost_transform() is not None or is_forward_mode())


def differentiates(operation: str, *tensors: Tensor | None) -> bool:
    """True if the result of an operation on these (None: not given) is to have a gradient. Raises
    UnsupportedError where it would be that of a transform of torch.func, or a tangent."""
    refuse_tangents(operation, tensors)
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if wanted and not _is_compiling() and _innermost_transform() is not None:
        raise UnsupportedError(
            f"octofold.{operation}: expected no transform of torch.func (grad, vjp, jvp, jacrev, "
            "vmap) where something requires a gradient, got one: use backward() or "
            "torch.autograd.grad(), or vmap() under torch.no_grad(), or octofold.nn.restore(model)"
        )
    return wanted


def refuse_in_backward(operation: str, gradient: Tensor) -> None:
    """In a backward that gets this gradient: raises UnsupportedError for a batch of gradients, and
    where the backward is to be differentiated."""
    if torch.is_grad_enabled():
        raise UnsupportedError(
            f"octofold.{operation}: its backward cannot be differentiated: expected backward() or "
            "grad() without create_graph, got create_graph=True"
        )
    if not _is_compiling() and _is_batch(gradient):
        raise UnsupportedError(
            f"octofold.{operation}: its backward takes one gradient: expected jacobian() without "
            "vectorize=True and grad() without is_grads_batched=True, got a batch of gradients"
        )
