"""SGLang's linear layers in FP8 by Octofold's products.

SGLang has a function that chooses the product of block FP8, one that computes those of tensors and
channels, one that says whether Marlin is to compute with FP8 weights alone, one that makes a
layer's weights, and one that makes of them what a product takes. A hook stands around each: where
Octofold fits the GPU and the layer it computes, else SGLang's own function is called. What a user
has chosen (--fp8-gemm-backend, SGLANG_FORCE_FP8_MARLIN) stays chosen.
"""

import functools
import logging
from collections.abc import Callable
from copy import copy
from typing import Any, Final

import torch
from sglang.srt.distributed.utils import get_group_rank_size
from sglang.srt.layers.quantization import fp8_utils
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_exec
from torch import Tensor
from torch.nn.functional import pad

from ..._core.errors import UnsupportedError
from ..._core.library import is_batch_invariant, set_batch_invariant
from ..._core.scaled_tensor import ScaledTensor
from .. import serving
from ..cut_blocks import WHOLE, as_products_take, repeating, unit_of

_MODULE: Final = "sglang.srt.layers.quantization.fp8_utils"
_METHOD: Final = "sglang.srt.layers.quantization.fp8.Fp8LinearMethod"
_PRODUCTS, _WEIGHTS_ALONE, _SGLANG = "products", "weights alone", ""
"""Who computes: FP8 products, products with FP8 weights, or SGLang."""
_log = logging.getLogger("sglang.octofold")


def hook() -> None:
    """Once more changes nothing."""
    hook_around(f"{_MODULE}.dispatch_w8a8_block_fp8_linear", choose_for_blocks)
    hook_around(f"{_MODULE}.apply_fp8_linear", apply_linear)
    hook_around(f"{_MODULE}.can_auto_enable_marlin_fp8", choose_marlin)
    hook_around(f"{_METHOD}.create_weights", create_weights)
    hook_around(f"{_METHOD}.process_weights_after_loading", process_weights)


def choose_for_blocks(
    original: Callable[..., Any],
    weight_block_size: list[int] | None = None,
    act_scale_ue8m0: bool = False,
) -> Any:
    """Around dispatch_w8a8_block_fp8_linear(), which returns the function of a layer."""
    who = _who_computes()
    is_ours = weight_block_size is None or list(weight_block_size) == [128, 128]
    if who == _SGLANG or not is_ours or not fp8_utils.get_fp8_gemm_runner_backend().is_auto():
        return original(weight_block_size, act_scale_ue8m0)
    if who == _WEIGHTS_ALONE:
        return weights_of_blocks
    return functools.partial(linear_of_blocks, act_scale_ue8m0=act_scale_ue8m0)


def linear_of_blocks(
    input: Tensor,
    weight: Tensor,
    block_size: list[int],
    weight_scale: Tensor,
    input_scale: Tensor | None = None,
    bias: Tensor | None = None,
    act_scale_ue8m0: bool = False,
    weight_bf16: Tensor | None = None,
) -> Tensor:
    """A layer with weights [out, in] of 128x128 or 1x128 blocks. An input with a scale is FP8."""
    return serving.linear(
        input,
        ScaledTensor(weight, weight_scale, "1x128" if block_size[0] == 1 else "128x128"),
        bias,
        "1x128",
        input_scale,
        torch.bfloat16,
        power_of_two=act_scale_ue8m0,
    )


def weights_of_blocks(
    input: Tensor,
    weight: Tensor,
    block_size: list[int],
    weight_scale: Tensor,
    input_scale: Tensor | None = None,
    bias: Tensor | None = None,
    weight_bf16: Tensor | None = None,
) -> Tensor:
    """The same with an input of 16 bits, which is not cast."""
    scaled = ScaledTensor(weight, weight_scale, "1x128" if block_size[0] == 1 else "128x128")
    return serving.weight_only(input, scaled, bias)


def apply_linear(
    original: Callable[..., Any],
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    input_scale: Tensor | None = None,
    input_scale_ub: Tensor | None = None,
    bias: Tensor | None = None,
    *rest: Any,
    use_per_token_if_dynamic: bool = False,
    compressed_tensor_quant: bool = False,
    pre_quant_output_dtype: torch.dtype | None = None,
    **options: Any,
) -> Any:
    """Around apply_fp8_linear(), which computes a layer with weights [in, out] of one scale, or of
    one for each channel."""
    who = _who_computes()
    scales = weight_scale.numel()
    # SGLang's own has a scale for each token, but where it is told otherwise.
    by_token = use_per_token_if_dynamic or not compressed_tensor_quant
    is_ours = (
        not rest
        and (by_token or input_scale is not None or not is_batch_invariant())
        and input_scale_ub is None
        and weight.dim() == 2
        and weight.stride(0) == 1
        and weight.dtype == torch.float8_e4m3fn
        and scales in (1, weight.shape[1])
    )
    if who == _SGLANG or not is_ours:
        return original(
            input,
            weight,
            weight_scale,
            input_scale,
            input_scale_ub,
            bias,
            *rest,
            use_per_token_if_dynamic=use_per_token_if_dynamic,
            compressed_tensor_quant=compressed_tensor_quant,
            pre_quant_output_dtype=pre_quant_output_dtype,
            **options,
        )
    granularity = "tensor" if scales == 1 else "channel"
    scaled = ScaledTensor(weight.t(), weight_scale.reshape(-1), granularity)
    if who == _WEIGHTS_ALONE:
        return serving.weight_only(input, scaled, bias)
    if input_scale is None:
        return serving.linear(input, scaled, bias, "channel" if by_token else "tensor")
    of_x = "tensor" if input_scale.numel() == 1 else "channel"
    out_dtype = pre_quant_output_dtype or torch.bfloat16
    return serving.linear(input, scaled, bias, of_x, input_scale.reshape(-1), out_dtype)


