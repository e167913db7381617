"""Errors for what gradients of Octofold's layers are not made for: second derivatives, torch.func,
batches of gradients. Each of them says what to do."""

from typing import Final

import torch
from torch import Tensor

from ..._core.errors import UnsupportedError
from ..._core.torch_ops import is_forward_mode, refuse_tangents

_is_compiling: Final = torch.compiler.is_compiling
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
