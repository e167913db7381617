"""The quantization_config of Diffusers' models whose weights Octofold casts."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Final

from diffusers.quantizers.quantization_config import QuantizationConfigMixin

from ..._core.formats import Format, FormatLike
from ..model_loading import LoadingOptions

NAME: Final = "octofold"
_OPERATION: Final = "octofold.integrations.diffusers.OctofoldConfig"


class _Method(StrEnum):
    """Diffusers reads the name of a method as a member of an enumeration."""

    OCTOFOLD = NAME


class OctofoldConfig(QuantizationConfigMixin):  # type: ignore[misc]
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

    def __init__(
        self,
        format: FormatLike | dict[str, Any] = "128x128",
        compute: str = "auto",
        experts: bool = True,
        modules_to_not_convert: Sequence[str] | None = None,
        **others: Any,
    ) -> None:
        """others: what a config file says besides: quant_method."""
        others.pop("quant_method", None)
        if others:
            raise TypeError(f"{_OPERATION}: unexpected {', '.join(sorted(others))}")
        self.quant_method = _Method.OCTOFOLD
        self.format = asdict(format) if isinstance(format, Format) else format
        LoadingOptions.checked(_OPERATION, self.format, compute, modules_to_not_convert)
        self.compute = compute
        self.experts = bool(experts)
        self.modules_to_not_convert = (
            None if modules_to_not_convert is None else list(modules_to_not_convert)
        )

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
    return LoadingOptions.checked(_OPERATION, config.format, config.compute, names)


def _patterns_of_casting(model: Any) -> list[str]:
    """Regular expressions for whole names, of those that layerwise casting searches names for. The
    same names fit, and with a name everything below it."""
    from diffusers.hooks.layerwise_casting import DEFAULT_SKIP_MODULES_PATTERN

    own = getattr(model, "_skip_layerwise_casting_patterns", None) or ()
    return [
        f"{pattern}" if pattern.startswith("^") else f".*(?:{pattern})[^.]*"
        for pattern in dict.fromkeys((*DEFAULT_SKIP_MODULES_PATTERN, *own))
    ]
