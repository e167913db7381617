"""Checkpoints in memory: a tensor is read from its file when it is asked for."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np

from ._checkpoint import CheckpointContents, CheckpointTensor, CheckpointWeight, inspect_fp8
from ._core.errors import BadFormatError, UnsupportedError, invalid_argument, io_error
from ._core.files import open_regular
from ._core.frameworks import Array
from ._core.library import warn_once
from ._core.ops import scale_shape
from ._core.scaled_tensor import ScaledTensor

_NAME: Final = "load_checkpoint"

# By safetensors' names: NumPy's types, whose names torch has too.
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(dtype)
    for name, dtype in (
        ("BOOL", np.bool_),
        *((f"U{bits}", f"uint{bits}") for bits in (8, 16, 32, 64)),
        *((f"I{bits}", f"int{bits}") for bits in (8, 16, 32, 64)),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("F8_E8M0", ml_dtypes.float8_e8m0fnu),
        ("F16", np.float16),
        ("BF16", ml_dtypes.bfloat16),
        ("F32", np.float32),
        ("F64", np.float64),
        ("C64", np.complex64),
    )
}

OF_SERVERS: Final = (
    r"\.([kvqp]|prob|kv|output)_scale$|\.(input_scale_ub|kv_cache_scaling_factor)$|zero_point$"
)
"""Names of numbers of caches, queries and outputs, which no module has."""
_OF_SCALES: Final = ("F32", "BF16", "F16")
_CACHE_SCALE: Final = re.compile(r"\.([kvqp]|kv|[kv]_proj\.output)_scale$")


class Checkpoint(Mapping[str, Any]):
    """A checkpoint on disk, as a mapping by the names of parameters: a weight in FP8 is a
    ScaledTensor, anything else an array. load_checkpoint() makes one.

    Nothing is kept: each access reads the tensor again, into memory of its own. Scales are float32
    in the shapes of scale_shape(), whatever the file has; codes without scales get one of 1. A
    stack [experts, N, K] has stacked scales, as quantize(matrices=) makes them.
    """

    def __init__(self, contents: CheckpointContents, framework: str, device: Any) -> None:
        """framework, device: as in load_checkpoint(), which checks them."""
        self._contents, self._framework, self._device = contents, framework, device
        self._weights = {weight.name: weight for weight in contents.weights}
        self._others = {tensor.name: tensor for tensor in contents.others}

    @property
    def contents(self) -> CheckpointContents:
        """The contents, as the files' headers state them."""
        return self._contents

    @property
    def family(self) -> str | None:
        """The family whose conventions the checkpoint follows; None: nothing is FP8."""
        return self._contents.family

    @property
    def framework(self) -> str:
        """ "torch" or "numpy"."""
        return self._framework

    def weight(self, name: str) -> CheckpointWeight | None:
        """The place of the FP8 weight of this name; None: it is not FP8, or there is none."""
        return self._weights.get(name)

    def tensor(self, name: str) -> CheckpointTensor:
        """The place of the codes or the values of this name. Raises KeyError."""
        weight = self._weights.get(name)
        return self._others[name] if weight is None else weight.codes

    def __getitem__(self, name: str) -> Any:
        weight = self._weights.get(name)
        if weight is None:
            return self._array(self._others[name])
        codes = self._array(weight.codes)
        shape = weight.codes.shape
        stack = shape[0] if len(shape) > 2 else None
        expected = scale_shape(weight.granularity, *shape, matrices=stack)
        if weight.scale is None:
            scale = np.ones(expected, np.float32)
        else:
            scale = _scale(weight.scale, weight.codes).reshape(expected)
        return ScaledTensor(codes, self._delivered(scale), weight.granularity)

    def input_scale(self, name: str) -> Array | None:
        """The static scale for the input of this weight's layer, if the checkpoint has one: float32
        [1], for a stack [experts]; None: there is none. Raises KeyError.
        """
        weight = self._weights.get(name)
        if weight is None:
            self._others[name]
            return None
        if weight.input_scale is None:
            return None
        return self._delivered(_scale(weight.input_scale).reshape(-1))

    def __iter__(self) -> Iterator[str]:
        yield from self._weights
        yield from self._others

    def __len__(self) -> int:
        return len(self._weights) + len(self._others)

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the tensor
        return name in self._weights or name in self._others

    def __repr__(self) -> str:
        return (
            f"Checkpoint(family={self.family!r}, {len(self._weights)} weights in FP8, "
            f"{len(self._others)} other tensors, {len(self._contents.files)} files)"
        )

    def _array(self, tensor: CheckpointTensor) -> Array:
        return self._delivered(_read(tensor), tensor.dtype)

    def _delivered(self, array: "np.ndarray[Any, Any]", dtype: str = "F32") -> Array:
        if self._framework == "numpy":
            return array
        import torch

        # torch takes no arrays of ml_dtypes, so bytes; of at least one dimension, to be viewed.
        flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
        values = flat.view(getattr(torch, _DTYPES[dtype].name)).reshape(array.shape)
        return values if self._device is None else values.to(self._device)


