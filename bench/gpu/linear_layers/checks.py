"""Results of a layer against FP64."""

import torch
from common.operands import relative_error
from torch import Tensor

ROWS = 256  # of each matrix are compared
BFLOAT16_ERRORS = (1e-2, 0.0)
FP8_ERRORS = (0.1, 1e-2)
"""Relative errors at most, and the output's at least. Rounding normal values costs 2.6 % in e4m3,
5.3 % in e5m2, 0.2 % in BF16, and a product has two rounded operands."""


def layer_errors(
    x: Tensor, weight: Tensor, dy: Tensor, y: Tensor, dx: Tensor, dw: Tensor
) -> dict[str, float]:
    """Returns the errors of the first rows of y = x · weightᵀ, dx = dy · weight, dw = dyᵀ · x."""
    with torch.no_grad():
        wide = weight.double()
        errors = {
            "y": relative_error(y[:ROWS], x[:ROWS].double() @ wide.T),
            "dx": relative_error(dx[:ROWS], dy[:ROWS].double() @ wide),
        }
        del wide
        errors["dw"] = relative_error(dw[:ROWS], dy[:, :ROWS].double().T @ x.double())
    return errors
