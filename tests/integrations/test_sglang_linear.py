"""SGLang's own linear layers in FP8, with their weights loaded, computed by the plug."""

import contextlib

import octofold
import pytest
import torch
from sglang.srt.layers.linear import MergedColumnParallelLinear, ReplicatedLinear
from sglang.srt.layers.quantization import fp8, fp8_utils
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.layers.quantization.w8a8_fp8 import W8A8Fp8Config

from tests.integrations.serving_support import assert_product, cast, quantized, random, values
from tests.integrations.sglang_support import gpu, load, plugged_in, sglang_as_it_was

__all__ = ["gpu", "plugged_in", "sglang_as_it_was"]  # fixtures
pytestmark = pytest.mark.usefixtures("plugged_in")
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@contextlib.contextmanager
def model_of(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_default_dtype(before)


def layer_of(config, weight, bias=None, **tensors):
    """SGLang's layer of these weights, after what SGLang does with what it has loaded."""
    outputs, inputs = weight.shape
    layer = ReplicatedLinear(
        inputs, outputs, bias=bias is not None, quant_config=config, prefix="x"
    )
    tensors = {"weight": weight.data} | tensors
    if bias is not None:
        tensors["bias"] = bias
    for name, tensor in tensors.items():
        parameter = getattr(layer, name)
        assert parameter.shape == tensor.shape, name
        parameter.data.copy_(tensor)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def fp8_config(**options):
    options = {"activation_scheme": "dynamic"} | options
    return Fp8Config(is_checkpoint_fp8_serialized=True, **options)


def block_layer(inputs, outputs, bias=None, **options):
    weight = quantized("128x128", outputs, inputs)
    config = fp8_config(weight_block_size=[128, 128], **options)
    return layer_of(config, weight, bias, weight_scale_inv=weight.scale), weight


@DTYPES
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 384), (300, 200), (136, 72)])
def test_blocks(dtype, inputs, outputs):
    with model_of(dtype):
        bias = random(outputs, dtype=dtype)
        layer, weight = block_layer(inputs, outputs, bias)
        for shape in ((1,), (33,), (2, 5), (0,)):
            x = random(*shape, inputs, dtype=dtype)
            y, _ = layer(x)
            assert y.shape == (*shape, outputs)
            assert y.dtype == dtype
            if x.numel():
                assert_product(y, cast(x, "1x128"), values(weight), bias)


def test_scales_of_activations_that_are_exponents():
    """Checkpoints that say so (DeepSeek-V3.1) have inputs cast with powers of two."""
    with model_of(torch.bfloat16):
        layer, weight = block_layer(256, 128, scale_fmt="ue8m0")
        x = random(9, 256, dtype=torch.bfloat16)
        y, _ = layer(x)
        assert_product(y, cast(x, "1x128", power_of_two=True), values(weight))
        with pytest.raises(AssertionError, match=r"norm of the error|are wrong"):
            assert_product(y, cast(x, "1x128"), values(weight))


@pytest.mark.parametrize("by_columns", [False, True])
def test_input_that_was_cast_before(by_columns):
    """By a kernel of SGLang's, whose scales may lie by columns."""
    with model_of(torch.bfloat16):
        layer, weight = block_layer(256, 128)
        codes = octofold.quantize(random(9, 256, dtype=torch.bfloat16), "1x128")
        scale = codes.scale.t().contiguous().t() if by_columns else codes.scale
        y, _ = layer((codes.data, scale))
        assert y.dtype == torch.bfloat16
        assert_product(y, values(codes), values(weight))


@DTYPES
@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_one_scale(dtype, scheme):
    """SGLang has one for each channel of them, where there are FP8 units."""
    scale = torch.tensor([0.01])
    with model_of(dtype):
        weight = quantized("tensor", 200, 304)
        tensors = {"weight_scale": weight.scale}
        if scheme == "static":
            tensors["input_scale"] = scale
        bias = random(200, dtype=dtype)
        layer = layer_of(fp8_config(activation_scheme=scheme), weight, bias, **tensors)
        x = random(33, 304, dtype=dtype)
        expected = cast(x, "tensor", scale) if scheme == "static" else cast(x, "channel")
        assert_product(layer(x)[0], expected, values(weight), bias)


