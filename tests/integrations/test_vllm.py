"""Octofold in vLLM beside what holds in every server: vLLM's tables and choice, checkpoints of
llm-compressor, and experts by `--quantization octofold`."""

import inspect

import octofold
import pytest
import torch
from octofold.integrations import vllm as plug
from octofold.integrations.vllm import experts as plugged_experts
from octofold.integrations.vllm import linear as plugged
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    FP8ScaledMMLinearLayerConfig,
)
from vllm.model_executor.layers.fusion.quant_activation import QuantizedActivation
from vllm.model_executor.layers.linear import (
    LinearBase,
    ReplicatedLinear,
)
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.layers.quantization.fp8 import Fp8MoEMethod
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    GroupShape,
    create_fp8_quant_key,
    kFp8Dynamic128Sym,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8StaticChannelSym,
    kFp8StaticTensorSym,
)
from vllm.platforms.interface import PlatformEnum

from tests.integrations import vllm_support as server
from tests.integrations.serving_support import (
    EXPERTS,
    assert_product,
    cast,
    load_experts,
    quantized,
    random,
    routed,
    values,
)
from tests.integrations.vllm_support import CHECKPOINT, KERNELS, OF_EXPERTS, TABLES
from tests.python.nn.layer_support import relative_error

BLOCKS, CHANNELS, WEIGHTS = KERNELS
STATIC_BLOCKS = create_fp8_quant_key(static=True, group_shape=GroupShape(128, 128))
DTYPE = torch.bfloat16


def config(x, weight, dtype=torch.bfloat16, out_dtype=torch.bfloat16):
    return FP8ScaledMMLinearLayerConfig(
        weight_quant_key=weight,
        activation_quant_key=x,
        weight_shape=(384, 256),
        input_dtype=dtype,
        out_dtype=out_dtype,
    )


BLOCK_LAYER = config(kFp8Dynamic128Sym, STATIC_BLOCKS)
CHANNEL_LAYER = config(kFp8DynamicTokenSym, kFp8StaticChannelSym)


def test_entry_point(untouched, said):
    assert not server.is_in()
    for _ in range(3):  # several times in one process, too
        server.load_plugins()
    of_blocks, of_channels, of_weights = server.kernels()
    assert of_blocks[:2] == [BLOCKS, WEIGHTS]
    assert of_channels[:2] == [CHANNELS, WEIGHTS]
    assert of_weights[0] is WEIGHTS
    for table in server.kernels():
        assert len(set(table)) == len(table)
        assert len(table) > 2, "vLLM's own stay"
    assert "is first for linear layers in FP8" in said.text


def test_a_table_that_is_gone(untouched, monkeypatch, said):
    """The plug needs tables that are no public API: if one is gone, vLLM goes on without us."""
    monkeypatch.delattr(plugged.tables, "_POSSIBLE_WFP8A16_KERNELS")
    plug.register()
    assert "octofold is not used" in said.text


def choose(layer, table, capability=None):
    ask = plugged.tables.choose_scaled_mm_linear_kernel
    knows = "quantization" in inspect.signature(ask).parameters  # not 0.26
    return ask(layer, table, capability, **({"quantization": "fp8"} if knows else {}))


def test_choice_on_hopper(gpu):
    of_blocks, of_channels, _ = TABLES
    plug.register()
    assert choose(BLOCK_LAYER, of_blocks) is BLOCKS
    assert choose(CHANNEL_LAYER, of_channels) is CHANNELS
    for x in (kFp8DynamicTokenSym, kFp8DynamicTensorSym, kFp8StaticTensorSym):
        for weight in (kFp8StaticTensorSym, kFp8StaticChannelSym):
            assert choose(config(x, weight), of_channels) is CHANNELS
    fits, why_not = plugged.tables.is_supported_and_can_implement_kernel(
        WEIGHTS, CHANNEL_LAYER, None
    )
    assert not fits
    assert why_not == (
        "OctofoldWeightOnlyFP8LinearKernel is for GPUs without FP8 units (compute capability 8.8 "
        "or less), found 9.0."
    )


@pytest.mark.parametrize(("capability", "number"), [((8, 0), 80), ((8, 6), 86), ((7, 5), 75)])
def test_choice_without_fp8_units(gpu, capability, number):
    gpu(*capability)
    plug.register()
    dtype = torch.bfloat16 if number >= 80 else torch.float16
    for layer, table in zip((BLOCK_LAYER, CHANNEL_LAYER, CHANNEL_LAYER), TABLES, strict=True):
        layer = config(layer.activation_quant_key, layer.weight_quant_key, dtype, dtype)
        assert choose(layer, table) is WEIGHTS
        assert choose(layer, table, number) is WEIGHTS


class Next(BLOCKS):
    """Stands for the next kernel of vLLM's, which a CPU cannot have."""

    @classmethod
    def is_supported(cls, compute_capability=None):
        return True, None

    @classmethod
    def can_implement(cls, config):
        return True, None


