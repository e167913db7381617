"""torchao: FP8 weights of ours as one of its tensors, made by its quantize_().

    import torchao
    from octofold.integrations.torchao import OctofoldFp8WeightConfig

    torchao.quantize_(model, OctofoldFp8WeightConfig())

Importing this module enters the config and the tensor into torchao's tables, so that everything
that takes a torchao config takes this one: transformers' TorchAoConfig, and torchao's safetensors.
Raises UnavailableError for a torchao that it does not know.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import return_and_correct_aliasing

from .._core.errors import invalid_argument
from .._core.formats import format_of
from .._core.scaled_tensor import ScaledTensor
from .._ops.quantize import quantize
from ..models.layerwise.products import fp8_linear
from ..nn.autograd.fitting import require_input
from ..nn.casting.casts import walkable
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
from torchao.utils import TorchAOBaseTensor  # noqa: E402

__all__ = ["OctofoldFp8WeightConfig", "OctofoldTensor"]

_CONFIG: Final = "OctofoldFp8WeightConfig"
_aten: Final = torch.ops.aten


@dataclass
class OctofoldFp8WeightConfig(AOBaseConfig):  # type: ignore[misc]
    """Weights in FP8, for torchao.quantize_() and whatever else takes a config of torchao's.

    format: how weights are cast, in the words of octofold.Format ("128x128", "e5m2 channel").
    compute: "native": inputs are cast too, with a scale for 128 values of a row. "weight-only":
        they are multiplied as they are. "auto": as the GPU and the number of tokens have it.

    transformers takes a model for one that may be trained (adapters over frozen weights) by this
    class's name, "…8Weight…".
    Raises InvalidArgumentError, which names the argument.
    """

    format: str = "128x128"
    compute: str = "auto"

    def __post_init__(self) -> None:
        self.format = str(format_of(_CONFIG, self.format))
        require_compute(_CONFIG, self.compute)


class OctofoldTensor(TorchAOBaseTensor):  # type: ignore[misc]
    """A frozen weight [out, in] in FP8, for torch a tensor of `dtype`. `scaled` is it as an
    octofold.ScaledTensor, which shares its memory.

    qdata: codes [out, in], e4m3 or e5m2.
    scale: float32, in the shape that the granularity has (octofold.ops.scale_shape()).
    granularity: which elements share a scale: "tensor", "channel", "1x128" or "128x128".
    compute: as in OctofoldFp8WeightConfig.
    dtype: of the numbers, which dequantize() gives.

    torch.nn.functional.linear() with it has gradients by x and bias. Slices and splits of both
    dimensions are views, between scales. It can be moved, copied, pinned, saved by torch.save()
    and, by torchao, to safetensors. Other operations raise torchao's NotImplementedError.
    """

    tensor_data_names: Final = ["qdata", "scale"]
    tensor_attribute_names: Final = ["granularity", "compute", "dtype"]

    qdata: Tensor
    scale: Tensor
    granularity: str
    compute: str

    def __new__(
        cls, qdata: Tensor, scale: Tensor, granularity: str, compute: str, dtype: torch.dtype
    ) -> "OctofoldTensor":
        tensor: OctofoldTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            qdata.shape,
            strides=qdata.stride(),
            dtype=dtype,
            device=qdata.device,
            requires_grad=False,
        )
        return tensor

    def __init__(
        self, qdata: Tensor, scale: Tensor, granularity: str, compute: str, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.qdata, self.scale = qdata, scale
        self.granularity, self.compute = granularity, compute

    @classmethod
    def from_weight(cls, weight: Tensor, config: OctofoldFp8WeightConfig) -> "OctofoldTensor":
        """Cast a weight [out, in] of bfloat16, float16 or float32. Raises InvalidArgumentError."""
        if weight.dim() != 2:
            raise invalid_argument(_CONFIG, "weight", "[out, in]", list(weight.shape))
        scaled = quantize(walkable(weight.detach()), format_of(_CONFIG, config.format))
        return cls._of(scaled, config.compute, weight.dtype)

    @classmethod
    def _of(cls, scaled: ScaledTensor, compute: str, dtype: torch.dtype) -> "OctofoldTensor":
        return cls(scaled.data, scaled.scale, scaled.granularity, compute, dtype)

    @property
    def scaled(self) -> ScaledTensor:
        """Codes and scales."""
        return ScaledTensor(self.qdata, self.scale, self.granularity)

    def like(self, scaled: ScaledTensor, dtype: torch.dtype | None = None) -> "OctofoldTensor":
        """Another with these codes and scales."""
        return type(self)._of(scaled, self.compute, dtype or self.dtype)

    def dequantize(self, output_dtype: torch.dtype | None = None) -> Tensor:
        """The numbers [out, in], in float32, float16 or bfloat16."""
        numbers: Tensor = self.scaled.dequantize(output_dtype or self.dtype)
        return numbers

    def _quantization_type(self) -> str:
        """The text on a layer that torchao shows."""
        return f"{self.qdata.dtype}, {self.granularity}, compute={self.compute}"


@register_quantize_module_handler(OctofoldFp8WeightConfig)  # type: ignore[untyped-decorator]
def _quantize_module(
    module: Module, config: OctofoldFp8WeightConfig, *, parameter_name: str = "weight"
) -> Module:
    tensor = OctofoldTensor.from_weight(getattr(module, parameter_name), config)
    setattr(module, parameter_name, Parameter(tensor, requires_grad=False))
    if isinstance(module, torch.nn.Linear):
        module.extra_repr = _Description(module)  # type: ignore[method-assign]
    return module


class _Description:
    """extra_repr() of a layer. A method would be pickled by a name that the layer does not have."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        self._layer = layer

    def __call__(self) -> str:
        weight: Any = self._layer.weight
        text = torch.nn.Linear.extra_repr(self._layer)
        return f"{text}, weight=OctofoldTensor({weight._quantization_type()})"


