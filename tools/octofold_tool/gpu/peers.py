"""Ways to multiply on a GPU: Octofold's, and its peers' as torch offers them.

Each takes the same random matrices and makes of them a Product: operands in its own formats and
layouts, an output, and the call. Nothing but the call is timed.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import octofold
import torch
from torch import Tensor

from ..products import GemmOptions
from .measuring import OUT_DTYPES, Product


@dataclass(frozen=True)
class Peer:
    name: str  # in JSON
    label: str  # in tables and charts
    prepare: Callable[[Tensor, Tensor, GemmOptions], Product]
    """Takes x [m, k], w [n, k] in FP32. Raises RuntimeError or ValueError for what it cannot do."""


def new_output(x: Tensor, w: Tensor, options: GemmOptions) -> Tensor:
    return torch.empty(len(x), len(w), dtype=OUT_DTYPES[options.out_dtype], device=x.device)


def quantized(
    x: Tensor, w: Tensor, dtypes: tuple[str, str], granularities: tuple[str, str]
) -> tuple[octofold.ScaledTensor, octofold.ScaledTensor]:
    a, b = (
        octofold.quantize(matrix, octofold.Format(dtype, granularity))
        for matrix, dtype, granularity in zip((x, w), dtypes, granularities, strict=True)
    )
    return a, b


def prepare_octofold(x: Tensor, w: Tensor, options: GemmOptions) -> Product:
    a, b = quantized(x, w, options.dtypes, options.granularities)
    out = new_output(x, w, options)
    fast = options.fast_accumulation
    return Product(lambda: octofold.gemm(a, b, out=out, fast_accumulation=fast), a, b, out)


def prepare_same_scales(x: Tensor, w: Tensor, options: GemmOptions) -> Product:
    """cuBLASLt with the same kind of scales."""
    a, b = quantized(x, w, options.dtypes, options.granularities)
    return scaled_mm(a, b, new_output(x, w, options), options.fast_accumulation)


def prepare_tensor_scales(x: Tensor, w: Tensor, options: GemmOptions) -> Product:
    """cuBLASLt with a scale per tensor, all of K summed in the tensor core: less work than ours."""
    a, b = quantized(x, w, options.dtypes, ("tensor", "tensor"))
    return scaled_mm(a, b, new_output(x, w, options), fast_accumulation=True)


def prepare_bfloat16(x: Tensor, w: Tensor, options: GemmOptions) -> Product:
    del options  # BF16 in, BF16 out
    a, b = x.bfloat16(), w.bfloat16()
    out = torch.empty(len(x), len(w), dtype=torch.bfloat16, device=x.device)
    return Product(lambda: torch.mm(a, b.t(), out=out), a, b, out)


def prepare_deepgemm(x: Tensor, w: Tensor, options: GemmOptions) -> Product:
    """DeepGEMM, where it is installed: 1x128 with 128x128, scales already in its layout."""
    return by_deepgemm(x, w, options, ("1x128", "128x128"), new_output(x, w, options))


def prepare_deepgemm_added(x: Tensor, w: Tensor, options: GemmOptions) -> Product:
    """DeepGEMM's out += a · bᵀ, as of weight gradients: 1x128 on both sides, FP32."""
    out = new_output(x, w, options)
    return by_deepgemm(x, w, options, ("1x128", "1x128"), out, c=out, recipe=(1, 1, 128))


def by_deepgemm(
    x: Tensor,
    w: Tensor,
    options: GemmOptions,
    granularities: tuple[str, str],
    out: Tensor,
    **sum_: Any,
) -> Product:
    wanted = ("e4m3", "e4m3"), granularities, "float32" if sum_ else "bfloat16"
    if (options.dtypes, options.granularities, options.out_dtype) != wanted:
        scales = " and ".join(granularities)
        raise ValueError(f"DeepGEMM takes e4m3 with {scales} scales to {wanted[2]} here")
    a, b = quantized(x, w, options.dtypes, granularities)
    deep_gemm = importlib.import_module("deep_gemm")
    # Columns of 1x128 scales begin at multiples of 16 bytes there. It lays all others out anew in
    # each call, by another kernel.
    left, right = (
        (t.data, deep_gemm.get_mn_major_tma_aligned_tensor(t.scale))
        if t.granularity == "1x128"
        else (t.data, t.scale.contiguous())
        for t in (a, b)
    )
    return Product(partial(deep_gemm.fp8_gemm_nt, left, right, out, **sum_), a, b, out)


def scaled_mm(
    a: octofold.ScaledTensor, b: octofold.ScaledTensor, out: Tensor, fast_accumulation: bool
) -> Product:
    """torch._scaled_mm, whose second matrix and its scales are transposed, with scales laid out as
    it wants them."""
    k = a.shape[1]
    if b.granularity == "128x128" and -(-k // 128) % 4 != 0:
        raise ValueError("cuBLASLt pads rows of 128x128 scales to 4, which torch leaves to chance")
    scale_a, scale_b = torch_scale(a), torch_scale(b)

    def run() -> Tensor:
        return torch._scaled_mm(
            a.data,
            b.data.t(),
            scale_a,
            scale_b.t() if scale_b.dim() == 2 else scale_b,
            out_dtype=out.dtype,
            use_fast_accum=fast_accumulation,
            out=out,
        )

    return Product(run, a, b, out)


def torch_scale(x: octofold.ScaledTensor) -> Tensor:
    """Channel: a column. 1x128: rows next to each other. 128x128: contiguous."""
    scale: Tensor = x.scale
    if x.granularity == "channel":
        return scale[:, None].contiguous()
    if x.granularity == "1x128":
        return scale.t().contiguous().t()
    return scale.contiguous()


OCTOFOLD: Final = Peer("octofold", "Octofold", prepare_octofold)
BFLOAT16: Final = Peer("bfloat16", "BF16", prepare_bfloat16)
PEERS: Final = (
    Peer("cublaslt_same_scales", "cuBLASLt, same scales", prepare_same_scales),
    Peer("cublaslt_tensor_scales", "cuBLASLt, tensor", prepare_tensor_scales),
    BFLOAT16,
    *(
        (Peer("deepgemm", "DeepGEMM", prepare_deepgemm),)
        if importlib.util.find_spec("deep_gemm")
        else ()
    ),
)
