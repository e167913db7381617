"""Names of element types, and the NumPy types behind them."""

from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from .errors import invalid_argument

DTypeLike: TypeAlias = Any
"""A name ("e4m3", "bfloat16" ...), a NumPy or ml_dtypes type, or a torch.dtype."""

NUMPY_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}

NAMES: Final[tuple[str, ...]] = tuple(NUMPY_DTYPES)

_ALIASES: Final[dict[str, str]] = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def dtype_name(operation: str, argument: str, dtype: DTypeLike) -> str:
    """Octofold's own name of a dtype."""
    if isinstance(dtype, str):
        text = dtype
    elif str(dtype).startswith("torch."):
        text = str(dtype).removeprefix("torch.")
    else:
        text = _numpy_name(dtype)
    name = _ALIASES.get(text, text)
    if name not in NAMES:
        raise invalid_argument(operation, argument, f"one of {', '.join(NAMES)}", repr(dtype))
    return name


def _numpy_name(dtype: DTypeLike) -> str:
    if dtype is None:  # np.dtype(None) is float64
        return ""
    try:
        return np.dtype(dtype).name
    except TypeError:
        return ""
