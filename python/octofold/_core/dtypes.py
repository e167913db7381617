"""Names of element types, and the NumPy types behind them."""

from typing import Annotated, Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from .errors import invalid_argument

DTypeLike: TypeAlias = Annotated[Any, "dtype"]
"""A name ("e4m3", "bfloat16" ...), a NumPy or ml_dtypes type, or a torch.dtype."""

NUMPY_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int32": np.dtype(np.int32),
}
FP8: Final = ("e4m3", "e5m2")
WIDE: Final = ("float32", "float16", "bfloat16")
HALF: Final = ("float16", "bfloat16")
ALL: Final = (*WIDE, *FP8)  # of numbers; int32 counts and places

# The names that others have for what Octofold calls otherwise.
DLPACK_NAMES: Final = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}

# Names as they may be spelled. By texts alone: torch.compile follows no dictionary by dtypes.
SPELLINGS: Final[dict[str, str]] = {
    **{name: name for name in ALL},
    **{name: own for own, name in DLPACK_NAMES.items()},
}


def dtype_name(
    operation: str, argument: str, dtype: DTypeLike, among: tuple[str, ...] = ALL
) -> str:
    """Octofold's own name of a dtype, which has to be one of `among`."""
    name = SPELLINGS.get(dtype if isinstance(dtype, str) else _text(dtype), "")
    if name not in among:
        raise invalid_argument(operation, argument, f"one of {', '.join(among)}", repr(dtype))
    return name


def require_dtype_of_out(operation: str, out: Any, out_dtype: DTypeLike | None) -> None:
    """Checks that out_dtype, if it is given beside an array to write to, is the array's."""
    if out_dtype is None:
        return
    expected = dtype_name(operation, "out", out.dtype)
    if dtype_name(operation, "out_dtype", out_dtype, WIDE) != expected:
        raise invalid_argument(operation, "out_dtype", f"{expected}, as is 'out'", repr(out_dtype))


def _text(dtype: DTypeLike) -> str:
    if dtype is None:  # np.dtype(None) is float64
        return ""
    if str(dtype).startswith("torch."):
        return str(dtype).removeprefix("torch.")
    try:
        return np.dtype(dtype).name
    except TypeError:
        return ""
