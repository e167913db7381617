"""The norm before a linear layer: its casts, its gradients, and itself where no cast will do; and
norms and rotary embeddings alone, with gradients."""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..._core.errors import invalid_argument
from ..._ops.attention import rotary
from ..._ops.cast_sources import Normed
from ..._ops.norms import NormGradients, norm, norm_gradient
from ..casting.casts import walkable
from .fitting import require_vector, require_wide
from .functions import refuse_in_backward, save_tensors, saved_tensors
from .products import addable

NORMS: Final = ("rms", "layer")


class Norm(NamedTuple):
    """A norm: its kind, one of NORMS, and its epsilon."""

    kind: str
    epsilon: float


def norm_of(operation: str, norm: object, epsilon: object) -> Norm:
    """A norm by its arguments; raises InvalidArgumentError that names the one that is wrong."""
    if norm not in NORMS:
        raise invalid_argument(operation, "norm", f"one of {', '.join(NORMS)}", repr(norm))
    if not isinstance(epsilon, (float, int)) or isinstance(epsilon, bool) or not epsilon >= 0:
        raise invalid_argument(operation, "epsilon", "a number of at least 0", repr(epsilon))
    return Norm(str(norm), float(epsilon))


def require_norm_fitting(
    operation: str,
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
) -> None:
    """For x [..., in] of a layer with this weight [out, in]: residual as x, weight and bias of the
    norm [in]; raises InvalidArgumentError that names
    the one that does not fit."""
    for name, operand in (("norm_weight", norm_weight), ("norm_bias", norm_bias)):
        if operand is not None:
            require_vector(operation, name, operand, x.shape[-1], "the features of x", weight)
    if residual is None:
        return
    require_wide(operation, "residual", residual)
    if residual.shape != x.shape or residual.dtype != x.dtype or residual.device != x.device:
        expected = f"as x: {x.dtype} {list(x.shape)} on {x.device}"
        got = f"{residual.dtype} {list(residual.shape)} on {residual.device}"
        raise invalid_argument(operation, "residual", expected, got)


def norm_source(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, norm: Norm
) -> Normed:
    """norm(x + residual), to be cast."""
    return Normed(
        x,
        fitted(weight, x),
        fitted(bias, x),
        kind=norm.kind,
        epsilon=norm.epsilon,
        residual=residual,
    )


def norm_gradients(
    dy: Tensor,
    x: Tensor | None,
    rstd: Tensor | None,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    of_x: Tensor | None,
) -> NormGradients:
    """The gradients of norm(x) by x, weight and bias; `of_x` is added to that by x."""
    assert x is not None
    assert rstd is not None
    weight, bias = fitted(weight, x), fitted(bias, x)
    return norm_gradient(dy, x, rstd, mean, weight, bias, kind=norm.kind, residual_gradient=of_x)


def normed(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
    """norm(x), worked out in FP32 and rounded to the dtype of x once."""
    wide, shape = x.float(), (x.shape[-1],)
    weight = None if weight is None else weight.float()
    if norm.kind == "layer":
        bias = None if bias is None else bias.float()
        return functional.layer_norm(wide, shape, weight, bias, norm.epsilon).to(x.dtype)
    y = functional.rms_norm(wide, shape, weight, norm.epsilon)
    return (y if bias is None else y + bias).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of x [..., features], times weight [features] of its dtype, differentiable."""
    y: Tensor
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y = _RmsNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
        return y
    y = norm(Normed(walkable(x), weight.contiguous(), epsilon=epsilon)).y
    return y


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        x, weight = walkable(x), weight.contiguous()
        y: Tensor
        y, statistics = norm(Normed(x, weight, epsilon=epsilon))
        save_tensors(ctx, x, weight, statistics.rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("nn.convert_norms", dy)
        x, weight, rstd = saved_tensors(ctx)
        dx, d_weight, *_ = norm_gradient(walkable(dy), x, rstd, weight=weight)
        assert d_weight is not None
        return dx, d_weight.to(weight.dtype), None


def fitted(operand: Tensor | None, x: Tensor) -> Tensor | None:
    """The operand in the dtype of x or float32, as the fused operations take it, and contiguous."""
    return addable(operand if operand is None else operand.detach(), x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, tokens, heads, head_dim] by cos and sin [batch or 1, tokens, head_dim], which get
    no gradient; differentiable by x."""
    y: Tensor
    if torch.is_grad_enabled() and x.requires_grad:
        y = _Rotated.apply(x, cos, sin)  # type: ignore[no-untyped-call]
        return y
    y = rotary(_with_runs(x), _with_runs(cos), _with_runs(sin))
    return y


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = _with_runs(cos), _with_runs(sin)
        save_tensors(ctx, cos, sin)
        y: Tensor = rotary(_with_runs(x), cos, sin)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("nn.convert_rotary", dy)
        cos, sin = saved_tensors(ctx)
        return rotary(_with_runs(dy), cos, sin, inverse=True), None, None


def _with_runs(x: Tensor) -> Tensor:
    """With a contiguous last dimension, copied where it has none."""
    return x if x.stride(-1) == 1 else x.contiguous()