def choose_marlin(original: Callable[[], bool]) -> bool:
    """Around can_auto_enable_marlin_fp8(): Marlin, which has weights in an order of its own, is for
    GPUs without FP8 units. There Octofold computes with the checkpoint's order."""
    return False if _who_computes() == _WEIGHTS_ALONE else original()


def create_weights(
    original: Callable[..., None],
    method: Any,
    layer: Any,
    input_size_per_partition: int,
    output_partition_sizes: list[int],
    input_size: int,
    output_size: int,
    params_dtype: torch.dtype,
    skip_block_quant_check: bool = False,
    **options: Any,
) -> None:
    """Around Fp8LinearMethod.create_weights(), which refuses a layer whose 128x128 blocks tensor
    parallelism cuts. Loaders read the size of blocks from the configuration that all layers share,
    so such a layer has a copy with smaller ones. Where a model loads scales in a way of its own (by
    ranks, or unchecked) the layer is SGLang's."""
    sizes = input_size_per_partition, output_partition_sizes, input_size, output_size
    product = method.w8a8_block_fp8_linear
    is_ours = (
        getattr(product, "func", product) in (linear_of_blocks, weights_of_blocks)
        and tuple(method.weight_block_size or ()) == WHOLE
        and not method.use_marlin
        and not skip_block_quant_check
        and not getattr(layer, "use_presharded_weights", False)
    )
    unit = unit_of(*sizes) if is_ours else WHOLE
    if unit != WHOLE:
        method.quant_config = copy(method.quant_config)
        method.quant_config.weight_block_size = method.weight_block_size = [*unit]
        process = functools.partial(_process_cut_weights, method, unit)
        method.process_weights_after_loading_block_quant = process
    original(method, layer, *sizes, params_dtype, skip_block_quant_check, **options)
    if unit != WHOLE:
        scale = layer.weight_scale_inv
        scale._weight_loader = repeating(scale.weight_loader, unit)


def _process_cut_weights(method: Any, unit: tuple[int, int], layer: Any) -> None:
    rank, _ = get_group_rank_size(layer.tp_group)
    codes, scale = layer.weight, layer.weight_scale_inv
    weight, zeros = as_products_take(codes.data, scale.data, unit, rank)
    codes.data, scale.data = weight.data, weight.scale
    method.weight_block_size = [int(size) for size in weight.granularity.split("x")]
    if zeros:
        product = method.w8a8_block_fp8_linear
        method.w8a8_block_fp8_linear = functools.partial(_padded, product, zeros)
    codes._weight_loader = scale._weight_loader = None  # which would take other columns or rows
    layer.octofold_unit = unit
    layer._derived_weight_cache_error = "weights whose blocks ranks cut cannot be loaded again"


def _padded(product: Callable[..., Tensor], zeros: int, input: Tensor, **operands: Any) -> Tensor:
    if operands.get("input_scale") is not None:  # of other columns than the weight's scales
        raise UnsupportedError("layer with cut columns: expected an input of 16 bits, got FP8")
    return product(pad(input, (zeros, 0)), **operands)


def process_weights(original: Callable[..., None], method: Any, layer: torch.nn.Module) -> None:
    """Around Fp8LinearMethod.process_weights_after_loading(). Where neither Cutlass nor Marlin
    computes it rounds the shards of a layer anew, to have one scale for all; for Cutlass it gives
    each channel its shard's scale, which is what Octofold takes."""
    if (
        _who_computes() == _WEIGHTS_ALONE
        and method.is_checkpoint_fp8_serialized
        and not method.use_marlin
    ):
        method.cutlass_fp8_supported = True
    original(method, layer)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _who_computes() -> str:
    """Who computes on this process's GPU."""
    heed_determinism()
    return _who_computes_on(fp8_utils.get_device_capability())


def heed_determinism() -> bool:
    """True if a result may not depend on what else is in a batch: --enable-deterministic-inference.
    Then all calls of the process are batch-invariant."""
    try:
        wanted = bool(get_exec().deterministic.enable_deterministic_inference)
    except ValueError:  # no server: its configuration is not there
        return False
    if wanted:
        set_batch_invariant(True)
    return wanted


@functools.cache
def _who_computes_on(capability: tuple[int | None, int | None]) -> str:
    major, minor = capability
    if major is None or minor is None:
        return _SGLANG
    here = major, minor
    why_not = serving.why_not_first(here, "gemm", a="1x128", b="128x128")
    if not why_not:
        _log.info("Octofold computes linear layers in FP8")
        return _PRODUCTS
    if not serving.why_not_weight_only(here, torch.bfloat16, "128x128"):
        _log.info("Octofold computes linear layers with FP8 weights and 16-bit activations")
        return _WEIGHTS_ALONE
    _log.info("SGLang computes linear layers in FP8: Octofold's product %s", why_not)
    return _SGLANG


def hook_around(target: str, hook: Callable[..., Any]) -> None:
    """Have SGLang call hook(original, *arguments) in place of what a dotted path names. Once more
    changes nothing."""
    if all(known is not hook for _, known, _ in HookRegistry._hooks.get(target, ())):
        HookRegistry.register(target, hook, HookType.AROUND)
