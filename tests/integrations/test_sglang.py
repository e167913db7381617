"""Octofold in SGLang beside what holds in every server: SGLang's hooks and choice, inputs that were
cast before, and experts by `--moe-runner-backend octofold`."""

import octofold
import pytest
import torch
from octofold.integrations.sglang import linear as plugged
from octofold.integrations.sglang.experts import OctofoldRunnerCore
from sglang.srt.arg_groups.choices import MOE_RUNNER_BACKEND_CHOICES
from sglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from sglang.srt.layers.moe.moe_runner.runner import MoeRunner
from sglang.srt.layers.quantization import fp8, fp8_utils
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context

from tests.integrations import sglang_support as server
from tests.integrations.serving_support import (
    assert_product,
    cast,
    load_experts,
    quantized,
    random,
    routed,
    values,
)
from tests.integrations.sglang_support import HOOKED, load_plugins

BLOCKS = [128, 128]
DTYPE = torch.bfloat16


def test_entry_point(untouched, said):
    assert not server.is_in()
    for _ in range(3):
        load_plugins()
    assert all(hasattr(getattr(owner, name), "__wrapped__") for owner, name in HOOKED)
    assert all(len(hooks) == 1 for hooks in HookRegistry._hooks.values())
    assert len(HookRegistry._hooks) == len(HOOKED)
    assert fp8.apply_fp8_linear is fp8_utils.apply_fp8_linear, "in the modules that import it, too"
    assert MOE_RUNNER_BACKEND_CHOICES.count("octofold") == 1
    assert "is first for linear layers in FP8" in said.text


def function_of(callable):
    return getattr(callable, "func", callable)


def test_choice(gpu, said):
    load_plugins()
    choose = fp8.dispatch_w8a8_block_fp8_linear
    assert function_of(choose(BLOCKS)) is plugged.linear_of_blocks
    assert function_of(choose()) is plugged.linear_of_blocks
    assert "Octofold computes linear layers in FP8" in said.text
    gpu(8, 6)
    assert choose(BLOCKS) is plugged.weights_of_blocks
    assert not fp8.can_auto_enable_marlin_fp8()
    assert "with FP8 weights and 16-bit activations" in said.text


@pytest.mark.parametrize("capability", [(8, 9), (10, 0), (12, 0), (7, 0), (None, None)])
def test_other_gpus_are_sglangs(gpu, said, capability):
    originals = [getattr(owner, name) for owner, name in HOOKED]
    gpu(*capability)
    load_plugins()
    expected = originals[0](BLOCKS)
    assert function_of(fp8.dispatch_w8a8_block_fp8_linear(BLOCKS)) is function_of(expected)
    if capability[0] is not None:
        assert fp8.can_auto_enable_marlin_fp8() == originals[2]()
    if capability == (8, 9):
        reason = "SGLang computes linear layers in FP8: Octofold's product is for GPUs of compute"
        assert reason in said.text


def test_other_blocks_are_sglangs(gpu):
    load_plugins()
    linear = fp8.dispatch_w8a8_block_fp8_linear([64, 128])
    assert function_of(linear) is fp8_utils.triton_w8a8_block_fp8_linear


def test_a_chosen_backend_stays_chosen(gpu, monkeypatch):
    load_plugins()
    monkeypatch.setattr(fp8_utils, "FP8_GEMM_RUNNER_BACKEND", fp8_utils.Fp8GemmRunnerBackend.TRITON)
    linear = fp8.dispatch_w8a8_block_fp8_linear(BLOCKS)
    assert function_of(linear) is fp8_utils.triton_w8a8_block_fp8_linear


def test_deterministic_inference_is_batch_invariant(gpu):
    load_plugins()
    try:
        for wanted in (False, True):
            with get_context().override_server_args(enable_deterministic_inference=wanted):
                linear = fp8.dispatch_w8a8_block_fp8_linear(BLOCKS)
            assert function_of(linear) is plugged.linear_of_blocks
            assert octofold.is_batch_invariant() == wanted
    finally:
        octofold.set_batch_invariant(False)


def test_scales_of_activations_that_are_exponents(plugged_in):
    """Checkpoints that say so (DeepSeek-V3.1) have inputs cast with powers of two."""
    with server.model_of(DTYPE):
        weight = quantized("128x128", 128, 256)
        layer = server.linear(weight, scale_fmt="ue8m0")
        x = random(9, 256, dtype=DTYPE)
        y, _ = layer(x)
        assert_product(y, cast(x, "1x128", power_of_two=True), values(weight))
        with pytest.raises(AssertionError, match=r"norm of the error|are wrong"):
            assert_product(y, cast(x, "1x128"), values(weight))


@pytest.mark.parametrize("by_columns", [False, True])
def test_input_that_was_cast_before(plugged_in, by_columns):
    """By a kernel of SGLang's, whose scales may lie by columns."""
    with server.model_of(DTYPE):
        weight = quantized("128x128", 128, 256)
        layer = server.linear(weight)
        codes = octofold.quantize(random(9, 256, dtype=DTYPE), "1x128")
        scale = codes.scale.t().contiguous().t() if by_columns else codes.scale
        y, _ = layer((codes.data, scale))
        assert y.dtype == DTYPE
        assert_product(y, values(codes), values(weight))


