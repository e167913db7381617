"""Gradients of weights that are added to `weight.main_grad`, as Megatron has it."""

from typing import Any, Final

import torch
from torch import Tensor

from ..._core.errors import UnsupportedError, invalid_argument

_is_compiling: Final = torch.compiler.is_compiling


def main_grad_of(operation: str, weight: Tensor) -> Tensor:
    """weight.main_grad, float32 and of the weight's shape; made of zeros if there is none."""
    held = getattr(weight, "main_grad", None)
    if held is None:
        held = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        weight.main_grad = held  # type: ignore[attr-defined]
    if not isinstance(held, Tensor) or held.dtype != torch.float32 or held.shape != weight.shape:
        is_tensor = isinstance(held, Tensor)
        got = f"{held.dtype} {list(held.shape)}" if is_tensor else type(held).__qualname__
        expected = f"float32 {list(weight.shape)}, the shape of the weight"
        raise invalid_argument(operation, "weight.main_grad", expected, got)
    return held


def wanted_main_grad(
    operation: str, wanted: bool, weight: Tensor, is_sharded: bool
) -> Tensor | None:
    """weight.main_grad where a layer wants it and backward is to add to it."""
    if not (wanted and torch.is_grad_enabled() and weight.requires_grad):
        return None
    if is_sharded:
        expected = "False where FSDP shards the weight: it reduces weight.grad"
        raise invalid_argument(operation, "main_grad", expected, "True")
    return main_grad_of(operation, weight)


def mark_gradient(weight: Tensor) -> None:
    """In a backward that has added to weight.main_grad: puts a tensor into weight.grad that cannot
    be read. Optimizers pass over a parameter whose grad is None, so an optimizer that does not know
    of main_grad would leave the weight as it was, and nobody would notice."""
    if not _is_compiling() and weight.grad is None:
        weight.grad = _InMainGrad(weight)


class _InMainGrad(Tensor):
    """Has a gradient's shape, dtype and device, no memory, and an error for whoever computes with
    it. Zeroing it is allowed, as optimizer.zero_grad(set_to_none=False) does."""

    @staticmethod
    def __new__(cls, weight: Tensor) -> "_InMainGrad":
        made: _InMainGrad = Tensor._make_wrapper_subclass(
            cls, weight.shape, strides=weight.stride(), dtype=weight.dtype, device=weight.device
        )
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in _NO_READS:
            raise UnsupportedError(
                f"octofold.nn: {func}: expected nobody to read weight.grad of a layer with "
                "main_grad=True, as the gradient is in weight.main_grad: use an optimizer that "
                "reads it there, as examples/python/main_grad_optimizer.py does, or layers without "
                "main_grad, also for a weight that other modules use too"
            )
        return args[0] if isinstance(args[0], Tensor) else None

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<the gradient is in weight.main_grad, {list(self.shape)}>"


_NO_READS: Final = (
    torch.ops.aten.detach.default,
    torch.ops.aten.detach_.default,
    torch.ops.aten.zero_.default,
    torch.ops.aten._foreach_zero_.default,
)
