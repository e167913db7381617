"""FP8 codes with their scales."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ._core import arrays
from ._core.dtypes import WIDE, DTypeLike, dtype_name
from ._core.frameworks import Array, Framework
from ._core.ops import Arrays, Op, Options, Scaled, require_matrix, row_count
from ._core.streams import StreamLike
from ._library import library
from .errors import invalid_argument

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False, repr=False)
class ScaledTensor(Scaled):
    """An FP8 matrix with the FP32 scales that take its codes back to values: x ≈ data × scale.

    data: [..., cols], e4m3 or e5m2. Leading dimensions count as more rows.
    scale: float32; its shape follows from the granularity (see scale_shape).
    granularity: how many elements share a scale: "tensor", "channel" (a row), "1x128" or "128x128".

    Build one yourself from the tensors of a checkpoint; they are checked when they are used. `==`
    is identity, as arrays have no other that is one truth value: equals() compares. It can be
    pickled, saved with torch.save() and loaded with torch.load().
    """

    data: Array
    scale: Array
    granularity: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> DTypeLike:
        """The dtype of the codes, in terms of the array's framework."""
        return self.data.dtype

    def dequantize(self, dtype: DTypeLike = "float32", stream: StreamLike | None = None) -> Array:
        """data × scale, the product in FP32, rounded to nearest even in `dtype`.

        dtype: float32, float16 or bfloat16.
        stream: as in gemm().
        Returns an array of the same shape in the framework of `data`.
        Raises InvalidArgumentError.
        """
        name = dtype_name("dequantize", "dtype", dtype, WIDE)
        return _DEQUANTIZE((self.data, self.scale), (self.granularity,), name, None, stream)[0]

    def equals(self, other: object) -> bool:
        """Whether `other` is a ScaledTensor of the same framework, device, granularity, dtype and
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

        device: of torch tensors what Tensor.to() takes; of CuPy arrays the number of a GPU, or
            "cpu" for NumPy arrays; of others only "cpu", if that is where they are.
        Raises InvalidArgumentError for devices that the framework has not.
        """
        moved = arrays.moved(self.data, self.scale, self.granularity, device)
        return self if moved is None else ScaledTensor(*moved, self.granularity)

    def __getitem__(self, rows: slice) -> "ScaledTensor":
        """Rows (with leading dimensions: of the first one), as views of data and scale.

        rows: a slice of step 1. With 128x128 it begins and ends where scales do, at rows that are
            multiples of 128, or at the end.
        Raises InvalidArgumentError, which names the nearest such boundaries; for a granularity that
        there is not, those that there are.
        """
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise invalid_argument("ScaledTensor[]", "rows", "a slice of step 1", repr(rows))
        size = self.shape[0]
        begin, end, _ = rows.indices(size)
        end = max(begin, end)
        scale = self.scale
        if self.granularity in ("channel", "1x128"):
            scale = scale[begin:end]
        elif self.granularity == "128x128":
            each = row_count(self.shape[1:]) if len(self.shape) > 2 else 1
            for row in (begin, end):
                if row != size and row * each % 128:
                    below = row * each // 128 * 128
                    raise invalid_argument(
                        "ScaledTensor[]",
                        "rows",
                        "a slice between rows that are multiples of 128, where scales of 128x128 "
                        f"begin (here {below} or {below + 128}), or to the end",
                        f"{begin}:{end}" if each == 1 else f"{begin}:{end} of {each} rows each",
                    )
            scale = scale[begin * each // 128 : (end * each + 127) // 128]
        elif self.granularity != "tensor":
            raise invalid_argument(
                "ScaledTensor[]",
                "granularity",
                "tensor, channel, 1x128 or 128x128",
                repr(self.granularity),
            )
        return ScaledTensor(self.data[begin:end], scale, self.granularity)

    @property
    def T(self) -> "ScaledTensor":  # noqa: N802 (NumPy's name)
        """The transpose of a matrix, as views of data and scale, where a square or all of it shares
        a scale ("128x128", "tensor"). Its columns are not contiguous, which operations ask for:
        copy `data` for them, or cast with quantize(x, transpose=True).

        Raises InvalidArgumentError for scales that belong to rows ("channel", "1x128"), as the
        transpose would need scales that belong to columns.
        """
        if self.granularity not in ("tensor", "128x128"):
            raise invalid_argument(
                "ScaledTensor.T",
                "granularity",
                "tensor or 128x128, whose scales hold for rows and columns alike "
                "(quantize(x, transpose=True) casts the transpose with scales of its own)",
                self.granularity,
            )
        if len(self.shape) != 2:
            raise invalid_argument("ScaledTensor.T", "data", "2 dimensions", str(len(self.shape)))
        scale = self.scale if self.granularity == "tensor" else self.scale.T
        return ScaledTensor(self.data.T, scale, self.granularity)

    def register_buffers(self, module: "torch.nn.Module", name: str) -> None:
        """Make this a part of a torch module: its buffers `name` and `name`_scale, which
        state_dict() holds and module.to(device) moves, and its attribute `name`_granularity.
        from_buffers() gives it back. module.to(dtype) would convert both, as it does all buffers
        of floating point."""
        module.register_buffer(name, self.data)
        module.register_buffer(f"{name}_scale", self.scale)
        setattr(module, f"{name}_granularity", self.granularity)

    @staticmethod
    def from_buffers(module: "torch.nn.Module", name: str) -> "ScaledTensor":
        """What register_buffers() made of a ScaledTensor, as the module has it now."""
        return ScaledTensor(
            getattr(module, name),
            getattr(module, f"{name}_scale"),
            getattr(module, f"{name}_granularity"),
        )

    def __repr__(self) -> str:
        data, scale = (
            f"{array.dtype} {list(array.shape)}" if hasattr(array, "dtype") else repr(array)
            for array in (self.data, self.scale)
        )
        return f"ScaledTensor(data={data}, scale={scale}, granularity={self.granularity!r})"


# What pickles and torch.save() call it, wherever it is defined.
ScaledTensor.__module__ = "octofold"


def _values(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    require_matrix("dequantize", "x", inputs[0].shape)
    return (framework.empty(inputs[0].shape, dtype),)


_DEQUANTIZE: Final = Op(
    "dequantize",
    {"x": ScaledTensor},
    results=("out",),
    allocate=_values,
    function=lambda: library.dequantize,
)
