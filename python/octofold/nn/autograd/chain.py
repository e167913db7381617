"""Linear layers and what is fused with them, as chains: what is computed, and with which casts."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast_sources import Activated
from ..._ops.gated_gemm import gated_gemm
from ..casting.casts import WeightCasts, cast_as_wanted
from ..recipes.kernels import has_kernels
from .activated import is_gated
from .boundary import Sides, sides_of
from .normed import Norm, norm_source
from .products import output_product


@dataclass(frozen=True)
class Chain:
    """The steps of a chain: [residual and norm,] a linear layer[, an activation, a second one]."""

    name: str
    """The name of the operation, for its errors."""
    recipe: Recipe
    norm: Norm | None = None
    activation: str | None = None
    keep_fp8: bool = False
    """True if the input of the activation is kept for backward in FP8."""
    sides: Sides | None = None
    """The boundaries of tokens, if a rank has a part of each weight (tensor parallelism)."""


class Layer(NamedTuple):
    """A linear layer of a chain: weights that are one below the other [out, in], the bias [out] of
    all of them, and the casts of them all."""

    weights: tuple[Tensor, ...]
    bias: Tensor | None
    casts: WeightCasts
    main_grads: tuple[Tensor | None, ...] = ()
    """For each weight what its gradient is added to, instead of weight.grad."""

    def needs_gradient(self) -> bool:
        return any(t is not None and t.requires_grad for t in (*self.weights, self.bias))


class Made(NamedTuple):
    """The output of forward, and the intermediate values that backward may need."""

    y: Tensor
    x: Tensor
    """The tensor that was normed, any residual added, or, without a norm, cast."""
    rstd: Tensor | None
    mean: Tensor | None
    x_transposed: ScaledTensor | None
    gate_up: Tensor | None
    """None where it was not written."""
    h_transposed: ScaledTensor | None


def compute(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    first: Layer,
    second: Layer | None,
    chain: Chain,
    dtype: torch.dtype,
    keep_x: bool = False,
    keep_gate_up: bool = False,
    keep_h: bool = False,
) -> Made:
    """A chain of arguments that fit. keep_x, keep_h: with the transposed casts that the weight
    gradients want; keep_gate_up: with what the activation's gradient is worked out from."""
    recipe, (entry, _) = chain.recipe, sides_of(chain.sides)
    output, grad_weight = recipe.output, recipe.grad_weight
    assert output is not None
    of_x = grad_weight.b if keep_x and grad_weight is not None else None
    of_h = grad_weight.b if keep_h and grad_weight is not None else None
    rstd = mean = gate_up = h_transposed = None
    if chain.norm is None:
        rows, x_transposed, *_ = entry.cast(x, output.a, of_x)
    else:
        source = norm_source(x, norm_weight, norm_bias, residual, chain.norm)
        rows, x_transposed, _, _, statistics = entry.cast(source, output.a, of_x)
        assert statistics is not None
        total, rstd, mean = statistics
        x = x if total is None else total
    weight = first.casts[0]
    if chain.activation is None or second is None:
        y = _leaving(rows, first, chain, dtype)
        return Made(y, x, rstd, mean, x_transposed, None, None)
    in_one = gated_in_one(recipe, chain.activation, weight, first.bias, dtype)
    if keep_gate_up or keep_h or not in_one:
        gate_up = output_product(rows, weight, first.bias, recipe, dtype)
        activated = Activated(gate_up, chain.activation)
        h, h_transposed, *_ = cast_as_wanted(activated, output.a, of_h)
    else:
        assert rows is not None
        assert weight is not None
        h = gated_gemm(
            rows,
            weight,
            activation=chain.activation,
            format=output.a,
            batch_invariant=output.batch_invariant,
        )
    y = _leaving(h, second, chain, dtype)
    return Made(y, x, rstd, mean, x_transposed, gate_up, h_transposed)


def _leaving(rows: ScaledTensor | None, last: Layer, chain: Chain, dtype: torch.dtype) -> Tensor:
    """The product of the last layer, as it leaves the chain."""
    _, exit = sides_of(chain.sides)
    bias = last.bias if exit.adds_bias else None
    y = output_product(rows, last.casts[0], bias, chain.recipe, exit.partial_dtype or dtype)
    return exit.leave(y, dtype)


def gated_in_one(
    recipe: Recipe,
    activation: str,
    weight: ScaledTensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> bool:
    """True if the first product, the activation and the cast can be one operation, of a weight
    [..., 2·hidden, in] without gradients: gated_gemm(), of experts with groups."""
    output = recipe.output
    if output is None or weight is None:
        return False
    fits_kernel = not weight.data.is_cuda or (
        weight.shape[-2] % 256 == 0
        and weight.shape[-1] % 16 == 0
        and has_kernels("gated products", weight.data.device)
    )
    return (
        (output.a.granularity, output.b.granularity) == ("1x128", "128x128")
        and is_gated(activation)
        and bias is None
        and dtype == torch.bfloat16
        and fits_kernel
    )
