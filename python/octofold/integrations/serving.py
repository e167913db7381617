"""The common part of the plugs of servers: layers as torch ops, and which GPU has kernels for them.

A server compiles a model as one graph for all batch sizes, keeps that graph on disk, and captures
CUDA graphs of it. So a layer is one op there: no compiler looks into it, and what depends on the
number of tokens (whether the product casts its input, which kernel runs) is decided inside, in each
call. As all of Octofold's, the ops do not wait for the GPU, and what they allocate is torch's.

| torch.ops.octofold.   | layer                                                       |
|-----------------------|-------------------------------------------------------------|
| serving_linear        | x cast (unless it is FP8 already) · weightᵀ, both FP8       |
| serving_weight_only   | x of 16 bits · weightᵀ in FP8                               |
| serving_experts       | a mixture of experts, everything in FP8                     |
"""

import functools
import logging
from typing import Final

import torch
from torch import Tensor

from .. import kernel_cache
from .._capabilities import KERNELS, NATIVE, Capability, capabilities
from .._core.errors import Error
from .._core.formats import Format, Rule
from .._core.library import is_batch_invariant
from .._core.recipe import Product, Recipe, blockwise, rowwise, tensorwise
from .._core.scaled_tensor import ScaledTensor
from .._core.torch_ops import define
from .._info import info
from .._ops.gemm import gemm
from .._ops.quantize import quantize
from ..nn.autograd.experts import experts as compute_experts
from ..nn.autograd.frozen import frozen_linear
from ..nn.autograd.linear import linear_with_casts
from ..nn.autograd.products import addable
from ..nn.casting.casts import walkable
from ..nn.recipes.kernels import has_warpgroups

_log: Final = logging.getLogger(__name__)
_TOKENS: Final = (*range(9, 2049), *range(2112, 16385, 64))
"""Numbers of tokens of a call, by which kernels are chosen. Up to 8 a product casts x itself; these
few a server calls before it captures its graphs."""
_EXPERTS: Final = {"128x128": blockwise, "channel": rowwise, "tensor": tensorwise}
"""By the granularity of the weights."""


def linear(
    x: Tensor,
    weight: ScaledTensor,
    bias: Tensor | None,
    of_x: str,
    x_scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    power_of_two: bool = False,
) -> Tensor:
    """x · weightᵀ (+ bias) of a weight [out, in] in FP8.

    x: [..., in] of 16 bits, which is cast; or e4m3, whose scales are x_scale.
    of_x: the granularity of x's scales: "1x128", "channel" or "tensor".
    x_scale: the scales of an FP8 x; or a static scale (one number), with "tensor" alone. Else
        scales are those of the data.
    out_dtype: of the result [..., out] of an FP8 x; else it is x's dtype.
    power_of_two: whether the scales of the cast are rounded up to powers of two.
    """
    if out_dtype is None or x.dtype != torch.float8_e4m3fn:
        out_dtype = x.dtype
    y: Tensor = torch.ops.octofold.serving_linear(
        x,
        x_scale,
        weight.data,
        weight.scale,
        bias,
        of_x,
        weight.granularity,
        out_dtype,
        power_of_two,
    )
    return y