@pytest.mark.parametrize(
    ("kernel", "capability", "layer", "reason"),
    [
        (BLOCKS, (10, 0), BLOCK_LAYER, "is for GPUs of compute capability 9.0 (H100, H200)"),
        (CHANNELS, (12, 0), CHANNEL_LAYER, "is for GPUs of compute capability 9.0 (H100, H200)"),
        (WEIGHTS, (8, 9), CHANNEL_LAYER, "is for GPUs without FP8 units"),
        (
            BLOCKS,
            (9, 0),
            config(
                create_fp8_quant_key(static=False, group_shape=GroupShape(1, 64)),
                create_fp8_quant_key(static=True, group_shape=GroupShape(64, 64)),
            ),
            "takes scales of 1x128 and 128x128, not 1x64 and 64x64",
        ),
        (
            BLOCKS,
            (9, 0),
            config(kFp8Dynamic128Sym, STATIC_BLOCKS, torch.float32, torch.float32),
            "takes and gives bfloat16 and float16, not torch.float32",
        ),
        (
            CHANNELS,
            (9, 0),
            BLOCK_LAYER,
            "takes scales of tensors, tokens and channels, not 1x128 and 128x128",
        ),
        (
            CHANNELS,
            (9, 0),
            config(
                create_fp8_quant_key(static=True, group_shape=GroupShape.PER_TOKEN),
                kFp8StaticChannelSym,
            ),
            "takes one static scale for activations",
        ),
    ],
)
def test_reasons_and_the_next_kernel(gpu, kernel, capability, layer, reason):
    gpu(*capability)
    fits, why_not = plugged.tables.is_supported_and_can_implement_kernel(kernel, layer, None)
    assert not fits
    assert why_not.startswith(f"{kernel.__name__} {reason}")
    assert choose(layer, {PlatformEnum.CUDA: [kernel, Next]}) is Next


def test_batch_invariance(gpu, monkeypatch):
    """Plugging in switches it on; a scale for all tokens is what it excludes."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    try:
        plug._plug()
        assert octofold.is_batch_invariant()
    finally:
        octofold.set_batch_invariant(False)
    fits, _ = plugged.tables.is_supported_and_can_implement_kernel(BLOCKS, BLOCK_LAYER, None)
    assert fits
    layer = config(kFp8DynamicTensorSym, kFp8StaticTensorSym)
    fits, why_not = plugged.tables.is_supported_and_can_implement_kernel(CHANNELS, layer, None)
    assert not fits
    assert "VLLM_BATCH_INVARIANT" in why_not


def test_disabled_by_vllms_own_variable(gpu, monkeypatch):
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", BLOCKS.__name__)
    assert choose(BLOCK_LAYER, {PlatformEnum.CUDA: [BLOCKS, Next]}) is Next


def test_blocks_keep_the_bytes_of_the_checkpoint(plugged_in):
    weight = quantized("128x128", 200, 300)
    with server.model_of(DTYPE):
        layer = server.linear(weight)
        assert torch.equal(layer.weight.view(torch.uint8), weight.data.view(torch.uint8))
        assert torch.equal(layer.weight_scale_inv, weight.scale)


def test_blocks_in_one_call_have_the_bits_of_the_contract(plugged_in):
    """apply_block_scaled_mm(), which vLLM's base class has, is the same product."""
    with server.model_of(DTYPE):
        layer = server.linear(quantized("128x128", 384, 256))
        x = random(9, 256, dtype=DTYPE)
        kernel = server.kernel_of(layer)
        y = kernel.apply_block_scaled_mm(A=x, B=layer.weight, As=x, Bs=layer.weight_scale_inv)
        assert torch.equal(y, layer(x)[0])
        base = super(BLOCKS, kernel)
        assert torch.equal(y, base.apply_weights(layer, x))


def test_scales_that_are_exponents(plugged_in):
    """E8M0, as DeepSeek-V4 has them: the powers of two that they are."""
    powers = octofold.Format("e4m3", "128x128", power_of_two=True)
    weight = octofold.quantize(torch.randn(256, 256) / 16, powers)
    config = server.checkpoint_config(weight_block_size=[128, 128])
    config.is_scale_e8m0 = True
    with server.model_of(DTYPE):
        layer = ReplicatedLinear(256, 256, bias=False, quant_config=config, prefix="layer")
        server.load(layer, weight=weight.data, weight_scale_inv=weight.scale)
        assert layer.weight_scale_inv.dtype == torch.float32
        x = random(5, 256, dtype=DTYPE)
        assert_product(layer(x)[0], cast(x, "1x128"), values(weight))


