"""FP8 checkpoints, of Octofold's own and of other families, as transformers loads them: their
config, which modules of the model they have in FP8, and what their tensors are called there."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    ConversionOps,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)
from transformers.quantizers import register_quantization_config
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..._checkpoint import inspect_fp8
from ..._core.errors import BadFormatError, UnsupportedError
from ..._core.files import open_regular
from ..._core.formats import Format
from ..._core.ops import scale_shape
from ..._core.scaled_tensor import ScaledTensor
from ..._load_checkpoint import OF_SERVERS
from ...nn.autograd.fitting import is_fp8
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.layers.fp8_parameters import held, joined
from ..model_loading import NAME, LoadingConfig
from .experts import STACKED, is_experts


@register_quantization_config(NAME)
class OctofoldConfig(LoadingConfig, QuantizationConfigMixin):  # type: ignore[misc]
    """How from_pretrained(quantization_config=) casts weights, and how the layers compute.

    format: how weights are cast, an octofold.Format or its words, with scales "128x128", "channel"
        or "tensor".
    compute: "native": layers cast their input too, and multiply FP8 with FP8. "weight-only":
        activations have 16 bits, on any GPU. "auto": "native" where the GPU can, and on the CPU,
        but 16 bits for few tokens.
    experts: whether expert blocks (Mixtral, Qwen3-MoE, DeepSeek-V3, gpt-oss and their like) are
        cast too, with "128x128" scales. They compute natively, on GPUs with FP8 units and the CPU,
        and stay as they are on other GPUs and with "weight-only".
    modules_to_not_convert: names, parts of names between dots, or regular expressions for names
        from their beginning, of modules that stay as they are; beside output heads.

    Raises InvalidArgumentError, which names the argument.
    """

    operation = "octofold.integrations.transformers.OctofoldConfig"

    def _read(self, others: dict[str, Any]) -> None:
        """foreign: True of a checkpoint in another library's FP8, as checkpoint_config() says."""
        super()._read(others)
        self.foreign = bool(others.pop("foreign", False))


_CODES: Final = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2"}
_OF_SERVERS: Final = (r"input_scale$", r"activation_scale$", OF_SERVERS)
"""Names of what no module has: static scales of inputs, and servers' numbers."""


def checkpoint_config(name: str, compute: str = "auto", **options: Any) -> Any:
    """The config of a model whose checkpoint is in FP8, of any family that
    octofold.inspect_checkpoint() knows, for from_pretrained(name, config=): its layers become
    Octofold's. (from_pretrained(quantization_config=) is refused by transformers for checkpoints
    that have a quantization_config already.)

    name: as for AutoConfig.from_pretrained(), which takes the options.
    compute: as in OctofoldConfig.
    """
    config = AutoConfig.from_pretrained(name, **options)
    holders = [config, config.get_text_config(decoder=True)]
    for holder in holders:
        if getattr(holder, "quantization_config", None) is not None:
            del holder.quantization_config
    config.quantization_config = OctofoldConfig(compute=compute, foreign=True).to_dict()
    return config


@dataclass(frozen=True)
class Weight:
    """A weight in FP8, as a checkpoint has it."""

    codes: str
    scale: str | None
    """Names of tensors; None: the codes are the values."""
    format: Format
    shape: tuple[int, ...]


class Contents:
    """The weights in FP8 of a checkpoint, by the names that the model has for them."""

    def __init__(self, files: Sequence[str], model: Any, foreign: bool) -> None:
        """foreign: whether it is another library's: inspect_checkpoint() knows. In Octofold's own
        the tensors have the names of the model's parameters, and of scales beside them."""
        for file in files:
            if not file.endswith(".safetensors"):
                raise UnsupportedError(
                    f"octofold.integrations.transformers: expected safetensors, got {file}"
                )
        self.model = model
        self.on_disk: tuple[str, ...] = ()
        """Modules that transformers writes to disk again, which it can do with numbers alone."""
        found = _inspected(files) if foreign else _own(files)
        mapping = get_model_conversion_mapping(model) if foreign else []
        self._renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, WeightConverter)]
        state, prefix = model.state_dict(), model.base_model_prefix
        self.weights: dict[str, list[Weight]] = {}
        """By the model's name: several where it stacks what the checkpoint has apart."""
        for name, weight in found.items():
            target, _ = rename_source_key(name, self._renamings, converters, prefix, state)
            self.weights.setdefault(target, []).append(weight)

    def format_of(self, layer: str) -> Format | None:
        """How the weight of a linear layer is cast; None: it is not in FP8."""
        found = self.weights.get(f"{layer}.weight", [])
        return found[0].format if len(found) == 1 else None

    def of_module(self, path: str) -> list[Weight]:
        """The weights of a module of experts."""
        names = (f"{path}.{name}" if path else name for name in STACKED)
        return [weight for name in names for weight in self.weights.get(name, [])]

    def renamed(self, name: str) -> str:
        """A tensor's name as converters see it."""
        for renaming in self._renamings:
            name, _ = renaming.rename_source_key(name)
        return name


