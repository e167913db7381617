"""The common part of hosts that load models weight by weight: the options, which layers of a model
without memory become FP8 ones.

A host makes its model on the device "meta", lets convert_linears() give it FP8 weights, and fills
each by Fp8Weight.cast_like() as it reads it: the model is never there in high precision as a whole.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

import torch
from torch.nn import Module

from .._core.errors import invalid_argument
from .._core.formats import Format, FormatLike, format_of
from .._core.ops import scale_shape
from .._core.scaled_tensor import ScaledTensor
from .._core.torch import DTYPES
from ..nn.conversion.fp8_layers import frozen_weight, words_of
from ..nn.conversion.linear import CONV1D
from ..nn.conversion.picking import Conversion, pick
from ..nn.layers.conv1d import conv1ds
from ..nn.layers.fp8_parameters import hold
from ..nn.recipes.choice import require_compute

NAME: Final = "octofold"
"""The quant_method of hosts' configs."""

_OF_WEIGHTS: Final = ("128x128", "channel", "tensor")


@dataclass(frozen=True)
class LoadingOptions:
    """How the weights of a model are cast while it is loaded, and how its layers compute.

    format: an octofold.Format or its words, with scales 128x128, channel or tensor.
    compute: "native": a layer casts its input too, and multiplies FP8 with FP8, where the GPU can,
        else 16 bits. "weight-only": activations have 16 bits, on any GPU. "auto": as "native", but
        16 bits for few tokens.
    modules_to_not_convert: names, or parts of names between dots, or regular expressions for names
        from their beginning, of modules whose layers stay as they are; beside output heads and what
        octofold.nn.convert() leaves alone.
    """

    format: Format
    compute: str
    modules_to_not_convert: tuple[str, ...]

    @classmethod
    def checked(
        cls, operation: str, format: Any, compute: Any, modules_to_not_convert: Any
    ) -> "LoadingOptions":
        """format: also the fields of a Format, as a file has them.
        Raises InvalidArgumentError, which names the argument."""
        if isinstance(format, dict):
            try:
                format = Format(**format)
            except TypeError as error:
                expected = "the fields of an octofold.Format"
                raise invalid_argument(operation, "format", expected, error) from None
        format = format_of(operation, format)
        if format.granularity not in _OF_WEIGHTS:
            expected = f"scales of a weight, {', '.join(_OF_WEIGHTS)}"
            raise invalid_argument(operation, "format", expected, format.granularity)
        require_compute(operation, compute)
        return cls(format, compute, _patterns(operation, modules_to_not_convert))

    def keeping(self, names: Iterable[str]) -> "LoadingOptions":
        """The same that keeps modules of these names too."""
        more = tuple(re.escape(name) for name in names)
        return replace(self, modules_to_not_convert=self.modules_to_not_convert + more)

    def keeps(self, name: str) -> bool:
        """True if the user wants a module of this name as it is."""
        return any(
            re.match(rf"(?:{pattern})(?:$|\.)", name) or f".{pattern}." in f".{name}."
            for pattern in self.modules_to_not_convert
        )


class LoadingConfig:
    """The base of a host's quantization_config, from an argument or from the file of a model.
    Diffusers compares the arguments of its class with those of transformers' class.

    format, compute, modules_to_not_convert: as in LoadingOptions. experts: whether expert blocks
    are cast too.
    """

    operation: ClassVar[str]
    method: ClassVar[str] = NAME
    """The quant_method, in the type that the host takes it in."""

    def __init__(
        self,
        format: FormatLike | dict[str, Any] = "128x128",
        compute: str = "auto",
        experts: bool = True,
        modules_to_not_convert: Sequence[str] | None = None,
        **others: Any,
    ) -> None:
        """others: what a config file says besides."""
        self._read(others)
        if others:
            raise TypeError(f"{self.operation}: unexpected {', '.join(sorted(others))}")
        self.quant_method = self.method
        self.format = asdict(format) if isinstance(format, Format) else format
        self.compute = compute
        self.experts = bool(experts)
        self.modules_to_not_convert = modules_to_not_convert
        _ = self.options  # which are checked
        if modules_to_not_convert is not None:
            self.modules_to_not_convert = list(modules_to_not_convert)

    def _read(self, others: dict[str, Any]) -> None:
        """Takes out of a file's entries those that are known here."""
        others.pop("quant_method", None)

    @property
    def options(self) -> LoadingOptions:
        """The options of the config, checked again: it may be changed as it is loaded."""
        return LoadingOptions.checked(
            self.operation, self.format, self.compute, self.modules_to_not_convert
        )