@pytest.mark.parametrize("capability", [(9, 0), (8, 0), (8, 6)])
@pytest.mark.parametrize(
    ("strategy", "granularity", "of_x"),
    [
        ("channel", "channel", "channel"),
        ("tensor", "tensor", "channel"),
        ("block", "128x128", "1x128"),
    ],
)
def test_compressed_tensors(gpu, plugged_in, capability, strategy, granularity, of_x):
    """GPUs without FP8 units have them for FP8 weights alone: x is not cast there."""
    gpu(*capability)
    with server.model_of(DTYPE):
        weight = quantized(granularity, 200, 304)
        layer = server.linear(weight, config=server.compressed_tensors(strategy))
        for rows in (1, 40):
            x = random(rows, 304, dtype=DTYPE)
            expected = cast(x, of_x) if capability == (9, 0) else x.double()
            assert_product(layer(x)[0], expected, values(weight))


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_input_that_was_cast_before(plugged_in, granularity):
    """With a static scale vLLM may cast in what stands before the layer."""
    scale = torch.tensor([0.02])
    with server.model_of(DTYPE):
        weight = quantized(granularity, 128, 256)
        config = server.compressed_tensors(granularity, dynamic=False)
        layer = server.linear(weight, input_scale=scale, config=config)
        x = random(4, 256, dtype=DTYPE)
        codes = octofold.quantize(x, "tensor torchao", scale=scale)
        given = QuantizedActivation(codes.data, scale, DTYPE, x.shape, kFp8StaticTensorSym)
        y = layer.scheme.apply_weights(layer, given)
        assert_product(y, values(codes), values(weight))
        assert torch.equal(y, layer(x)[0])


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("granularity", OF_EXPERTS)
def test_experts_of_ours(plugged_in, monkeypatch, granularity, invariant):
    """Experts that cast all tokens with one scale are vLLM's where batches are to be invariant."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", str(int(invariant)))
    with server.model_of(DTYPE):
        method = server.experts(granularity).quant_method
    assert isinstance(method, Fp8MoEMethod)
    is_ours = method.experts_cls is plugged_experts.OctofoldExperts
    assert is_ours == (granularity == "128x128" or not invariant)


def test_experts_of_other_ranks(plugged_in):
    """With an expert_map, of which vLLM gives each rank its own: the sums of the ranks are those of
    one that has them all."""
    with server.model_of(DTYPE):
        layer = server.experts()
        load_experts(layer)
        kernel = layer.quant_method.moe_kernel.fused_experts
        x, ids, weights = routed(9)
        whole = server.run_experts(layer, x, ids, weights)
        total = torch.zeros(x.shape)
        for first, last in ((0, 1), (1, EXPERTS)):
            places = torch.full((EXPERTS,), -1, dtype=torch.int32)
            places[first:last] = torch.arange(last - first, dtype=torch.int32)
            kernel.quant_config._w1.scale = layer.w13_weight_scale_inv[first:last]
            kernel.quant_config._w2.scale = layer.w2_weight_scale_inv[first:last]
            y = torch.empty_like(x)
            rest = dict.fromkeys(("a1q_scale", "a2_scale", "workspace13", "workspace2"))
            kernel.apply(
                y,
                x,
                layer.w13_weight[first:last],
                layer.w2_weight[first:last],
                weights,
                ids,
                layer.activation,
                EXPERTS,
                places,
                **rest,
                expert_tokens_meta=None,
                apply_router_weight_on_input=False,
            )
            total += y
    assert relative_error(total, whole.double()) < 2**-8


@pytest.mark.parametrize(
    ("capability", "options", "reason"),
    [
        ((8, 9), {}, "kernel is for GPUs of compute capability 9.0 (H100, H200), found 8.9"),
        ((9, 0), {"has_bias": True}, "kernel does not support biases"),
        ((9, 0), {"swiglu_limit": 7.0}, "kernel does not support clamped activations"),
        ((9, 0), {"activation": "swiglustep"}, "SWIGLUSTEP"),
    ],
)
def test_experts_that_do_not_fit_are_vllms(gpu, plugged_in, said, capability, options, reason):
    gpu(*capability)
    with server.model_of(DTYPE):
        method = server.experts(**options).quant_method
    assert method.experts_cls is not plugged_experts.OctofoldExperts
    assert "Using vLLM's experts, not OctofoldExperts" in said.text
    assert reason in said.text


def test_experts_are_chosen_by_name(plugged_in):
    ask = plugged_experts.OctofoldFp8Config.override_quantization_method
    assert plugged_experts.NAME in QUANTIZATION_METHODS
    assert ask(CHECKPOINT, "octofold") == "octofold"
    for user in (None, "fp8", "compressed-tensors"):
        assert ask(CHECKPOINT, user) is None
    assert ask({"quant_method": "awq"}, "octofold") is None


def test_experts_in_16_bits_are_refused():
    with pytest.raises(ValueError, match="--quantization octofold: expected a checkpoint whose"):
        plugged_experts.OctofoldFp8Config()  # what vLLM does where a checkpoint says nothing


def test_linear_layers_beside_experts_are_vllms(plugged_in):
    with server.model_of(DTYPE):
        config = server.config_of_blocks()
        layer = ReplicatedLinear(256, 256, quant_config=config, prefix="layer")
        assert isinstance(layer, LinearBase)
        assert isinstance(server.kernel_of(layer), BLOCKS)
