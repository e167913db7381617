"""Results of a layer against FP64."""

import math

import torch
from torch import Tensor

ROWS = 256  # of each matrix are compared
BFLOAT16_LIMIT, FP8_LIMIT = 1e-2, 0.1
"""Relative errors. Rounding normal values to e4m3 costs 2.6 %, to e5m2 5.3 %; a product has two
rounded operands. BF16 costs 0.2 %."""
LEAST_FP8_ERROR = 1e-2
"""A product of FP8 operands is not better: it was computed in something else."""


class Wrong(Exception):  # noqa: N818
    """A result is not what the layer has to give."""


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.norm(actual.double() - expected) / torch.linalg.norm(expected))


def layer_errors(
    x: Tensor, weight: Tensor, dy: Tensor, y: Tensor, dx: Tensor, dw: Tensor
) -> dict[str, float]:
    """Of the first rows of y = x · weightᵀ, dx = dy · weight, dw = dyᵀ · x."""
    with torch.no_grad():
        wide = weight.double()
        errors = {
            "y": relative_error(y[:ROWS], x[:ROWS].double() @ wide.T),
            "dx": relative_error(dx[:ROWS], dy[:ROWS].double() @ wide),
        }
        del wide
        errors["dw"] = relative_error(dw[:ROWS], dy[:, :ROWS].double().T @ x.double())
    return errors


def require_right(name: str, errors: dict[str, float], is_fp8: bool) -> None:
    limit = FP8_LIMIT if is_fp8 else BFLOAT16_LIMIT
    for result, error in errors.items():
        if not error <= limit:  # NaN is wrong too
            raise Wrong(f"{name}: {result}: relative error {error:.2e} exceeds {limit:.0e}")


def is_really_fp8(errors: dict[str, float]) -> bool:
    """Whether at least the forward product was computed in FP8."""
    error = next(iter(errors.values()))
    return math.isfinite(error) and error >= LEAST_FP8_ERROR
