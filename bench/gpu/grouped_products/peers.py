"""Peers of the grouped products: DeepGEMM where it is installed, and what torch has."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import octofold
import torch
from octofold._timing import Call
from torch import Tensor

from .cases import on_device

DEEPGEMM, ROWWISE, BFLOAT16 = "DeepGEMM", "torch FP8 rowwise", "torch BF16"
ALIGNMENT = 128  # of the rows of DeepGEMM's groups


def deep_gemm() -> Any:
    """Raises ImportError where it is not."""
    return importlib.import_module("deep_gemm")


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """BF16 product of torch, by whichever name this release has."""
    public = getattr(torch.nn.functional, "grouped_mm", None)
    return public(a, b, offs=ends) if public else torch._grouped_mm(a, b, offs=ends)


def padded(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the places of rows sorted by group if each group begins at a multiple of ALIGNMENT
    rows, and each padded row's group, -1 where there is none."""
    places, groups, begin = [], [], 0
    for group, size in enumerate(sizes):
        whole = -(-size // ALIGNMENT) * ALIGNMENT
        places += range(begin, begin + size)
        groups += [group] * size + [-1] * (whole - size)
        begin += whole
    return torch.tensor(places, device=device), on_device(groups, device)


def column_major(scale: Tensor) -> Tensor:
    """Rows next to each other, as DeepGEMM takes them without a copy: [..., rows, blocks]."""
    return scale.transpose(-2, -1).contiguous().transpose(-2, -1)


class DeepGemmContiguous:
    """The product of operands 1x128 · 128x128; groups that are not aligned are padded before."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self._function = deep_gemm().m_grouped_fp8_gemm_nt_contiguous
        self.places, self._groups = padded(sizes, device)
        self._padded = len(self.places) != len(self._groups)

    def call(self, a: octofold.ScaledTensor, b: octofold.ScaledTensor, out: Tensor) -> "Product":
        """b: data [G, N, K], scale [G, N / 128, K / 128]. out: used where nothing is padded."""
        codes, scale = a.data, a.scale
        if self._padded:
            rows = len(self._groups)
            codes = torch.zeros(rows, codes.shape[1], dtype=torch.uint8, device=out.device)
            codes[self.places] = a.data.view(torch.uint8)
            codes = codes.view(a.data.dtype)
            scale = torch.zeros(rows, a.scale.shape[1], device=out.device)
            scale[self.places] = a.scale
            out = out.new_empty(rows, out.shape[1])
        left, right = (codes, column_major(scale)), (b.data, b.scale.contiguous())

        def run() -> None:
            self._function(left, right, out, self._groups)

        return Product(run, lambda: out[self.places] if self._padded else out, out)


class Product:
    """A call, the memory it writes, and how valid rows are taken from there."""

    def __init__(self, run: Call, valid: Callable[[], Tensor], memory: Tensor | None) -> None:
        self.run, self._valid, self._memory = run, valid, memory

    def result(self) -> Tensor:
        """In memory that was poisoned before."""
        if self._memory is not None:
            self._memory.fill_(torch.nan)
        self.run()
        return self._valid()


def deepgemm_masked(
    a: octofold.ScaledTensor, b: octofold.ScaledTensor, counts: Tensor, expected: int, out: Tensor
) -> Product:
    """a: data [G, rows, K], scale [G, rows, K / 128]; b as for contiguous rows."""
    function = deep_gemm().m_grouped_fp8_gemm_nt_masked
    left, right = (a.data, column_major(a.scale)), (b.data, b.scale.contiguous())

    def run() -> None:
        function(left, right, out, counts, expected)

    return Product(run, lambda: out, out)


def returned(call: Callable[[], Tensor]) -> Product:
    """Returns the product of an operation that allocates what it gives."""
    return Product(call, call, None)


def rowwise(x: Tensor, w: Tensor, ends: Tensor) -> tuple[Product, Any, Any]:
    """x [M, K], w [G, N, K]; and their casts, w's as a matrix."""
    groups, n, k = w.shape
    a = octofold.quantize(x, "channel")
    b = octofold.quantize(w.view(groups * n, k), "channel")
    scale_a, scale_b = a.scale.view(-1), b.scale.view(groups, n)
    right = b.data.view(groups, n, k).transpose(-2, -1)
    product = returned(
        lambda: torch._scaled_grouped_mm(
            a.data,
            right,
            scale_a,
            scale_b,
            offs=ends,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
    )
    return product, a, b


def bfloat16(x: Tensor, w: Tensor, ends: Tensor) -> Product:
    right = w.transpose(-2, -1)
    return returned(lambda: grouped_mm(x, right, ends))
