"""FP8 codes with their scales."""

import operator
from dataclasses import dataclass
from typing import Any, Final, SupportsIndex

from . import arrays
from .calls import Op
from .errors import invalid_argument
from .formats import UNITS, WIDE, DTypeLike, Unit, dtype_name
from .frameworks import Array, Framework, StreamLike, is_torch
from .ops import Arrays, Options, Scaled, require_matrix, row_count


@dataclass(frozen=True, eq=False, repr=False)
class ScaledTensor(Scaled):
    """An FP8 matrix with the FP32 scales that take its codes back to values: x ≈ data × scale.

    data: [..., cols], e4m3 or e5m2. Leading dimensions count as more rows.
    scale: float32; its shape follows from the granularity (see scale_shape), for a stack of
        matrices too.
    granularity: which elements share a scale: "tensor", "channel" (a row), "1x128" or "128x128".

    You can build one from the tensors of a checkpoint; they are checked when they are used. `==` is
    identity, because arrays have no comparison with a single truth value; equals() compares. It can
    be pickled, saved with torch.save() and loaded with torch.load().
    """

    data: Array
    scale: Array
    granularity: str

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__
        if not is_torch(self.data):
            return state
        # pickle reads no FP8 of torch's: codes travel as bytes, beside their dtype.
        import torch

        return state | {"data": self.data.view(torch.uint8), "codes": self.data.dtype}

    def __setstate__(self, state: dict[str, Any]) -> None:
        codes = state.pop("codes", None)
        self.__dict__.update(state)
        if codes is not None:
            self.__dict__["data"] = self.data.view(codes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> DTypeLike:
        """The dtype of the codes, in terms of the array's framework."""
        return self.data.dtype

    def dequantize(self, dtype: DTypeLike = "float32", stream: StreamLike | None = None) -> Array:
        """data × scale, the product in FP32, rounded to nearest even in `dtype`;
        of a matrix or a stack.

        dtype: float32, float16 or bfloat16.
        stream: as in gemm().
        Returns an array of the same shape in the framework of `data`.
        Raises InvalidArgumentError.
        """
        name = dtype_name("dequantize", "dtype", dtype, WIDE)
        inputs = (self.data, self.scale)
        return _DEQUANTIZE(inputs, (self.granularity,), name, None, stream)[0]

    def equals(self, other: object) -> bool:
        """True if `other` is a ScaledTensor of the same framework, device, granularity, dtype and
        shape with the same bytes of codes and scales (a NaN equals itself)."""
        return (
            isinstance(other, ScaledTensor)
            and self.granularity == other.granularity
            and arrays.same_bytes(self.data, other.data)
            and arrays.same_bytes(self.scale, other.scale)
        )

    def to(self, device: Any) -> "ScaledTensor":
        """The same on another device, or itself if it is there; scales get the layout that is
        fastest there.

        device: for torch tensors whatever Tensor.to() takes; for CuPy arrays the number of a GPU,
            or "cpu" for NumPy arrays; for others only "cpu", if that is where they are.
        Raises InvalidArgumentError for devices that the framework does not have.
        """
        moved = arrays.moved(self.data, self.scale, self.granularity, device)
        return self if moved is None else ScaledTensor(*moved, self.granularity)

    def __getitem__(self, rows: slice | SupportsIndex) -> "ScaledTensor":
        """Rows (with leading dimensions: of the first one), as views of data and scale.

        rows: a slice of step 1. With 128x128 it begins and ends where scales do, at rows that are
            multiples of 128, or at the end. For a stack (quantize(matrices=)) it takes matrices.
            With leading dimensions it may also be a number, which selects a matrix or a stack.
        Raises InvalidArgumentError, which names the nearest such boundaries; for an unknown
        granularity, the granularities there are. Raises IndexError for a number out of range.
        """
        if isinstance(rows, SupportsIndex):
            return self._at(operator.index(rows))
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            expected = "a slice of step 1 or a whole number"
            raise invalid_argument("ScaledTensor[]", "rows", expected, repr(rows))
        begin, end, _ = rows.indices(self.shape[0])
        end = max(begin, end)
        each = row_count(self.shape[1:])  # rows of one of the first dimension
        if self._unit("ScaledTensor[]").is_of_a_row:
            scale = self.scale[begin:end]
        else:
            scale = self._scale_of(begin, end, each)
        return ScaledTensor(self.data[begin:end], scale, self.granularity)

    def _scale_of(self, begin: int, end: int, each: int) -> Array:
        """The scales of a slice of the first dimension, of so many rows each, where they are those
        of whole matrices or of squares."""
        scale, matrices = self.scale, self._matrices()
        first, last, rows = begin * each, end * each, self.shape[0] * each
        if matrices is not None:
            rows //= matrices
            if rows == 0:
                return scale[begin:end]
            if first % rows == 0 and last % rows == 0:
                return scale[first // rows : last // rows]
            index = first // rows
            if last > (index + 1) * rows:
                expected = (
                    f"a slice within a matrix of {rows} rows or of whole ones, of such a stack"
                )
                got = f"{begin}:{end} of {each} rows each"
                raise invalid_argument("ScaledTensor[]", "rows", expected, got)
            scale = scale[index : index + 1] if self.granularity == "tensor" else scale[index]
            first, last = first - index * rows, last - index * rows
        if self.granularity == "tensor":
            return scale
        for row in (first, last):
            if row != rows and row % 128:
                below = row // 128 * 128
                raise invalid_argument(
                    "ScaledTensor[]",
                    "rows",
                    "a slice between rows that are multiples of 128, where scales of 128x128 "
                    f"begin (here {below} or {below + 128}), or to the end",
                    f"{begin}:{end}" if each == 1 else f"{begin}:{end} of {each} rows each",
                )
        return scale[first // 128 : (last + 127) // 128]

    def _at(self, index: int) -> "ScaledTensor":
        """The element at this index of the first dimension, which goes."""
        size = self.shape[0]
        if not -size <= index < size:
            raise IndexError(f"ScaledTensor[]: {index} of {size}")
        if len(self.shape) < 3:
            expected = "a slice, because a row alone is no matrix"
            raise invalid_argument("ScaledTensor[]", "rows", expected, str(index))
        index %= size
        one = self[index : index + 1]
        scale = one.scale
        is_one_of_stack = one.granularity == "128x128" and one._matrices() == 1
        if UNITS[one.granularity].is_of_a_row or is_one_of_stack:
            scale = scale[0]
        return ScaledTensor(one.data[0], scale, self.granularity)

    def _unit(self, operation: str) -> Unit:
        unit = UNITS.get(self.granularity)
        if unit is None:
            expected = f"one of {', '.join(UNITS)}"
            raise invalid_argument(operation, "granularity", expected, repr(self.granularity))
        return unit

    def _matrices(self) -> int | None:
        """How many matrices data is a stack of, each with squares or a scale of its own; None if it
        is none."""
        shape = tuple(self.scale.shape)
        if self.granularity == "tensor":
            return shape[0] if len(shape) == 1 and shape != (1,) else None
        return shape[0] if self.granularity == "128x128" and len(shape) == 3 else None

    @property
    def T(self) -> "ScaledTensor":  # noqa: N802 (NumPy's name)
        """The transpose of a matrix, as views of data and scale, where a square or the whole shares
        a scale ("128x128", "tensor"). Operations need contiguous columns, which it does not have:
        ops.transpose(x.data) copies them, or cast with ops.cast(x, transposed=format).

        Raises InvalidArgumentError for scales that belong to rows ("channel", "1x128"), because the
        transpose would need scales that belong to columns.
        """
        if not self._unit("ScaledTensor.T").is_square:
            raise invalid_argument(
                "ScaledTensor.T",
                "granularity",
                "tensor or 128x128, whose scales hold for rows and columns alike "
                "(ops.cast(x, transposed=...) casts the transpose with scales of its own)",
                self.granularity,
            )
        if len(self.shape) != 2:
            raise invalid_argument("ScaledTensor.T", "data", "2 dimensions", str(len(self.shape)))
        scale = self.scale if self.granularity == "tensor" else self.scale.T
        return ScaledTensor(self.data.T, scale, self.granularity)

    def __repr__(self) -> str:
        data, scale = _described(self.data), _described(self.scale)
        return f"ScaledTensor(data={data}, scale={scale}, granularity={self.granularity!r})"


# Pickles and torch.save() call the class by this module, wherever it is defined.
ScaledTensor.__module__ = "octofold"


def _described(array: Any) -> str:
    return f"{array.dtype} {list(array.shape)}" if hasattr(array, "dtype") else repr(array)


def parts_of(x: Array | ScaledTensor) -> tuple[Array, Array | None, str | None]:
    """The inputs and the option of an op that takes arrays too: data, scale, granularity."""
    if not isinstance(x, ScaledTensor):
        return x, None, None
    return x.data, x.scale, x.granularity


def _values(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    require_matrix("dequantize", "x", inputs[0].shape)
    return (framework.empty(inputs[0].shape, dtype),)


_DEQUANTIZE: Final = Op("dequantize", {"x": ScaledTensor}, ("out",), _values)
