"""Which numbers are multiplied, and which are sent."""

from dataclasses import dataclass
from typing import Final

BFLOAT16: Final = 2.0
FLOAT32: Final = 4.0
ROW_CODES: Final = 1 + 4 / 128
"""Bytes an element of e4m3 with an FP32 scale for 1x128."""
SQUARE_CODES: Final = 1 + 4 / 128**2
"""Bytes an element of e4m3 with an FP32 scale for 128x128."""


@dataclass(frozen=True)
class Way:
    """How a linear layer computes, and what travels for it. The output head is BF16 always."""

    name: str
    fp8_products: bool
    fp8_wire: bool
    """Cast first, then send codes. False: send BF16, and cast what has arrived."""

    def __post_init__(self) -> None:
        if self.fp8_wire and not self.fp8_products:
            raise ValueError(f"{self.name}: codes are sent for FP8 products alone")

    @property
    def weight_bytes(self) -> float:
        """Of an element of a weight on the wire."""
        return SQUARE_CODES if self.fp8_wire else BFLOAT16

    @property
    def activation_bytes(self) -> float:
        """Of an element of an activation that is gathered or dispatched."""
        return ROW_CODES if self.fp8_wire else BFLOAT16

    @property
    def gradient_gather_bytes(self) -> float:
        """Of an element of dY that is gathered. As codes it travels twice: its rows for the input
        gradient, its transpose for the weight gradient."""
        return 2 * ROW_CODES if self.fp8_wire else BFLOAT16

    @property
    def kept_bytes(self) -> float:
        """Of an element of x that is kept for the weight gradient."""
        return 1.0 if self.fp8_products else BFLOAT16


BF16: Final = Way("BF16", fp8_products=False, fp8_wire=False)
FP8_PRODUCTS: Final = Way("FP8 products, BF16 wire", fp8_products=True, fp8_wire=False)
FP8: Final = Way("FP8", fp8_products=True, fp8_wire=True)
WAYS: Final = (FP8, FP8_PRODUCTS, BF16)
