"""vLLM's linear layers in FP8 by Octofold's products.

| kernel                            | weights            | activations                           |
|-----------------------------------|--------------------|---------------------------------------|
| OctofoldFp8BlockScaledMMKernel    | 128x128            | cast with 1x128 scales                |
| OctofoldFP8ScaledMMLinearKernel   | tensor, channel    | cast by tokens, by one scale, static  |
| OctofoldWeightOnlyFP8LinearKernel | any of these three | 16 bits                               |

A kernel that does not fit a GPU or a layer says why, and vLLM asks the next one. What is theirs to
decide otherwise (VLLM_DISABLED_KERNELS, --linear-backend) vLLM decides as for its own kernels.
"""

from typing import Any, Final

import torch
import vllm.envs as envs
from torch import Tensor
from vllm.model_executor.kernels import linear as tables
from vllm.model_executor.kernels.linear import DeepGemmFp8BlockScaledMMKernel
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import (
    Fp8BlockScaledMMLinearKernel,
)
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    FP8ScaledMMLinearKernel,
    FP8ScaledMMLinearLayerConfig,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    GroupShape,
    QuantKey,
    kFp8StaticTensorSym,
)
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import PlatformEnum, current_platform

from ..._core.scaled_tensor import ScaledTensor
from .. import serving

_Answer = tuple[bool, str | None]
"""The answer of a kernel that vLLM asks: yes, or why not."""
_SIXTEEN_BITS: Final = (torch.bfloat16, torch.float16)


def insert() -> None:
    """Put the kernels first in vLLM's tables, once."""
    w8a8, blocks = tables._POSSIBLE_FP8_KERNELS, tables._POSSIBLE_FP8_BLOCK_KERNELS
    for table, kernel in (
        (tables._POSSIBLE_WFP8A16_KERNELS, OctofoldWeightOnlyFP8LinearKernel),
        (w8a8, OctofoldWeightOnlyFP8LinearKernel),
        (blocks, OctofoldWeightOnlyFP8LinearKernel),
        (w8a8, OctofoldFP8ScaledMMLinearKernel),
        (blocks, OctofoldFp8BlockScaledMMKernel),
    ):
        kernels = table.setdefault(PlatformEnum.CUDA, [])
        if kernel not in kernels:
            kernels.insert(0, kernel)


class OctofoldFp8BlockScaledMMKernel(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]
    """Weights of 128x128 blocks. x is cast in the product itself, or before it, as
    octofold.nn.inference_linear() has it."""

    apply_input_quant = False

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> _Answer:
        capability = _capability(compute_capability)
        return _answer(serving.why_not_first(capability, "gemm", a="1x128", b="128x128"))

    @classmethod
    def can_implement(cls, config: FP8ScaledMMLinearLayerConfig) -> _Answer:
        fits, why_not = super().can_implement(config)
        if not fits:
            return False, why_not
        x, weight = config.activation_quant_key.scale, config.weight_quant_key.scale
        if (x.group_shape, weight.group_shape) != (GroupShape(1, 128), GroupShape(128, 128)):
            return False, (
                f"takes scales of 1x128 and 128x128, not {_shape(x)} and {_shape(weight)}"
            )
        return _answer(_why_not_dtypes(config))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Codes stay as the checkpoint has them; so do scales, in float32."""
        if getattr(layer, "is_bmm", False):  # DeepGEMM's layer, in a layout of its own
            DeepGemmFp8BlockScaledMMKernel(self.config).process_weights_after_loading(layer)
            return
        scale = getattr(layer, _scale_name(layer))
        scale.data = scale.data.to(torch.float32)  # the parameter keeps its loader

    def apply_weights(
        self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None, **_: Any
    ) -> Tensor:
        weight = ScaledTensor(layer.weight, getattr(layer, _scale_name(layer)), "128x128")
        return serving.linear(x, weight, bias, "1x128").to(self.config.out_dtype)

    def apply_block_scaled_mm(self, A: Tensor, B: Tensor, As: Tensor, Bs: Tensor) -> Tensor:  # noqa: N803
        """A is x, uncast, and As means nothing."""
        return serving.linear(A, ScaledTensor(B, Bs, "128x128"), None, "1x128")


class OctofoldFP8ScaledMMLinearKernel(FP8ScaledMMLinearKernel):  # type: ignore[misc]
    """Weights with one scale, or one for each channel; x with one scale for each token or for all,
    of the data or static."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> _Answer:
        capability = _capability(compute_capability)
        return _answer(serving.why_not_first(capability, "gemm", a="channel", b="channel"))

    @classmethod
    def can_implement(cls, config: FP8ScaledMMLinearLayerConfig) -> _Answer:
        x, weight = config.activation_quant_key.scale, config.weight_quant_key.scale
        of_x, of_weight = _granularity(x.group_shape), _granularity(weight.group_shape)
        if of_x not in ("tensor", "channel") or of_weight not in ("tensor", "channel"):
            return False, (
                f"takes scales of tensors, tokens and channels, not {_shape(x)} and "
                f"{_shape(weight)}"
            )
        if x.static and of_x != "tensor":
            return False, "takes one static scale for activations, not one for each token"
        if envs.VLLM_BATCH_INVARIANT and of_x == "tensor" and not x.static:
            return False, "casts all tokens with one scale, which VLLM_BATCH_INVARIANT excludes"
        return _answer(_why_not_dtypes(config))

    def input_quant_key(self) -> QuantKey | None:
        """A static scale: what stands before the layer may cast."""
        static = self.config.activation_quant_key == kFp8StaticTensorSym
        return kFp8StaticTensorSym if static else None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        _keep_rows(layer, self.layer_param_names[0])

    def apply_weights(self, layer: torch.nn.Module, x: Any, bias: Tensor | None = None) -> Tensor:
        weight, scale, x_scale, x_scale_bound = self._get_layer_params(layer)
        if not isinstance(x, Tensor) or x_scale_bound is not None:
            y: Tensor = super().apply_weights(layer, x, bias)  # vLLM casts
            return y
        of_x = _granularity(self.config.activation_quant_key.scale.group_shape)
        if x_scale is not None:
            x_scale = x_scale.reshape(1)
        y = serving.linear(x, _by_columns(weight, scale), bias, of_x, x_scale)
        return y if self.config.out_dtype is None else y.to(self.config.out_dtype)

    def apply_scaled_mm(
        self,
        *,
        A: Tensor,  # noqa: N803
        B: Tensor,  # noqa: N803
        out_dtype: torch.dtype,
        As: Tensor,  # noqa: N803
        Bs: Tensor,  # noqa: N803
        bias: Tensor | None,
        output_shape: list[int],
    ) -> Tensor:
        of_x = "tensor" if As.numel() == 1 else "channel"
        y = serving.linear(A, _by_columns(B, Bs), bias, of_x, As.reshape(-1), out_dtype)
        return y.view(*output_shape)


