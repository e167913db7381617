"""The quantizer and its config: which layers of a model become Octofold's, and how their weights
come in."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import torch
from diffusers.quantizers.base import DiffusersQuantizer
from diffusers.quantizers.quantization_config import QuantizationConfigMixin
from diffusers.utils import is_accelerate_available, logging
from torch import Tensor

from ..._core.errors import InvalidArgumentError, UnavailableError, invalid_argument, listed
from ...nn.autograd.fitting import is_fp8
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.conversion.fp8_layers import widen
from ...nn.conversion.picking import Conversion, grouped
from ...nn.layers.fp8_parameters import held, hold, joined, weight_of
from ...nn.recipes.kernels import has_bfloat16
from ..model_loading import (
    NAME,
    Devices,
    LoadingConfig,
    LoadingOptions,
    convert_linears,
)
from .bfl import bundled, codes_and_scale, is_bundle

_OPERATION: Final = "octofold.integrations.diffusers"
_CONFIG: Final = f"{_OPERATION}.OctofoldConfig"
_SCALES: Final = (".weight_scale_inv", ".weight_scale")
_log: Final = logging.get_logger("diffusers.octofold")


class _Method(StrEnum):
    """Diffusers reads the name of a method as a member of an enumeration."""

    OCTOFOLD = NAME


class OctofoldConfig(LoadingConfig, QuantizationConfigMixin):  # type: ignore[misc]
    """How from_pretrained(quantization_config=) casts weights, and how the layers compute.

    format: how weights are cast, an octofold.Format or its words, with scales "128x128", "channel"
        or "tensor".
    compute: "native": layers cast their input too, and multiply FP8 with FP8. "weight-only":
        activations have 16 bits, on any GPU. "auto": "native" where the GPU can, and on the CPU.
    experts: of transformers' config of this name, whose arguments are the same, so that
        PipelineQuantizationConfig takes quant_backend="octofold" for all parts of a pipeline. In
        Diffusers' models experts are linear layers like others.
    modules_to_not_convert: names, parts of names between dots, or regular expressions for names
        from their beginning, of modules that stay as they are. None: what Diffusers' layerwise
        casting leaves alone: norms, embeddings of positions and patches, the projections at both
        ends, and what the model's class names. In each case what the class keeps in FP32 stays so.

    Raises InvalidArgumentError, which names the argument.
    """

    operation = _CONFIG
    method = _Method.OCTOFOLD

    def to_diff_dict(self) -> dict[str, Any]:
        """The settings that are not as by default, which Diffusers shows."""
        plain = OctofoldConfig().to_dict()
        return {key: value for key, value in self.to_dict().items() if value != plain[key]}


def options_of(config: OctofoldConfig, model: Any) -> LoadingOptions:
    """The options of a config, checked again as it may be changed as it is loaded, for a model with
    weights in high precision. None: of a checkpoint that says itself what is in FP8."""
    names: Sequence[str] | None = ()
    if model is not None:
        names = config.modules_to_not_convert
        names = _patterns_of_casting(model) if names is None else names
    return LoadingOptions.checked(_CONFIG, config.format, config.compute, names)


def _patterns_of_casting(model: Any) -> list[str]:
    """Regular expressions for whole names, of those that layerwise casting searches names for. The
    same names fit, and with a name everything below it."""
    from diffusers.hooks.layerwise_casting import DEFAULT_SKIP_MODULES_PATTERN

    own = getattr(model, "_skip_layerwise_casting_patterns", None) or ()
    return [
        f"{pattern}" if pattern.startswith("^") else f".*(?:{pattern})[^.]*"
        for pattern in dict.fromkeys((*DEFAULT_SKIP_MODULES_PATTERN, *own))
    ]


class OctofoldQuantizer(DiffusersQuantizer):  # type: ignore[misc]
    """Made by from_pretrained() and from_single_file() for an OctofoldConfig. A model of it says in
    `model.hf_quantizer.report` what became of each linear layer."""

    quantization_config: OctofoldConfig
    use_keep_in_fp32_modules: Final = True
    """The model's class names modules to keep in FP32: Diffusers then loads them so."""
    saves_codes: Final = True
    """True if save_pretrained() is to be given codes, by octofold.nn.layers.saving."""

    def __init__(self, quantization_config: OctofoldConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self.report: Conversion | None = None
        self._dtype: torch.dtype | None = None
        self._names: tuple[str, ...] = ()
        self._bundles: set[str] = set()
        self._apart: dict[str, Tensor] = {}
        self._model: Any = None
        self._come: set[str] = set()

    def validate_environment(
        self, torch_dtype: Any = None, device_map: Any = None, **options: Any
    ) -> None:
        """Refuses what from_pretrained() was asked for and is not possible."""
        if not is_accelerate_available():
            raise UnavailableError(f"{_OPERATION}: expected the package accelerate")
        if isinstance(torch_dtype, torch.dtype) and torch_dtype.itemsize < 2:
            expected = "torch.bfloat16, torch.float16 or torch.float32, of what is not cast to FP8"
            raise invalid_argument(_OPERATION, "torch_dtype", expected, torch_dtype)
        if isinstance(device_map, dict) and "disk" in device_map.values():
            expected = "devices and 'cpu': Diffusers puts weights on disk before they can be cast"
            raise invalid_argument(_OPERATION, "device_map", expected, "'disk'")

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype:
        """The dtype of everything else: 16 bits, where nothing was asked for."""
        if torch_dtype is None:
            torch_dtype = torch.bfloat16 if has_bfloat16(Devices(None)("")) else torch.float16
            _log.info("octofold: torch_dtype is %s", torch_dtype)
        self._dtype = torch_dtype
        return torch_dtype

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: Any) -> list[str]:
        """Looks at the names that the checkpoint has. The model has none for scales."""
        self._names = tuple(loaded_keys)
        return [name for name in loaded_keys if not name.endswith(_SCALES)]

    def maybe_update_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Makes one weight of codes and scales, which may be in two files. If from_single_file()
        reads, the names may be others than the model's yet."""
        if not self._names:
            return bundled(state_dict)
        for path in self._layers_with_codes():
            if is_bundle(state_dict.get(f"{path}.weight")):
                continue
            names = [f"{path}.weight", *(f"{path}{scale}" for scale in _SCALES)]
            self._apart |= {name: state_dict.pop(name) for name in names if name in state_dict}
            codes, *scales = (self._apart.get(name) for name in names)
            scale = next((one for one in scales if one is not None), None)
            if codes is not None and scale is not None:
                state_dict[names[0]] = self._joined(path, codes, scale)
                for name in names:
                    self._apart.pop(name, None)
        return state_dict

    def check_if_quantized_param(
        self, model: Any, param_value: Any, param_name: str, state_dict: Any, **options: Any
    ) -> bool:
        """True if a checkpoint's tensor of this name is the weight of a layer in FP8."""
        path, _, name = param_name.rpartition(".")
        if held(model.get_submodule(path), name) is not None:
            return True
        if is_fp8(state_dict[param_name]):
            got = f"'{param_name}' in FP8 without"
            raise invalid_argument(_OPERATION, "checkpoint", "scales beside codes", got)
        return False

    def create_quantized_param(
        self,
        model: Any,
        param_value: Tensor,
        param_name: str,
        target_device: Any,
        state_dict: dict[str, Any] | None = None,
        unexpected_keys: Any = None,
        **options: Any,
    ) -> None:
        """Give a layer its weight, or the cast of one in high precision.

        param_value: in the dtype that everything else gets.
        state_dict: has it as it was in the file.
        """
        path, _, name = param_name.rpartition(".")
        layer = model.get_submodule(path)
        own = weight_of(layer, name)
        value: Tensor = param_value if state_dict is None else state_dict[param_name]
        if is_bundle(value):
            made = self._joined(path, *codes_and_scale(value))
        elif isinstance(value, Fp8Weight):
            made = value
        else:
            made = own.cast_like(value.to(target_device))
        hold(layer, made.to(target_device), name)  # type: ignore[arg-type]
        self._come.add(path)

    def _joined(self, path: str, codes: Tensor, scale: Tensor) -> Fp8Weight:
        own = weight_of(self._model.get_submodule(path))
        try:
            return joined(own, codes, scale)
        except InvalidArgumentError as error:
            text = f"{_OPERATION}: checkpoint: '{path}.weight', as the config says: {error}"
            raise InvalidArgumentError(text) from None

    def _process_model_before_weight_loading(
        self,
        model: Any,
        device_map: Any = None,
        state_dict: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if state_dict is not None:
            self._names = tuple(state_dict)
            self._bundles = {name for name, value in state_dict.items() if is_bundle(value)}
        in_codes = self._layers_with_codes()
        chosen = options_of(self.quantization_config, None if in_codes else model)
        format_of = dict.fromkeys(in_codes, chosen.format).get if in_codes else None
        where = Devices(device_map)
        report = convert_linears(_OPERATION, model, chosen, where, format_of, self._dtype)
        if missed := in_codes - set(report.converted):
            expected = "FP8 weights of linear layers that can be converted"
            raise invalid_argument(_OPERATION, "checkpoint", expected, listed(sorted(missed)))
        for name in report.converted:
            weight = weight_of(model.get_submodule(name))
            if weight.compute == "weight-only" and self._dtype == torch.float32:
                expected = "torch.bfloat16 or torch.float16, as compute is 'weight-only'"
                raise invalid_argument(_OPERATION, "torch_dtype", expected, self._dtype)
        self.report = report
        self._model = model
        for line in grouped(report.converted):
            _log.info("octofold: %s", line)
        model.register_to_config(quantization_config=self.quantization_config)

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        assert self.report is not None
        if lacking := {
            f"{path}.weight" for path in self.report.converted if path not in self._come
        }:
            expected = "all weights of linear layers (and offload_state_dict=False)"
            raise invalid_argument(
                _OPERATION, "checkpoint", expected, f"no {listed(sorted(lacking))}"
            )
        # Diffusers' layerwise casting would round biases too.
        skipped = getattr(model, "_skip_layerwise_casting_patterns", None) or ()
        own = (rf"^{re.escape(name)}$" for name in self.report.converted)
        model._skip_layerwise_casting_patterns = [*skipped, *own]
        return model

    @property
    def is_serializable(self) -> bool:
        """save_pretrained() writes codes and scales."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters can be trained over it."""
        return True

    @property
    def is_compileable(self) -> bool:
        """Its layers compile whole."""
        return True

    def get_special_dtypes_update(self, model: Any, torch_dtype: Any) -> dict[str, torch.dtype]:
        """The sizes of weights, for what plans where a model goes."""
        layers = [name for name, one in model.named_modules() if held(one) is not None]
        return dict.fromkeys((f"{name}.weight" for name in layers), torch.float8_e4m3fn)

    def get_cuda_warm_up_factor(self) -> int:
        """So many elements of 16 bits are taken for one of the model: a byte for each."""
        return 2

    def _dequantize(self, model: Any) -> Any:
        layers = {name: one for name, one in model.named_modules() if held(one) is not None}
        if away := [name for name, layer in layers.items() if layer.weight.is_meta]:
            expected = "weights in memory (remove the hooks that offload them)"
            raise InvalidArgumentError(
                f"{_OPERATION}: dequantize(): expected {expected}, got {listed(away)} on meta"
            )
        for layer in layers.values():  # one after another, so that memory never holds two of each
            widen(layer)
        kept = {key: value for key, value in model.config.items() if key != "quantization_config"}
        model._internal_dict = type(model.config)(kept)
        return model

    def _layers_with_codes(self) -> set[str]:
        """The layers with codes in the checkpoint, by its names."""
        return {name.removesuffix(".weight") for name in self._bundles} | {
            name.removesuffix(suffix)
            for name in self._names
            for suffix in _SCALES
            if name.endswith(suffix)
        }