def _linear(func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    x, weight, bias = named["input"], named["weight"], named.get("bias")
    if not isinstance(weight, OctofoldTensor):
        expected = "the only OctofoldTensor of the call"
        raise invalid_argument("linear", "weight", expected, type(weight).__qualname__)
    require_input("linear", x, weight)
    return fp8_linear(x, weight.scaled, bias, weight.compute)


def _embedding(indices: Tensor, weight: OctofoldTensor) -> Tensor:
    """Looks up rows: only these are ever in high precision."""
    scaled = weight.scaled
    codes = scaled.data.view(torch.uint8)[indices].view(scaled.data.dtype)
    scale, granularity = scaled.scale, scaled.granularity
    if granularity == "128x128":
        scale, granularity = scale[indices // 128], "1x128"
    elif granularity != "tensor":
        scale = scale[indices]
    rows: Tensor = ScaledTensor(codes, scale, granularity).dequantize(weight.dtype)
    return rows


def _rows_or_columns(tensor: OctofoldTensor, dim: int, begin: int, end: int) -> OctofoldTensor:
    """A slice, as views."""
    if dim % 2 == 0:
        return tensor.like(tensor.scaled[begin:end])
    scaled, columns = tensor.scaled, tensor.shape[1]
    scale = scaled.scale
    if scaled.granularity in ("1x128", "128x128"):
        for column in (begin, end):
            if column != columns and column % 128:
                below = column // 128 * 128
                expected = (
                    "a slice between columns that are multiples of 128, where scales of "
                    f"{scaled.granularity} begin (here {below} or {below + 128}), or to the end"
                )
                raise invalid_argument("OctofoldTensor[]", "columns", expected, f"{begin}:{end}")
        scale = scale[:, begin // 128 : (end + 127) // 128]
    return tensor.like(ScaledTensor(scaled.data[:, begin:end], scale, scaled.granularity))


def _implements(operation: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers f(tensor, *others) as an aten operation: results alias tensor as torch says."""

    def enter(implementation: Callable[..., Any]) -> Callable[..., Any]:
        def call(func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            result = implementation(*args, **kwargs)
            correct: Callable[..., Any] = return_and_correct_aliasing
            return correct(func, args, kwargs, result)

        OctofoldTensor.implements(operation)(call)
        return implementation

    return enter


OctofoldTensor.implements_torch_function(torch.nn.functional.linear)(_linear)
OctofoldTensor.implements(_aten.linear.default)(_linear)


@OctofoldTensor.implements_torch_function(torch.nn.functional.embedding)  # type: ignore[untyped-decorator]
def _(func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    named = dict(zip(("input", "weight"), args, strict=False)) | kwargs
    return _embedding(named["input"], named["weight"])


@OctofoldTensor.implements(_aten.embedding.default)  # type: ignore[untyped-decorator]
def _(func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    return _embedding(args[1], args[0])


@_implements(_aten.slice.Tensor)
def _(
    tensor: OctofoldTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> OctofoldTensor:
    begin, end, _ = slice(start, end, step).indices(tensor.shape[dim])
    if step != 1:
        raise invalid_argument("OctofoldTensor[]", "step", "1", step)
    return _rows_or_columns(tensor, dim, begin, max(begin, end))


@_implements(_aten.split.Tensor)
def _(tensor: OctofoldTensor, size: int, dim: int = 0) -> list[OctofoldTensor]:
    length = tensor.shape[dim]
    begins = range(0, length, size)
    return [_rows_or_columns(tensor, dim, begin, min(begin + size, length)) for begin in begins]


@_implements(_aten._to_copy.default)
def _(tensor: OctofoldTensor, **options: Any) -> OctofoldTensor:
    """To another device with the scales as they are best there; to another dtype in name alone."""
    scaled = tensor.scaled
    device = options.get("device")
    if device is not None and torch.device(device) != scaled.data.device:
        scaled = scaled.to(device)
    else:
        scaled = ScaledTensor(scaled.data.clone(), scaled.scale.clone(), scaled.granularity)
    return tensor.like(scaled, options.get("dtype"))


@OctofoldTensor.implements(_aten.is_pinned.default)  # type: ignore[untyped-decorator]
def _(func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    tensor = args[0]
    return bool(tensor.qdata.is_pinned() and tensor.scale.is_pinned())


@_implements(_aten._pin_memory.default)
def _(tensor: OctofoldTensor, *others: Any) -> OctofoldTensor:
    pinned: OctofoldTensor = tensor._apply_fn_to_data(Tensor.pin_memory)
    return pinned


ALLOWED_AO_MODULES.add(__name__)  # where configs in files are looked for
ALLOWED_CLASSES[OctofoldTensor.__name__] = OctofoldTensor
if OctofoldTensor.__name__ not in ALLOWED_TENSORS_SUBCLASSES:
    ALLOWED_TENSORS_SUBCLASSES.append(OctofoldTensor.__name__)
torch.serialization.add_safe_globals([OctofoldTensor])