def convert_linears(
    operation: str,
    model: Module,
    options: LoadingOptions,
    device_of: Callable[[str], torch.device],
    format_of: Callable[[str], Format | None] | None = None,
    dtype: torch.dtype | None = None,
) -> Conversion:
    """Give each linear layer of a model on "meta" an FP8 weight.

    device_of: by the layer's name, the device where it will run.
    format_of: of a checkpoint in FP8, by the layer's name, how it has the weight; None: not in FP8.
        Without this, weights are cast while they are loaded.
    dtype: that the weights stand for; None: that of the layer.
    Raises InvalidArgumentError for a model without such layers.
    """
    modules = dict(model.named_modules())
    alone = conv1ds(model, CONV1D) | {
        id(module): "modules_to_not_convert names it"
        for name, module in modules.items()
        if options.keeps(name)
    }
    if format_of is not None:
        alone |= {
            id(module): "the checkpoint has its weight in high precision"
            for name, module in modules.items()
            if format_of(name) is None
        }
    everything = None if format_of is None else (lambda *_: True)
    picked = pick(operation, model, everything, but=alone)
    converted: dict[str, str] = {}
    for name, linear in picked.layers.items():
        format = options.format if format_of is None else format_of(name)
        assert format is not None
        empty = empty_weight(format, linear.out_features, linear.in_features)
        weight = frozen_weight(empty, dtype or linear.weight.dtype, options.compute, format)
        hold(linear, weight)
        converted[name] = words_of(weight, device_of(name))
    return Conversion(model, converted, picked.left_alone)


def empty_weight(
    format: Format, rows: int, columns: int, matrices: int | None = None
) -> ScaledTensor:
    """A weight [rows, columns], or a stack [matrices, rows, columns], on "meta"."""
    shape = (rows, columns) if matrices is None else (matrices, rows, columns)
    with torch.device("meta"):
        codes = torch.empty(shape, dtype=DTYPES[format.dtype])
        scales = scale_shape(format.granularity, *shape, matrices=matrices)
        scale = torch.empty(scales, dtype=torch.float32)
        return ScaledTensor(codes, scale, format.granularity)


def _patterns(operation: str, names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    if isinstance(names, str) or not isinstance(names, Sequence):
        expected = "a list of names or regular expressions, or None"
        raise invalid_argument(operation, "modules_to_not_convert", expected, repr(names))
    for name in names:
        try:
            re.compile(name)
        except (re.error, TypeError) as error:
            expected = "names or regular expressions"
            got = f"{name!r} ({error})"
            raise invalid_argument(operation, "modules_to_not_convert", expected, got) from None
    return tuple(names)


class Devices:
    """The device where a layer will run, by its name.

    device_map: as accelerate takes it: devices by names of modules; or one device for all; or a
        word by which the host spreads the model later; or None.

    What lies on the CPU or on disk runs on the GPU if there is one: such layers are offloaded, and
    a model that is loaded without a map is moved later.
    """

    def __init__(self, device_map: Any) -> None:
        self._map = device_map if isinstance(device_map, dict) else None
        self._all = None if isinstance(device_map, dict | str) else device_map

    def __call__(self, name: str) -> torch.device:
        device: Any = self._all
        while self._map is not None and device is None:
            device = self._map.get(name)
            if not name:
                break
            name = name.rpartition(".")[0]
        device = f"cuda:{device}" if isinstance(device, int) else device
        if device in (None, "cpu", "disk", torch.device("cpu")):
            if not torch.cuda.is_available():
                return torch.device("cpu")
            device = "cuda"
        found = torch.device(device)
        if found.type == "cuda" and found.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        return found
