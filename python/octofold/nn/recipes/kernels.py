"""What a device has kernels for, by the library's tables. The CPU computes everything."""

import functools

import torch

from ..._capabilities import KERNELS, capabilities
from ..._info import info


def has_kernels(operation: str, device: torch.device) -> bool:
    """Whether this GPU has kernels of the operation, one of info()'s."""
    return device.type != "cuda" or _has_kernels(operation, device.index)


def has_native(device: torch.device) -> bool:
    """Whether the GPU casts, and multiplies FP8 with FP8."""
    return has_kernels("casts", device) and has_kernels("products", device)


def has_weight_only(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the GPU has weight-only products with x of this dtype."""
    if dtype == torch.float32 or not has_kernels("products with FP8 weights", device):
        return False
    return dtype != torch.bfloat16 or has_bfloat16(device)


def has_warpgroups(device: torch.device) -> bool:
    """Whether warpgroups multiply 16-bit numbers and FP8 weights: on Hopper."""
    return device.type == "cuda" and _has_warpgroups(device.index)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the GPU multiplies bfloat16 in tensor cores."""
    return device.type != "cuda" or _has_bfloat16(device.index)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_warpgroups(index: int | None) -> bool:
    return torch.cuda.get_device_capability(index)[0] == 9


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernels(operation: str, index: int) -> bool:
    return _has_kernels_once(operation, index)


@functools.cache
def _has_kernels_once(operation: str, index: int) -> bool:
    return info().gpus[index].operations[operation].available


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_bfloat16(index: int) -> bool:
    return _has_bfloat16_once(index)


@functools.cache
def _has_bfloat16_once(index: int) -> bool:
    matrix = capabilities(probe=False)
    here = [target.name for target in matrix.targets if index in target.gpus]
    return any(
        row.support[name].how == KERNELS
        for row in matrix.rows
        if row.operation == "gemm_weight_only" and "bfloat16" in row.operands.values()
        for name in here
    )