class OctofoldWeightOnlyFP8LinearKernel(FP8ScaledMMLinearKernel):  # type: ignore[misc]
    """FP8 weights with x in 16 bits, on GPUs without FP8 units. Nothing is repacked."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> _Answer:
        capability = _capability(compute_capability)
        return _answer(serving.why_not_weight_only(capability, torch.float16, "channel"))

    @classmethod
    def can_implement(cls, config: FP8ScaledMMLinearLayerConfig) -> _Answer:
        weight = config.weight_quant_key.scale
        granularity = _granularity(weight.group_shape)
        if not granularity:
            return (
                False,
                f"takes weights with scales of tensor, channel or 128x128, not {_shape(weight)}",
            )
        return _answer(
            _why_not_dtypes(config)
            or serving.why_not_weight_only(_capability(None), config.input_dtype, granularity)
        )

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if self._granularity_of(layer) != "128x128":
            _keep_rows(layer, self.layer_param_names[0])

    def apply_weights(
        self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        weight, scale, *_ = self._get_layer_params(layer)
        if self._granularity_of(layer) == "128x128":
            scaled = ScaledTensor(weight, scale, "128x128")
        else:
            scaled = _by_columns(weight, scale)
        return serving.weight_only(x, scaled, bias)

    def apply_scaled_mm(self, **_: Any) -> Tensor:
        raise NotImplementedError("x is not cast")

    def _granularity_of(self, layer: torch.nn.Module) -> str:
        return _granularity(self.config.weight_quant_key.scale.group_shape)

    def _get_layer_params(self, layer: torch.nn.Module) -> Any:
        weight, _, *rest = self.layer_param_names
        return tuple(getattr(layer, name, None) for name in (weight, _scale_name(layer), *rest))


def _scale_name(layer: torch.nn.Module) -> str:
    """Block scales have a name of their own in some checkpoints."""
    is_own = getattr(layer, "weight_scale_inv", None) is not None
    return "weight_scale_inv" if is_own else "weight_scale"


def _by_columns(weight: Tensor, scale: Tensor) -> ScaledTensor:
    """The weight [out, in] of vLLM's view of it, [in, out], with its scale or scales."""
    granularity = "tensor" if scale.numel() == 1 else "channel"
    return ScaledTensor(weight.t(), scale.reshape(-1), granularity)


def _keep_rows(layer: torch.nn.Module, name: str) -> None:
    """A weight that vLLM has as [in, out], with the rows of [out, in] in one piece."""
    weight = getattr(layer, name)
    if weight.stride(0) != 1:
        replace_parameter(layer, name, weight.t().contiguous().t().data)


def _granularity(shape: GroupShape) -> str:
    """In our words; "" for what has none."""
    if shape.is_per_tensor():
        return "tensor"
    if shape.is_per_token() or shape.is_per_channel():
        return "channel"
    return "128x128" if shape == GroupShape(128, 128) else ""


def _shape(scale: Any) -> str:
    row, column = scale.group_shape
    return f"{row}x{column}"


def _why_not_dtypes(config: FP8ScaledMMLinearLayerConfig) -> str:
    if config.weight_quant_key.dtype != torch.float8_e4m3fn:
        return f"takes weights of float8_e4m3fn, not {config.weight_quant_key.dtype}"
    for dtype in (config.input_dtype, config.out_dtype):
        if dtype not in (*_SIXTEEN_BITS, None):
            return f"takes and gives bfloat16 and float16, not {dtype}"
    return ""


def _capability(number: int | None) -> tuple[int, int]:
    """90 as (9, 0); None: of this process's GPU."""
    return capability_here() if number is None else divmod(number, 10)


def capability_here() -> tuple[int, int]:
    """The compute capability of this process's GPU."""
    here = current_platform.get_device_capability()
    return (0, 0) if here is None else (here.major, here.minor)


def _answer(why_not: str) -> _Answer:
    return (False, why_not) if why_not else (True, None)