def test_channels():
    with model_of(torch.bfloat16):
        weight = quantized("channel", 200, 304)
        config = W8A8Fp8Config(is_checkpoint_fp8_serialized=True)
        layer = layer_of(config, weight, weight_scale=weight.scale[:, None])
        x = random(33, 304, dtype=torch.bfloat16)
        assert_product(layer(x)[0], cast(x, "channel"), values(weight))


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_input_that_was_cast_before_by_one_scale_or_by_tokens(granularity):
    with model_of(torch.float16):
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


def test_what_does_not_fit_is_sglangs(sglang_as_it_was, monkeypatch):
    """A weight in another layout, a bound of the scales."""
    calls = []
    monkeypatch.setattr(fp8_utils, "apply_fp8_linear", lambda *a, **k: calls.append((a, k)))
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.reset()
    load()
    weight = quantized("tensor", 128, 256)
    x = random(5, 256, dtype=torch.bfloat16)
    by_rows = weight.data.t().contiguous()
    fp8_utils.apply_fp8_linear(x, by_rows, weight.scale, None, cutlass_fp8_supported=True)
    bound = torch.ones(1)
    fp8_utils.apply_fp8_linear(
        input=x, weight=weight.data.t(), weight_scale=weight.scale, input_scale_ub=bound
    )
    assert [call[0][1] is by_rows for call in calls] == [True, False]
    assert calls[0][1]["cutlass_fp8_supported"] is True
    assert calls[1][0][4] is bound


@pytest.mark.parametrize("capability", [(8, 0), (8, 6)])
@pytest.mark.parametrize("granularity", ["128x128", "tensor"])
def test_weights_alone(gpu, capability, granularity):
    """If there are no FP8 units, x is not cast, nor the weight repacked."""
    gpu(*capability)
    dtype = torch.bfloat16
    with model_of(dtype):
        bias = random(200, dtype=dtype)
        if granularity == "128x128":
            layer, weight = block_layer(300, 200, bias)
        else:
            weight = quantized(granularity, 200, 300)
            layer = layer_of(fp8_config(), weight, bias, weight_scale=weight.scale)
        assert not layer.quant_method.use_marlin
        for rows in (1, 40):
            x = random(rows, 300, dtype=dtype)
            assert_product(layer(x)[0], x.double(), values(weight), bias)


def test_weights_alone_of_shards(gpu):
    """Each keeps its scale: no weight is rounded again."""
    gpu(8, 6)
    with model_of(torch.bfloat16):
        parts = [quantized("tensor", outputs, 128) for outputs in (64, 32)]
        layer = MergedColumnParallelLinear(
            128, [64, 32], False, quant_config=fp8_config(), parallel_group="replicated"
        )
        layer.weight.data.copy_(torch.cat([part.data for part in parts]))
        layer.weight_scale.data.copy_(
            torch.cat([part.scale for part in parts]) * torch.tensor([1, 3])
        )
        scales = layer.weight_scale.tolist()
        layer.quant_method.process_weights_after_loading(layer)
        x = random(5, 128, dtype=torch.bfloat16)
        weights = [part.data.double() * scale for part, scale in zip(parts, scales, strict=True)]
        assert_product(layer(x)[0], x.double(), torch.cat(weights))


@pytest.mark.parametrize("kind", ["blocks", "channels", "weights alone"])
def test_compile(gpu, kind):
    """One graph for all numbers of tokens, without a break, and with the bits of the layer."""
    if kind == "weights alone":
        gpu(8, 6)
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph

    with model_of(torch.bfloat16):
        if kind == "channels":
            weight = quantized("channel", 384, 256)
            config = W8A8Fp8Config(is_checkpoint_fp8_serialized=True)
            layer = layer_of(config, weight, weight_scale=weight.scale[:, None])
        else:
            layer, _ = block_layer(256, 384)
        compiled = torch.compile(
            lambda x: layer(x)[0] + 1, fullgraph=True, dynamic=True, backend=backend
        )
        for rows in (3, 8, 9, 64):
            x = random(rows, 256, dtype=torch.bfloat16)
            assert torch.equal(compiled(x), layer(x)[0] + 1)
    assert len(graphs) == 1
    assert sum("octofold.serving" in target for target in graphs[0]) == 1