def load_checkpoint(
    path: str | os.PathLike[str], framework: str = "torch", device: Any = None
) -> Checkpoint:
    """Open a checkpoint of any family, with its weights in FP8 as ScaledTensors.

    >>> checkpoint = octofold.load_checkpoint("model")
    >>> w8 = checkpoint["model.layers.0.mlp.up_proj.weight"]
    >>> y = octofold.gemm(octofold.quantize(x), w8)

    path: a `.safetensors` file, a `*.safetensors.index.json`, or a folder with either.
    framework: the framework of its arrays, "torch" or "numpy" (with ml_dtypes).
    device: where torch's tensors go, as torch names it; None: the CPU.

    Headers are read at once, each tensor when it is asked for. inspect_checkpoint() says what
    checkpoints there are, and its errors are raised; UnsupportedError for MXFP4, NVFP4 and MXFP8
    too, of which convert_checkpoint() makes FP8. An access raises IoError where the file cannot be
    read, BadFormatError where it has become shorter or all scales of a weight are NaN, infinite,
    negative or zero, and UnsupportedError for dtypes that the framework does not have. Tensors with
    some such scales are logged, those of caches at once. octofold.models.load_checkpoint_into()
    loads the weights into a model.
    """
    if framework not in ("torch", "numpy"):
        raise invalid_argument(_NAME, "framework", "'torch' or 'numpy'", repr(framework))
    if framework == "numpy" and device not in (None, "cpu"):
        raise invalid_argument(_NAME, "device", "None or 'cpu' with NumPy", repr(device))
    contents = inspect_fp8(_NAME, path)
    for tensor in contents.others:
        if _CACHE_SCALE.search(tensor.name) and tensor.dtype in _OF_SCALES:
            _scale(tensor)
    return Checkpoint(contents, framework, device)


def _scale(
    tensor: CheckpointTensor, codes: CheckpointTensor | None = None
) -> "np.ndarray[Any, Any]":
    """Reads float32 scales. Logs invalid ones; raises if all are and a code is finite, not 0."""
    scale = _read(tensor).astype(np.float32)
    count = scale.size - int(np.count_nonzero(np.isfinite(scale) & (scale > 0)))
    text = f"{count} of {scale.size} scales are NaN, infinite, negative or zero"
    if count:
        warn_once(f"{tensor.file}: tensor '{tensor.name}': {text}")
    if codes is not None and count == scale.size:
        magnitudes = _read(codes).view(np.uint8) & 0x7F
        # Some who write checkpoints give codes that are all zero a scale of zero.
        if np.any((magnitudes > 0) & (magnitudes < 0x7F)):
            raise BadFormatError(f"{tensor.file}: tensor '{tensor.name}': {text}")
    return scale


def _read(tensor: CheckpointTensor) -> "np.ndarray[Any, Any]":
    """The values, in memory of their own."""
    if tensor.dtype not in _DTYPES:
        raise UnsupportedError(
            f"{_NAME}: tensor '{tensor.name}': expected one of {', '.join(_DTYPES)}, got "
            f"{tensor.dtype}"
        )
    data = np.empty(tensor.bytes, np.uint8)
    try:
        with open_regular(tensor.file) as file:
            file.seek(tensor.offset)
            _fill(file, data, tensor)
    except OSError as error:
        raise io_error(error, f"cannot read '{tensor.file}'") from error
    return data.view(_DTYPES[tensor.dtype]).reshape(tensor.shape)


def _fill(file: Any, data: "np.ndarray[Any, Any]", tensor: CheckpointTensor) -> None:
    """Large reads come in pieces."""
    done = 0
    while done < data.size:
        count = file.readinto(data.data[done:])
        if not count:
            raise BadFormatError(
                f"{tensor.file}: tensor '{tensor.name}': expected {data.size} bytes at "
                f"{tensor.offset}, got {done}: the file has changed since its header was read"
            )
        done += count