def weight_only(x: Tensor, weight: ScaledTensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ (+ bias) of an x [..., in] of 16 bits and a weight [out, in] in FP8."""
    y: Tensor = torch.ops.octofold.serving_weight_only(
        x, weight.data, weight.scale, bias, weight.granularity
    )
    return y


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: ScaledTensor,
    w2: ScaledTensor,
    activation: str = "swiglu",
) -> Tensor:
    """octofold.experts() of FP8 weights of one granularity: "128x128", "channel" or "tensor".

    x: [tokens, hidden] of 16 bits; ids, weights: [tokens, k], an id of −1 goes nowhere.
    """
    y: Tensor = torch.ops.octofold.serving_experts(
        x, ids, weights, w13.data, w13.scale, w2.data, w2.scale, w13.granularity, activation
    )
    return y


def why_not_first(capability: tuple[int, int], operation: str, **operands: str) -> str:
    """Why a server is to keep to its own kernels for FP8 products; "" where it is not. The
    arguments are those of why_no_kernels(). Beside those of servers products of warpgroups were
    measured, which alone cast A on its way."""
    support = _row("gemm", {"a": "numbers", "b": "128x128"}).support
    firsts = {
        target.name: f"{target.name} ({target.examples})"
        for target in capabilities().targets
        if support[target.name].how == NATIVE
    }
    if _text(capability) not in firsts:
        expected = " or ".join(firsts.values())
        return f"is for GPUs of compute capability {expected}, found {_text(capability)}"
    return why_no_kernels(capability, operation, **operands)


def why_not_weight_only(capability: tuple[int, int], dtype: torch.dtype, granularity: str) -> str:
    """The same of products of FP8 weights with an x of this dtype, which are for GPUs that have no
    FP8 units."""
    names = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
    if capability >= (8, 9):
        return (
            "is for GPUs without FP8 units (compute capability 8.8 or less), found "
            f"{_text(capability)}"
        )
    if dtype not in names:
        return f"takes activations of float16 or bfloat16, not {dtype}"
    return why_no_kernels(capability, "gemm_weight_only", x=names[dtype], w=granularity)


@functools.cache
def why_no_kernels(capability: tuple[int, int], operation: str, **operands: str) -> str:
    """Why Octofold cannot run an operation on GPUs of this compute capability; "" where it can.

    operation, operands: as octofold.capabilities() names them: "gemm", a="1x128", b="128x128".
    """
    row = _row(operation, operands)
    targets = [name for name in row.support if _precedes(name, capability)]
    if not targets:
        return f"has no kernels for GPUs of compute capability {_text(capability)}"
    support = row.support[targets[-1]]
    if support.how not in (NATIVE, KERNELS):
        return support.why_not or f"has no kernels for {row} on {_text(capability)}"
    here = info()
    for gpu in here.gpus:
        if (gpu.compute_major, gpu.compute_minor) == capability:
            for part in (gpu.backend, here.nvrtc):
                if not part.available:
                    return f"cannot run here: {part.detail}"
    return ""


def _row(operation: str, operands: dict[str, str]) -> Capability:
    for row in capabilities().rows:
        if row.operation == operation and row.operands == operands:
            return row
    raise AssertionError(f"{operation} {operands}")


def _precedes(name: str, capability: tuple[int, int]) -> bool:
    """True if a target of the matrix is of this generation, and not later: 8.7 counts as 8.6."""
    major, _, minor = name.partition(".")  # or "cpu"
    return major == str(capability[0]) and int(minor) <= capability[1]


def _text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


@functools.cache
def compile_products(
    outputs: int,
    inputs: int,
    of_x: str,
    of_weight: str,
    out_dtype: torch.dtype,
    has_bias: bool,
    gpu: int,
) -> None:
    """Compile the products of a layer of these sizes for any number of tokens, into the cache on
    disk, at the layer's first call: a request is not to wait for a compiler when a number comes for
    the first time. Layers share most of the kernels, about 20, each of some 0.4 s. Without NVRTC or
    a place for the cache products say so themselves, or compile as they come."""
    dtype = str(out_dtype).removeprefix("torch.")
    operands = f"n {outputs}, k {inputs}, a e4m3 {of_x}, b e4m3 {of_weight}, out {dtype}"
    if has_bias:
        operands += f", bias {dtype}"
    if _sums_in_tensor_cores(of_x, of_weight):
        operands += ", fast_accumulation"
    if is_batch_invariant():
        operands += ", batch_invariant"
    problems = [f"gemm: m {tokens}, {operands}" for tokens in _TOKENS]
    try:
        compiled = kernel_cache.warm(
            problems, multiprocessors=info().gpus[gpu].multiprocessors
        ).compiled
    except Error as error:
        _log.info("Octofold's products of %s are compiled as they come: %s", operands, error)
        return
    if compiled:
        _log.info("Octofold compiled %d kernels for %s", compiled, operands)


def _sums_in_tensor_cores(of_x: str, of_weight: str) -> bool:
    """Servers' own products do so where scales allow it, and so do these."""
    return {of_x, of_weight} <= {"tensor", "channel"}


@functools.cache
def _recipe(of_x: str, of_weight: str, power_of_two: bool) -> Recipe:
    """The recipe of a layer's product alone."""
    x, weight = (
        Format(granularity=granularity, rule=Rule.TORCHAO, power_of_two=power_of_two)
        for granularity in (of_x, of_weight)
    )
    fast = _sums_in_tensor_cores(of_x, of_weight)
    output = Product(x, weight, fast_accumulation=fast)
    return Recipe(output=output, grad_input=None, grad_weight=None)


def _linear(
    x: Tensor,
    x_scale: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    of_x: str,
    of_weight: str,
    out_dtype: torch.dtype,
    power_of_two: bool,
) -> Tensor:
    weight = ScaledTensor(codes, scale, of_weight)
    recipe = _recipe(of_x, of_weight, power_of_two)
    if codes.is_cuda and has_warpgroups(codes.device):
        gpu, has_bias = codes.device.index, bias is not None
        compile_products(*codes.shape, of_x, of_weight, out_dtype, has_bias, gpu)
    if x_scale is None:
        return linear_with_casts(x, codes, bias, recipe, (weight, None))
    assert recipe.output is not None
    if x.dtype == torch.float8_e4m3fn:
        rows = ScaledTensor(x, x_scale, of_x)
    else:
        rows = quantize(walkable(x), recipe.output.a, scale=x_scale)
    y: Tensor = gemm(
        rows,
        weight,
        bias=addable(bias, out_dtype),
        out_dtype=out_dtype,
        fast_accumulation=recipe.output.fast_accumulation,
    )
    return y


def _weight_only(
    x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None, of_weight: str
) -> Tensor:
    return frozen_linear(x, ScaledTensor(codes, scale, of_weight), bias, "weight-only")


def _experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w13_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    of_weights: str,
    activation: str,
) -> Tensor:
    return compute_experts(
        x,
        ids,
        weights,
        ScaledTensor(w13, w13_scale, of_weights),
        ScaledTensor(w2, w2_scale, of_weights),
        activation,
        _EXPERTS[of_weights],
    )


define(
    "serving_linear",
    "serving_linear(Tensor x, Tensor? x_scale, Tensor codes, Tensor scale, Tensor? bias, str of_x, "
    "str of_weight, ScalarType out_dtype, bool power_of_two) -> Tensor",
    _linear,
    lambda x, x_scale, codes, scale, bias, of_x, of_weight, out_dtype, power_of_two: x.new_empty(
        (*x.shape[:-1], codes.shape[0]), dtype=out_dtype
    ),
)
define(
    "serving_weight_only",
    "serving_weight_only(Tensor x, Tensor codes, Tensor scale, Tensor? bias, str of_weight) "
    "-> Tensor",
    _weight_only,
    lambda x, codes, scale, bias, of_weight: x.new_empty((*x.shape[:-1], codes.shape[0])),
)
define(
    "serving_experts",
    "serving_experts(Tensor x, Tensor ids, Tensor weights, Tensor w13, Tensor w13_scale, "
    "Tensor w2, Tensor w2_scale, str of_weights, str activation) -> Tensor",
    _experts,
    lambda x, *_: x.new_empty(x.shape),
)