def _inspected(files: Sequence[str]) -> dict[str, Weight]:
    path = Path(files[0])
    contents = inspect_fp8("from_pretrained", path if len(files) == 1 else path.parent)
    return {
        weight.name: Weight(
            weight.codes.name,
            None if weight.scale is None else weight.scale.name,
            Format(_CODES[weight.codes.dtype], weight.granularity),
            weight.codes.shape,
        )
        for weight in contents.weights
    }


def _own(files: Sequence[str]) -> dict[str, Weight]:
    shapes: dict[str, tuple[int, ...]] = {}
    codes: dict[str, str] = {}
    for file in files:
        open_regular(file).close()
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                part = tensors.get_slice(name)
                shapes[name] = tuple(part.get_shape())
                if part.get_dtype() in _CODES:
                    codes[name] = _CODES[part.get_dtype()]
                    is_marked = len(shapes[name]) > 2 and shapes[name][-1] == 1
                    shapes[name] = shapes[name][:-1] if is_marked else shapes[name]
    found: dict[str, Weight] = {}
    for name, dtype in codes.items():
        scale = next((n for n in (f"{name}_scale_inv", f"{name}_scale") if n in shapes), None)
        if scale is None:
            raise BadFormatError(f"{files[0]}: tensor '{name}': expected scales beside it")
        granularity = _granularity(shapes[name], scale, shapes[scale])
        found[name] = Weight(name, scale, Format(dtype, granularity), shapes[name])
    return found


def _granularity(shape: tuple[int, ...], scale: str, scales: tuple[int, ...]) -> str:
    """By what scales of an Fp8Weight are called, and their shape."""
    if scale.endswith("_inv"):
        return "128x128"
    for granularity in ("channel", "tensor", "1x128"):
        if scales == scale_shape(granularity, *shape):
            return granularity
    raise BadFormatError(f"tensor '{scale}': expected scales of a weight {shape}, got {scales}")


def marked(state: dict[str, Any]) -> dict[str, Any]:
    """A state_dict() whose codes have one dimension more, of size 1. transformers without this
    plug knows no OctofoldConfig, and takes what a file has for numbers: it refuses the shape."""
    return {key: value.unsqueeze(-1) if is_fp8(value) else value for key, value in state.items()}


def joining(contents: Contents) -> Iterator[Any]:
    """Transforms of codes and scales, marked() ones too, to a layer's weight, unless it is a stack
    of what is apart in the file. They fit all that is called as codes are, and so come last."""
    spelled: dict[tuple[str, str], set[str]] = {}
    for target, weights in contents.weights.items():
        own = _held(contents.model, target)
        if own is not None and len(weights[0].shape) == own.dim():
            codes, scale = (
                contents.renamed(name).rpartition(".")[2] if name else ""
                for name in (weights[0].codes, weights[0].scale)
            )
            ending = target.rpartition(".")[2]
            spelled.setdefault((codes, ending), set()).update({scale} - {""})
    for (codes, ending), scales in spelled.items():
        sources = [rf"\.{re.escape(one)}$" for one in (codes, *sorted(scales))]
        yield WeightConverter(sources, f".{ending}", [_AsHeld(contents.on_disk)])


def converters_of(contents: Contents, converters: Sequence[Any], model: Any) -> list[Any]:
    """The transforms with which transformers reads a checkpoint in FP8: those of the model, and
    before them what puts scales into their places, or numbers into modules without FP8."""
    ignored = {*(model._keys_to_ignore_on_load_unexpected or ()), *_OF_SERVERS}
    model._keys_to_ignore_on_load_unexpected = ignored
    made: list[Any] = []
    for target, weights in contents.weights.items():
        first = weights[0]
        if _held(model, target) is not None:
            continue
        if len(weights) == 1 and first.scale is not None:
            names = (contents.renamed(name) for name in (first.codes, first.scale))
            patterns = [rf"^{re.escape(name)}$" for name in names]
            made.append(WeightConverter(patterns, target, [_Dequantize(first.format.granularity)]))
    made += _with_experts(contents, converters, model)
    return [*made, *joining(contents)]


