"""torchao: octofold.nn.Fp8Weight by its quantize_().

    import torchao
    from octofold.integrations.torchao import OctofoldFp8WeightConfig

    torchao.quantize_(model, OctofoldFp8WeightConfig())

Importing this module enters the config and the tensor into torchao's tables, so that everything
that takes a torchao config takes this one: transformers' TorchAoConfig, and torchao's safetensors.
Raises UnavailableError for a torchao that it does not know.
"""

from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor
from torch.nn import Module

from .._core.formats import format_of
from ..nn.casting.fp8_weight import Fp8Weight
from ..nn.layers.fp8_parameters import hold
from ..nn.layers.saving import TAKES_WEIGHTS
from ..nn.recipes.choice import require_compute
from .hosts import require

require("torchao")

from torchao.core.config import ALLOWED_AO_MODULES, AOBaseConfig  # noqa: E402
from torchao.prototype.safetensors.safetensors_utils import (  # noqa: E402
    ALLOWED_CLASSES,
    ALLOWED_TENSORS_SUBCLASSES,
)
from torchao.quantization.transform_module import (  # noqa: E402
    register_quantize_module_handler,
)

__all__ = ["OctofoldFp8WeightConfig"]

_CONFIG: Final = "OctofoldFp8WeightConfig"


@dataclass
class OctofoldFp8WeightConfig(AOBaseConfig):  # type: ignore[misc]
    """Weights in FP8, for torchao.quantize_() and whatever else takes a config of torchao's.

    format: how weights are cast, in the words of octofold.Format ("128x128", "e5m2 channel").
    compute: how layers compute, one of octofold.nn.Fp8Weight's words.

    transformers takes a model for one that may be trained (adapters over frozen weights) by this
    class's name, "…8Weight…".
    Raises InvalidArgumentError, which names the argument.
    """

    format: str = "128x128"
    compute: str = "auto"

    def __post_init__(self) -> None:
        self.format = str(format_of(_CONFIG, self.format))
        require_compute(_CONFIG, self.compute, Fp8Weight.COMPUTE)


@register_quantize_module_handler(OctofoldFp8WeightConfig)  # type: ignore[untyped-decorator]
def _quantize_module(
    module: Module, config: OctofoldFp8WeightConfig, *, parameter_name: str = "weight"
) -> Module:
    weight = getattr(module, parameter_name)
    hold(module, Fp8Weight.cast(weight, config.format, compute=config.compute), parameter_name)
    return module


def _of_file(qdata: Tensor, **parts: Any) -> Fp8Weight:
    return Fp8Weight(qdata, **parts)


# torchao's safetensors, and transformers', know the parts of a tensor by names of torchao's.
_weight: Any = Fp8Weight
_weight.qdata = property(lambda weight: weight.codes)
_weight.tensor_data_names = ["qdata", "scale"]
_weight.tensor_attribute_names = ["granularity", "dtype", *Fp8Weight.OPTIONS]
TAKES_WEIGHTS.add("torchao")
ALLOWED_AO_MODULES.add(__name__)  # where configs in files are looked for
ALLOWED_CLASSES[Fp8Weight.__name__] = _of_file
if Fp8Weight.__name__ not in ALLOWED_TENSORS_SUBCLASSES:
    ALLOWED_TENSORS_SUBCLASSES.append(Fp8Weight.__name__)
