"""The kernels that a device has, by the library's tables, and the way in which layers compute
there. The CPU computes everything."""

import functools
from typing import Final

import torch

from ..._capabilities import KERNELS, capabilities
from ..._info import EXPERTS, FP8, LINEAR, NATIVE, Support, info, layer_way

_ON_CPU: Final = Support(NATIVE, "")
"""The way of all layers on the CPU, and of what is nowhere yet."""


def on_gpu(device: torch.device) -> bool:
    """True if the device is a GPU, where it matters how many tokens there are."""
    return _gpu_of(device) is not None


def has_kernels(operation: str, device: torch.device) -> bool:
    """True if the device has kernels of the operation, one of info()'s; the CPU has all."""
    index = _gpu_of(device)
    return index is None or not _why_not(operation, index)


def has_native(device: torch.device) -> bool:
    """True if the device casts, and multiplies FP8 with FP8; the CPU does."""
    index = _gpu_of(device)
    return index is None or _how(LINEAR, FP8, index) == NATIVE


def expert_products(device: torch.device, weights: str) -> str:
    """How experts compute on the device, with trained weights or FP8 ones: Support.how."""
    index = _gpu_of(device)
    return NATIVE if index is None else _how(EXPERTS, weights, index)


def has_weight_only(device: torch.device, dtype: torch.dtype) -> bool:
    """True if the device has weight-only products with x of this dtype."""
    if dtype == torch.float32 or not has_kernels("products with FP8 weights", device):
        return False
    return dtype != torch.bfloat16 or has_bfloat16(device)


def has_warpgroups(device: torch.device) -> bool:
    """True if the GPU has kernels whose warpgroups multiply. Products that cast A on its way have
    no others."""
    index = _gpu_of(device)
    return index is not None and not _why_not("products that cast A", index)


def has_bfloat16(device: torch.device) -> bool:
    """True if the device is the CPU, or a GPU that multiplies bfloat16 in tensor cores."""
    index = _gpu_of(device)
    return index is None or _has_bfloat16(index)


def layer_products(kind: str, weights: str, device: torch.device) -> Support:
    """How layers of a kind compute on the device, and why not natively; one of
    octofold._info.LAYERS."""
    index = _gpu_of(device)
    return _ON_CPU if index is None else _products_once(kind, weights, index)


def _gpu_of(device: torch.device) -> int | None:
    """The index of a GPU; None: the device is none."""
    return device.index or 0 if device.type == "cuda" else None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _why_not(operation: str, index: int) -> str:
    return _why_not_once(operation, index)


@functools.cache
def _why_not_once(operation: str, index: int) -> str:
    return info().gpus[index].operations[operation].why_not


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _how(kind: str, weights: str, index: int) -> str:
    return _products_once(kind, weights, index).how


@functools.cache
def _products_once(kind: str, weights: str, index: int) -> Support:
    return layer_way(kind, weights, lambda operation: _why_not_once(operation, index))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_bfloat16(index: int) -> bool:
    return _has_bfloat16_once(index)


@functools.cache
def _has_bfloat16_once(index: int) -> bool:
    matrix = capabilities()
    here = [target.name for target in matrix.targets if index in target.gpus]
    return any(
        row.support[name].how == KERNELS
        for row in matrix.rows
        if row.operation == "gemm_weight_only" and "bfloat16" in row.operands.values()
        for name in here
    )
