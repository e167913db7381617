"""The places that gradients of weights go to: new tensors, or `weight.main_grad`, to which they are
added, as Megatron has it."""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.errors import UnsupportedError, invalid_argument
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from .functions import refuse_in_backward
from .products import weight_gradient

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


def to_main_grad(weight: Tensor, main_grad: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A weight in this dtype, for products of torch's; its gradient is added to its main_grad."""
    if main_grad is None:
        return weight.to(dtype)
    wide: Tensor = _ToMainGrad.apply(weight, main_grad, dtype)  # type: ignore[no-untyped-call]
    return wide


class _ToMainGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, main_grad: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.weight, ctx.main_grad = weight, main_grad
        return weight.view_as(weight) if weight.dtype == dtype else weight.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("nn", gradient)
        ctx.main_grad.add_(gradient)
        mark_gradient(ctx.weight)
        return None, None, None


class GradientTargets(NamedTuple):
    """The places that the gradients of a layer's weights and bias go to."""

    shape: tuple[int, ...]
    """The shape of all weights, one below the other."""
    rows: tuple[int, ...]
    """The number of rows of each weight."""
    dtypes: tuple[torch.dtype, ...]
    bias_dtype: torch.dtype | None
    main_grads: tuple[Tensor | None, ...]
    weights: tuple[Tensor | None, ...]
    """The weights that have a main_grad."""

    @staticmethod
    def of(
        shape: tuple[int, ...],
        weights: tuple[Tensor, ...],
        bias: Tensor | None,
        main_grads: tuple[Tensor | None, ...],
    ) -> "GradientTargets":
        """main_grads: one for each weight, or none at all."""
        main_grads = main_grads or (None,) * len(weights)
        pairs = zip(weights, main_grads, strict=True)
        return GradientTargets(
            shape,
            tuple(weight.shape[0] for weight in weights),
            tuple(weight.dtype for weight in weights),
            None if bias is None else bias.dtype,
            main_grads,
            tuple(None if main_grad is None else weight for weight, main_grad in pairs),
        )

    def gradients(
        self,
        dy: Tensor | None,
        casts: AnyCasts,
        x: Tensor | None,
        x_transposed: ScaledTensor | None,
        recipe: Recipe,
    ) -> tuple[Tensor | None, ...]:
        """dYᵀ · x for each weight; None where it was added to a main_grad."""
        dtype = self.dtype()
        assert dtype is not None
        operands = dy, casts.transposed, x, x_transposed
        return self.handed_out(weight_gradient(*operands, recipe, dtype, self.added_to()))

    def handed_out(self, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of all weights as that of each; None where it is in a main_grad."""
        parts: tuple[Tensor, ...] = (gradient,)
        if len(self.rows) > 1:
            parts = torch.split(gradient, list(self.rows))
            for part, main_grad in zip(parts, self.main_grads, strict=True):
                if main_grad is not None:
                    main_grad.add_(part)
        for weight in self.weights:
            if weight is not None:
                mark_gradient(weight)
        return tuple(
            None if weight is not None else part.to(dtype)
            for part, weight, dtype in zip(parts, self.weights, self.dtypes, strict=True)
        )

    def dtype(self) -> torch.dtype | None:
        """The dtype of all weights' gradient: that of the first one, unless one is added."""
        if any(held is not None for held in self.main_grads):
            return torch.float32
        return self.dtypes[0] if self.dtypes else None

    def added_to(self) -> Tensor | None:
        """The one weight's main_grad, to which the product itself adds."""
        return self.main_grads[0] if len(self.rows) == 1 else None
