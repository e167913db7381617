"""The quantizer: which modules of a model become Octofold's, and how their weights come in."""

from typing import Any, Final

import torch
from torch import Tensor
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer, register_quantizer
from transformers.utils import logging

from ..._core.errors import InvalidArgumentError, invalid_argument
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.casting.weight_layouts import Stacks
from ...nn.conversion.fp8_layers import widen
from ...nn.conversion.gated_mlp import fuse_gated_mlps
from ...nn.conversion.picking import grouped
from ...nn.layers.fp8_parameters import held, weight_of
from ..model_loading import NAME, Devices, convert_linears
from .checkpoints import Contents, OctofoldConfig, converters_of, joining, marked
from .experts import STACKED, convert_experts_of, is_experts

_OPERATION: Final = "octofold.integrations.transformers"
_log: Final = logging.get_logger("transformers.octofold")


@register_quantizer(NAME)
class OctofoldQuantizer(HfQuantizer):  # type: ignore[misc]
    """Made by from_pretrained() for a config of OctofoldConfig. A model of it says in
    `model.hf_quantizer.report` what became of each layer."""

    quantization_config: OctofoldConfig
    saves_codes: Final = True
    """True if save_pretrained() is to be given codes, by octofold.nn.layers.saving."""

    def __init__(self, quantization_config: OctofoldConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self.report: dict[str, str] = {}
        self._contents: Contents | None = None
        self._on_disk: tuple[str, ...] = ()

    def validate_environment(self, *arguments: Any, device_map: Any = None, **options: Any) -> None:
        """device_map: as from_pretrained() was given it, and again when its devices are known."""
        places = device_map.items() if isinstance(device_map, dict) else ()
        self._on_disk = tuple(name for name, place in places if place == "disk")
        if self._on_disk and not self.pre_quantized:
            # transformers would read the weight from the source's file, and take it for codes.
            raise invalid_argument(
                "from_pretrained",
                "device_map",
                "no disk where weights are cast as they are loaded (save_pretrained() once, and "
                "load that folder)",
                "'disk'",
            )

    @property
    def quantized_element_size(self) -> float:
        """A byte, for what plans where a model goes."""
        return 1

    @property
    def is_trainable(self) -> bool:
        """Adapters can be trained over it."""
        return True

    @property
    def is_compileable(self) -> bool:
        """Its layers compile whole."""
        return True

    def is_serializable(self) -> bool:
        """save_pretrained() writes codes and scales."""
        return True

    def get_state_dict_and_metadata(self, model: Any) -> tuple[Any, dict[str, str]]:
        """The state and the metadata that save_pretrained() writes."""
        return marked(model.state_dict()), {}

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        """True if a checkpoint's tensor of this name is to be cast as it is read."""
        path, _, name = param_name.rpartition(".")
        return held(model.get_submodule(path), name) is not None

    def get_quantize_ops(self) -> ConversionOps:
        """The cast, as transformers calls it with each weight that it has read."""
        return _Cast()

    def _process_model_before_weight_loading(
        self,
        model: Any,
        dtype: Any = None,
        device_map: Any = None,
        checkpoint_files: Any = None,
        **options: Any,
    ) -> None:
        wanted = dtype or model.dtype
        if not self.pre_quantized and wanted not in (torch.float32, torch.float16, torch.bfloat16):
            expected = "float32, float16 or bfloat16, of which layers with FP8 weights answer"
            raise invalid_argument("from_pretrained", "dtype", expected, wanted)
        # transformers' own choice: output embeddings, what is tied, and the last module, which is
        # the head of a classifier (it names that by its bias, where it has one).
        names = self.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
        heads = [name.removesuffix(".bias") for name in names]
        options_of_config = self.quantization_config.options.keeping(heads)
        where = Devices(device_map)
        if self.pre_quantized:
            self._contents = Contents(checkpoint_files, model, self.quantization_config.foreign)
        found: dict[str, str] = {}
        if self.quantization_config.experts:
            weights_of = None if self._contents is None else self._contents.of_module
            found |= convert_experts_of(model, options_of_config, where, weights_of, wanted)
        try:
            found_in = None if self._contents is None else self._contents.format_of
            converted = convert_linears(
                _OPERATION, model, options_of_config, where, found_in, wanted
            )
            found |= converted.converted
        except InvalidArgumentError:
            if not found and self._contents is None:
                raise  # else there are only weights that are dequantized as they are read
        self.report = found
        for line in grouped(found):
            _log.info("octofold: %s", line)

    def update_weight_conversions(self, weight_conversions: Any, *_: Any) -> Any:
        """Renames what another family's checkpoint calls its codes and scales. (transformers gives
        the model too from 5.20 on.)"""
        if self._contents is None:
            return weight_conversions
        self._contents.on_disk = self._on_disk
        if not self.quantization_config.foreign:
            return [*weight_conversions, *joining(self._contents)]
        return converters_of(self._contents, weight_conversions, self._contents.model)

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        for name, module in model.named_modules():
            if is_experts(module):
                _require_weights(name, module)
        self.report |= fuse_gated_mlps(model)
        # The names in what the model saves are those of its modules.
        model._weight_conversions = []
        self.quantization_config.foreign = False
        self._contents = None
        return model

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        if stacks := [type(module).__name__ for module in model.modules() if is_experts(module)]:
            expected = "a model without experts in FP8 (OctofoldConfig(experts=False))"
            raise invalid_argument("dequantize", "model", expected, stacks[0])
        for module in model.modules():
            if held(module) is not None:
                widen(module, dtype)
        return model


class _Cast(ConversionOps):  # type: ignore[misc]
    """From a weight in high precision to codes and scales."""

    @torch.no_grad()
    def convert(
        self, input_dict: dict[str, Any], model: Any = None, **options: Any
    ) -> dict[str, Tensor]:
        """input_dict: by the parameter's full name, the weight."""
        made: dict[str, Tensor] = {}
        for full_name, value in input_dict.items():
            weight: Tensor = value[0] if isinstance(value, list) else value
            path, _, name = full_name.rpartition(".")
            module = model.get_submodule(path)
            numbers = getattr(module, "in_files", Stacks()).of_files(name, weight)
            made[full_name] = Fp8Weight(weight_of(module, name).cast_like(numbers))
        return made


def _require_weights(path: str, experts: Any) -> None:
    for stack in STACKED:
        weight = getattr(experts, stack)
        if not (weight.is_meta or hasattr(weight, "_is_hf_initialized")):
            raise invalid_argument("from_pretrained", "checkpoint", f"'{path}.{stack}'", "none")
