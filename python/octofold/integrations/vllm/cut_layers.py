"""vLLM's linear layers whose blocks of 128x128 tensor parallelism cuts, by `--quantization
octofold`: vLLM's own method refuses them, or mistakes their scales, as it makes the layer."""

from typing import Any

from torch import Tensor
from torch.nn.functional import pad
from vllm.model_executor.layers.linear import register_weight_loader_v2_supported_method
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod
from vllm.model_executor.utils import replace_parameter

from ..._core.scaled_tensor import ScaledTensor
from .. import serving
from ..cut_blocks import WHOLE, as_products_take, repeating, unit_of
from .linear import capability_here


@register_weight_loader_v2_supported_method
class OctofoldFp8LinearMethod(Fp8LinearMethod):  # type: ignore[misc]
    """The method "fp8", of which a rank may have any part of a weight of 128x128 blocks."""

    _unit = WHOLE
    _zeros = 0
    _granularity = "128x128"

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        *rest: Any,
        **options: Any,
    ) -> None:
        sizes = input_size_per_partition, output_partition_sizes, input_size, output_size
        here = capability_here()
        self._casts = not serving.why_not_first(here, "gemm", a="1x128", b="1x128")
        why_not = serving.why_not_weight_only(here, self.input_dtype, "1x128")
        blocks = self.quant_config.weight_block_size
        if blocks is not None and tuple(blocks) == WHOLE and (self._casts or not why_not):
            self._unit = unit_of(*sizes)
            self.weight_block_size = [*self._unit]  # which the layer's loaders read
        super().create_weights(layer, *sizes, *rest, **options)
        if self._unit != WHOLE:
            scale = layer.weight_scale_inv
            scale.weight_loader = repeating(scale.weight_loader, self._unit)

    def process_weights_after_loading(self, layer: Any) -> None:
        if self._unit == WHOLE:
            super().process_weights_after_loading(layer)
            return
        layer.input_scale, layer.octofold_unit = None, self._unit
        parts = layer.weight.data, layer.weight_scale_inv.data, self._unit, layer.tp_rank
        weight, self._zeros = as_products_take(*parts)
        self._granularity = weight.granularity
        replace_parameter(layer, "weight", weight.data)
        replace_parameter(layer, "weight_scale_inv", weight.scale)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self._unit == WHOLE:
            return super().apply(layer, x, bias)  # type: ignore[no-any-return]
        x = pad(x, (self._zeros, 0)) if self._zeros else x
        weight = ScaledTensor(layer.weight, layer.weight_scale_inv, self._granularity)
        if self._casts:
            return serving.linear(x, weight, bias, "1x128").to(self.out_dtype)
        return serving.weight_only(x, weight, bias)
