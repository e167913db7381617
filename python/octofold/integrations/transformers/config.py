"""The quantization_config of models whose weights Octofold casts or reads."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from transformers.quantizers import register_quantization_config
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..._core.formats import Format, FormatLike
from ..model_loading import LoadingOptions

NAME: Final = "octofold"
_OPERATION: Final = "octofold.integrations.transformers.OctofoldConfig"


@register_quantization_config(NAME)
class OctofoldConfig(QuantizationConfigMixin):  # type: ignore[misc]
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

    def __init__(
        self,
        format: FormatLike | dict[str, Any] = "128x128",
        compute: str = "auto",
        experts: bool = True,
        modules_to_not_convert: Sequence[str] | None = None,
        **others: Any,
    ) -> None:
        """others: what a config file says besides: quant_method; and foreign, whether the
        checkpoint is in another library's FP8, as checkpoint_config() says. Diffusers compares the
        arguments with those of its own config of this name."""
        others.pop("quant_method", None)
        self.foreign = bool(others.pop("foreign", False))
        if others:
            raise TypeError(f"{_OPERATION}: unexpected {', '.join(sorted(others))}")
        self.quant_method = NAME
        self.format = asdict(format) if isinstance(format, Format) else format
        self.compute = compute
        self.experts = bool(experts)
        self.modules_to_not_convert = (
            list(modules_to_not_convert)
            if isinstance(modules_to_not_convert, tuple)
            else modules_to_not_convert
        )
        _ = self.options  # which are checked

    @property
    def options(self) -> LoadingOptions:
        """The options of the config, checked again: it may be changed as it is loaded."""
        return LoadingOptions.checked(
            _OPERATION, self.format, self.compute, self.modules_to_not_convert
        )