def _with_experts(contents: Contents, converters: Sequence[Any], model: Any) -> Iterator[Any]:
    """The model's transforms. Where experts are a matrix each in the file: in the place of each
    that stacks them, one that stacks codes and scales; or one that stacks the numbers."""
    stacked = [weights for weights in contents.weights.values() if len(weights) > 1]
    scales = {
        (weight.scale.rpartition(".")[2], weight.format.granularity)
        for weights in stacked
        for weight in weights
        if weight.scale is not None
    }
    if len(scales) > 1:
        got = ", ".join(sorted(f"{granularity} in '{name}'" for name, granularity in scales))
        raise UnsupportedError(
            "octofold.integrations.transformers: expected scales of one kind for all experts, "
            f"which the model stacks, got {got}"
        )
    native = any(is_experts(module) for module in model.modules())
    for converter in converters:
        sources = list(converter._original_source_patterns)
        targets = list(converter._original_target_patterns)
        if not scales or not all(".experts." in one and one.endswith(".weight") for one in sources):
            yield converter
            continue
        ((scale, granularity),) = scales
        of_scales = [f"{one.removesuffix('weight')}{scale}" for one in sources]
        operations = [_Dequantize(granularity), *converter.operations]
        if native:
            operations = [_Stacked(converter.operations), _AsHeld(contents.on_disk)]
        both = [f"{one}$" for one in (*sources, *of_scales)]
        yield _like(converter, both, targets, operations)


def _like(converter: Any, sources: list[str], targets: list[str], operations: list[Any]) -> Any:
    """A transform of the same part of the model. (transformers has copy() for it from 5.20 on.)"""
    made: Any = WeightConverter(sources, targets, operations)
    for name in ("scope_prefix", "base_model_prefix", "force_cpu"):
        if hasattr(converter, name):
            setattr(made, name, getattr(converter, name))
    return made


class _Stacked(ConversionOps):  # type: ignore[misc]
    """Codes and scales of all experts, each stacked as the model stacks weights."""

    hf_quantizer = True
    """By which transformers knows that what it reads is not to be converted before."""

    def __init__(self, operations: Sequence[Any]) -> None:
        self._operations = operations

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], **others: Any
    ) -> dict[str, Tensor]:
        half = len(source_patterns) // 2
        made: dict[str, Tensor] = {}
        for patterns in (source_patterns[:half], source_patterns[half:]):
            tensors = {pattern: input_dict.pop(pattern) for pattern in patterns}
            for operation in self._operations:
                tensors = operation.convert(tensors, source_patterns=patterns, **others)
            (made[patterns[0]],) = tensors.values()
        return made


class _AsHeld(ConversionOps):  # type: ignore[misc]
    """An Fp8Weight of codes and scales as the module has it: families have scales of [out, 1] or []
    for [out] and [1], and marked() codes of [out, in, 1]."""

    hf_quantizer = True
    """By which transformers knows that what it reads is not to be converted before."""

    def __init__(self, on_disk: tuple[str, ...] = ()) -> None:
        self._on_disk = on_disk

    def convert(
        self,
        input_dict: dict[str, Any],
        full_layer_name: str = "",
        model: Any = None,
        **others: Any,
    ) -> dict[str, Tensor]:
        tensors = [one[0] if isinstance(one, list) else one for one in input_dict.values()]
        path, _, name = full_layer_name.rpartition(".")
        own = getattr(model.get_submodule(path), name)
        if not isinstance(own, Fp8Weight):
            (tensor,) = tensors
            return {full_layer_name: tensor.to(own.dtype)}
        codes = next(one for one in tensors if is_fp8(one))
        ones = torch.ones(own.scale.shape, device=codes.device)
        scale = next((one for one in tensors if one is not codes), ones)
        weight = joined(own, codes.reshape(own.shape), scale, full_layer_name)
        on_disk = any(f"{path}.".startswith(f"{part}.") for part in self._on_disk)
        return {full_layer_name: weight.dequantize() if on_disk else Fp8Weight(weight)}


class _Dequantize(ConversionOps):  # type: ignore[misc]
    """The numbers of codes and scales: of one weight, or of lists of them by their patterns."""

    hf_quantizer = True
    """By which transformers knows that what it reads is not to be converted before."""

    def __init__(self, granularity: str) -> None:
        self._granularity = granularity

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        full_layer_name: str = "",
        model: Any = None,
        **_: Any,
    ) -> dict[str, Any]:
        half = len(source_patterns) // 2
        made: dict[str, Any] = {}
        for of_codes, of_scales in zip(source_patterns[:half], source_patterns[half:], strict=True):
            pairs = zip(input_dict[of_codes], input_dict[of_scales], strict=True)
            name = full_layer_name if half == 1 else of_codes
            made[name] = [self._numbers(*pair, model.dtype) for pair in pairs]
        return made

    def _numbers(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        matrices = codes.shape[0] if codes.dim() > 2 else None
        shape = scale_shape(self._granularity, *codes.shape, matrices=matrices)
        scaled = ScaledTensor(codes, scale.float().reshape(shape), self._granularity)
        numbers: Tensor = scaled.dequantize(dtype)
        return numbers


def _held(model: Any, parameter: str) -> Fp8Weight | None:
    path, _, name = parameter.rpartition(".")
    try:
        return held(model.get_submodule(path), name)
    except AttributeError:
        return None
