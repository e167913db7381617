"""Checks a product on a GPU: at random places, against FP64."""

import torch
from torch import Tensor

from ..measure import error_limit
from ..products import GemmOptions
from .measuring import Operand, relative_error
from .peers import Product

# Only so many rows and columns of a large product are compared.
CHECKED_ROWS, CHECKED_COLUMNS = 64, 512

# About 14 significant bits of a sum over all of K.
FAST_ACCUMULATION_ERROR_LIMIT = 1e-2


def error_of(product: Product, added: float | None = None) -> float:
    """Run it into poisoned memory. Relative error against the dequantized operands' product in
    FP64; NaN if anything was not written.

    added: a value that the memory holds instead, and to which the product is added.
    """
    product.out.fill_(torch.nan if added is None else added)
    product.run()
    if not torch.isfinite(product.out).all():
        return float("nan")
    rows = some(len(product.out), CHECKED_ROWS, product.out.device)
    columns = some(product.out.shape[1], CHECKED_COLUMNS, product.out.device)
    expected = float64_rows(product.a, rows) @ float64_rows(product.b, columns).T
    actual = product.out[rows][:, columns].double() - (added or 0.0)
    return relative_error(actual, expected)


def limit_of(options: GemmOptions, *products: Product) -> float:
    """The limit of the relative error of these products of ours."""
    limit = max(error_limit(options.out_dtype, compared(product)) for product in products)
    return max(limit, FAST_ACCUMULATION_ERROR_LIMIT) if options.fast_accumulation else limit


def compared(product: Product) -> int:
    """Elements that error_of compares."""
    rows, columns = product.out.shape
    return min(rows, CHECKED_ROWS) * min(columns, CHECKED_COLUMNS)


def some(count: int, at_most: int, device: torch.device) -> Tensor:
    return torch.randperm(count, device=device)[:at_most]


def float64_rows(operand: Operand, rows: Tensor) -> Tensor:
    """These rows of the (dequantized) matrix."""
    if isinstance(operand, Tensor):
        return operand[rows].double()
    codes: Tensor = operand.data.view(torch.uint8)[rows].view(operand.data.dtype).float().double()
    scale: Tensor = operand.scale.double()
    if operand.granularity == "tensor":
        return codes * scale
    if operand.granularity == "channel":
        return codes * scale[rows][:, None]
    scale = scale[rows // 128 if operand.granularity == "128x128" else rows]
    return codes * scale.repeat_interleave(128, dim=1)[:, : codes.shape[1]]