def test_cut_blocks_that_do_not_fit(gpu, plugged_in):
    """An input that was cast before, checkpoints that have a rank's part alone, other GPUs."""
    config = server.config_of_blocks()
    with server.model_of(DTYPE), server.rank_of(4, 1):
        layer = RowParallelLinear(4 * 96, 128, False, quant_config=config)
        assert layer.quant_method.weight_block_size == [128, 32], "which some models read"
        layer.quant_method.process_weights_after_loading(layer)
        assert "cannot be loaded again" in layer._derived_weight_cache_error
        assert layer.weight.weight_loader is None
        with pytest.raises(octofold.UnsupportedError, match="an input of 16 bits, got FP8"):
            layer((random(9, 96, dtype=torch.float8_e4m3fn), torch.ones(9, 1)))
        with pytest.raises(ValueError, match="96 is not divisible"):
            RowParallelLinear(4 * 96, 128, quant_config=config, use_presharded_weights=True)
        gpu(8, 9)
        with pytest.raises(ValueError, match="96 is not divisible"):
            RowParallelLinear(4 * 96, 128, quant_config=config)


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_input_that_was_cast_before_by_one_scale_or_by_tokens(plugged_in, granularity):
    with server.model_of(torch.float16):
        weight = quantized("channel", 128, 256)
        codes = octofold.quantize(random(5, 256, dtype=torch.float16), granularity)
        scale = codes.scale if granularity == "tensor" else codes.scale[:, None]
        y = fp8.apply_fp8_linear(
            codes.data,
            weight.data.t(),
            weight.scale[:, None],
            scale,
            pre_quant_output_dtype=torch.float16,
        )
        assert y.dtype == torch.float16
        assert_product(y, values(codes), values(weight))


def test_products_that_do_not_fit_are_sglangs(gpu, monkeypatch):
    """A weight in another layout, a bound of the scales."""
    calls = []
    monkeypatch.setattr(fp8_utils, "apply_fp8_linear", lambda *a, **k: calls.append((a, k)))
    load_plugins()
    weight = quantized("tensor", 128, 256)
    x = random(5, 256, dtype=DTYPE)
    by_rows = weight.data.t().contiguous()
    fp8_utils.apply_fp8_linear(x, by_rows, weight.scale, None, cutlass_fp8_supported=True)
    bound = torch.ones(1)
    fp8_utils.apply_fp8_linear(
        input=x, weight=weight.data.t(), weight_scale=weight.scale, input_scale_ub=bound
    )
    assert [call[0][1] is by_rows for call in calls] == [True, False]
    assert calls[0][1]["cutlass_fp8_supported"] is True
    assert calls[1][0][4] is bound


def test_weights_alone_of_shards(gpu, plugged_in):
    """Each keeps its scale: no weight is rounded again."""
    gpu(8, 6)
    with server.model_of(DTYPE):
        parts = [quantized("tensor", outputs, 128) for outputs in (64, 32)]
        layer = MergedColumnParallelLinear(
            128, [64, 32], False, quant_config=server.fp8_config(), parallel_group="replicated"
        )
        layer.weight.data.copy_(torch.cat([part.data for part in parts]))
        layer.weight_scale.data.copy_(
            torch.cat([part.scale for part in parts]) * torch.tensor([1, 3])
        )
        scales = layer.weight_scale.tolist()
        layer.quant_method.process_weights_after_loading(layer)
        x = random(5, 128, dtype=DTYPE)
        weights = [part.data.double() * scale for part, scale in zip(parts, scales, strict=True)]
        assert_product(layer(x)[0], x.double(), torch.cat(weights))


def test_experts_with_a_factor(plugged_in):
    """Some models multiply the sum by one. Some slots go nowhere."""
    with server.server():
        layer = server.experts(routed_scaling_factor=2.5)
        assert isinstance(layer.runner, MoeRunner)
        load_experts(layer)
        x, ids, weights = routed(9)
        ids[0, 1] = -1
        y = server.run_experts(layer, x, ids, weights)
        w13 = octofold.ScaledTensor(layer.w13_weight, layer.w13_weight_scale_inv, "128x128")
        w2 = octofold.ScaledTensor(layer.w2_weight, layer.w2_weight_scale_inv, "128x128")
        assert torch.equal(y, octofold.experts(x, ids, weights * 2.5, w13, w2))


@pytest.mark.parametrize(
    ("capability", "options", "reason"),
    [
        ((8, 9), {}, "octofold is for GPUs of compute capability 9.0 .H100, H200., found 8.9"),
        ((9, 0), {"swiglu_limit": 7.0}, "expected gates that are not clamped, got a limit"),
        ((9, 0), {"activation": "relu2"}, "expected gates of silu or gelu, got relu2"),
        ((9, 0), {"is_gated": False}, "expected gates of silu or gelu, got silu without gates"),
        ((9, 0), {"no_combine": True}, "expected sums by the routing's weights"),
    ],
)
def test_experts_that_do_not_fit_are_an_error(gpu, plugged_in, capability, options, reason):
    """A user has asked for it: SGLang does not start, and says why."""
    gpu(*capability)
    with server.server(), pytest.raises(octofold.UnsupportedError, match=reason):
        server.experts(**options)


def test_experts_in_deterministic_inference(plugged_in):
    """Tokens are apart, which tokens that share a scale would not be."""
    try:
        with server.server(enable_deterministic_inference=True):
            layer = server.experts()
            load_experts(layer)
            x, ids, weights = routed(40)
            y = server.run_experts(layer, x, ids, weights)
            for tokens in (slice(7, 8), slice(3, 20)):
                some = server.run_experts(layer, x[tokens], ids[tokens], weights[tokens])
                assert torch.equal(some, y[tokens])
            with pytest.raises(octofold.UnsupportedError, match="got a scale for each expert"):
                server.experts("tensor")
        assert octofold.is_batch_invariant()
    finally:
        octofold.set_batch_invariant(False)


def test_experts_of_other_backends_are_sglangs(plugged_in):
    with server.server("triton"):
        layer = server.experts()
    assert layer.runner_backend.is_triton()
    assert not isinstance(layer.runner.runner_core, OctofoldRunnerCore)
