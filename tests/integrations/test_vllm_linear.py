"""vLLM's own linear layers in FP8, with their weights loaded, computed by the plug's kernels."""

import octofold
import pytest
import torch
from octofold.integrations.vllm import linear as plugged
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.fusion.quant_activation import QuantizedActivation
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, ReplicatedLinear
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8StaticTensorSym

from tests.integrations.serving_support import assert_product, cast, quantized, random, values
from tests.integrations.vllm_support import KERNELS, gpu, model_of, one_rank, vllm_tables

__all__ = ["gpu", "one_rank", "vllm_tables"]  # fixtures
pytestmark = pytest.mark.usefixtures("one_rank")
BLOCKS = {"weight_block_size": [128, 128]}
STATIC = torch.tensor([0.01])
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(autouse=True)
def plugged_in(gpu):
    torch.manual_seed(0)
    plugged.insert()


def load(layer, **tensors):
    """Loads tensors as from a checkpoint, and then does what vLLM does with what it has loaded."""
    for name, tensor in tensors.items():
        parameter = getattr(layer, name)
        assert parameter.shape == tensor.shape, name
        parameter.data.copy_(tensor)
    layer.quant_method.process_weights_after_loading(layer)


def kernel_of(layer):
    method = layer.quant_method
    scheme = getattr(layer, "scheme", method)
    return getattr(scheme, "fp8_linear", None) or scheme.linear_kernel


def block_layer(dtype, inputs, outputs, bias=True, scale_dtype=None):
    weight = quantized("128x128", outputs, inputs)
    if scale_dtype is not None:
        weight = octofold.quantize(
            values(weight).float(), octofold.Format("e4m3", "128x128", power_of_two=True)
        )
    config = Fp8Config(**BLOCKS)
    config.is_scale_e8m0 = scale_dtype is not None
    layer = ReplicatedLinear(inputs, outputs, bias=bias, quant_config=config, prefix="layer")
    tensors = {"weight": weight.data, "weight_scale_inv": weight.scale}
    if bias:
        tensors["bias"] = random(outputs, dtype=dtype)
    load(layer, **tensors)
    return layer, weight


@DTYPES
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 384), (300, 200), (136, 72)])
def test_blocks(dtype, inputs, outputs, bias):
    """Any sizes; without tokens, and with leading dimensions."""
    with model_of(dtype):
        layer, weight = block_layer(dtype, inputs, outputs, bias)
        assert type(kernel_of(layer)) is plugged.OctofoldFp8BlockScaledMMKernel
        for shape in ((1,), (33,), (2, 5), (0,)):
            x = random(*shape, inputs, dtype=dtype)
            y, _ = layer(x)
            assert y.shape == (*shape, outputs)
            assert y.dtype == dtype
            if x.numel():
                assert_product(y, cast(x, "1x128"), values(weight), layer.bias)


def test_tokens_are_apart_where_that_is_wanted():
    octofold.set_batch_invariant(True)
    try:
        with model_of(torch.bfloat16):
            layer, _ = block_layer(torch.bfloat16, 300, 200)
            x = random(33, 300, dtype=torch.bfloat16)
            y, _ = layer(x)
            for tokens in (slice(7, 8), slice(3, 20)):
                assert torch.equal(layer(x[tokens])[0], y[tokens])
    finally:
        octofold.set_batch_invariant(False)


def test_blocks_keep_the_bytes_of_the_checkpoint():
    with model_of(torch.bfloat16):
        layer, weight = block_layer(torch.bfloat16, 300, 200)
        assert torch.equal(layer.weight.view(torch.uint8), weight.data.view(torch.uint8))
        assert torch.equal(layer.weight_scale_inv, weight.scale)


def test_blocks_in_one_call_have_the_bits_of_the_contract():
    """apply_block_scaled_mm(), which vLLM's base class has, is the same product."""
    with model_of(torch.bfloat16):
        layer, _ = block_layer(torch.bfloat16, 256, 384, bias=False)
        x = random(9, 256, dtype=torch.bfloat16)
        kernel = kernel_of(layer)
        y = kernel.apply_block_scaled_mm(A=x, B=layer.weight, As=x, Bs=layer.weight_scale_inv)
        assert torch.equal(y, layer(x)[0])
        base = super(plugged.OctofoldFp8BlockScaledMMKernel, kernel)
        assert torch.equal(y, base.apply_weights(layer, x))


def test_merged_blocks():
    """Two matrices in one, of which the last ends within a block."""
    dtype = torch.bfloat16
    with model_of(dtype):
        parts = [octofold.quantize(random(n, 256, dtype=dtype), "128x128") for n in (256, 72)]
        layer = MergedColumnParallelLinear(
            256, [256, 72], bias=False, quant_config=Fp8Config(**BLOCKS), prefix="layer"
        )
        for shard, part in enumerate(parts):  # by vLLM's loaders
            layer.weight.weight_loader(layer.weight, part.data, shard)
            layer.weight_scale_inv.weight_loader(layer.weight_scale_inv, part.scale, shard)
        load(layer)
        x = random(7, 256, dtype=dtype)
        y, _ = layer(x)
        assert_product(y, cast(x, "1x128"), torch.cat([values(part) for part in parts]))


def test_scales_that_are_exponents():
    """E8M0, as DeepSeek-V4 has them: the powers of two that they are."""
    with model_of(torch.bfloat16):
        layer, weight = block_layer(torch.bfloat16, 256, 256, scale_dtype=torch.float8_e8m0fnu)
        assert layer.weight_scale_inv.dtype == torch.float32
        x = random(5, 256, dtype=torch.bfloat16)
        assert_product(layer(x)[0], cast(x, "1x128"), values(weight), layer.bias)


@DTYPES
@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_one_scale(dtype, scheme):
    with model_of(dtype):
        weight = quantized("tensor", 200, 304)
        config = Fp8Config(activation_scheme=scheme)
        layer = ReplicatedLinear(304, 200, bias=True, quant_config=config, prefix="layer")
        bias = random(200, dtype=dtype)
        tensors = {"weight": weight.data, "weight_scale": weight.scale, "bias": bias}
        x = random(33, 304, dtype=dtype)
        if scheme == "static":
            tensors["input_scale"] = STATIC
        load(layer, **tensors)
        assert type(kernel_of(layer)) is plugged.OctofoldFP8ScaledMMLinearKernel
        # If there are FP8 units, vLLM chooses a scale for each token.
        expected = cast(x, "tensor", STATIC) if scheme == "static" else cast(x, "channel")
        assert_product(layer(x)[0], expected, values(weight), bias)


def compressed_tensors(strategy, dynamic=True):
    """The configuration of a checkpoint of llm-compressor."""
    eight_bits = {"num_bits": 8, "type": "float", "symmetric": True}
    if strategy == "block":
        weights = {"strategy": "block", "block_structure": [128, 128]}
        inputs = {"strategy": "group", "group_size": 128}
    else:
        weights, inputs = {"strategy": strategy}, {"strategy": "token" if dynamic else "tensor"}
    group = {
        "targets": ["Linear"],
        "weights": eight_bits | weights | {"dynamic": False},
        "input_activations": eight_bits | inputs | {"dynamic": dynamic},
    }
    return CompressedTensorsConfig.from_config(
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": group},
            "ignore": [],
        }
    )


@pytest.mark.parametrize(
    ("strategy", "granularity", "of_x"),
    [
        ("channel", "channel", "channel"),
        ("tensor", "tensor", "channel"),
        ("block", "128x128", "1x128"),
    ],
)
def test_compressed_tensors(strategy, granularity, of_x):
    dtype = torch.bfloat16
    with model_of(dtype):
        weight = quantized(granularity, 200, 304)
        config = compressed_tensors(strategy)
        layer = ReplicatedLinear(304, 200, bias=False, quant_config=config, prefix="layer")
        scale = weight.scale[:, None] if granularity == "channel" else weight.scale
        load(layer, weight=weight.data, weight_scale=scale)
        assert isinstance(kernel_of(layer), KERNELS)
        x = random(33, 304, dtype=dtype)
        assert_product(layer(x)[0], cast(x, of_x), values(weight))


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_input_that_was_cast_before(granularity):
    """With a static scale vLLM may cast in what stands before the layer."""
    dtype, scale = torch.bfloat16, torch.tensor([0.02])
    with model_of(dtype):
        weight = quantized(granularity, 128, 256)
        config = compressed_tensors(granularity, dynamic=False)
        layer = ReplicatedLinear(256, 128, bias=False, quant_config=config, prefix="layer")
        of_weight = weight.scale[:, None] if granularity == "channel" else weight.scale
        load(layer, weight=weight.data, weight_scale=of_weight, input_scale=scale)
        x = random(4, 256, dtype=dtype)
        codes = octofold.quantize(x, "tensor torchao", scale=scale)
        given = QuantizedActivation(codes.data, scale, dtype, x.shape, kFp8StaticTensorSym)
        y = layer.scheme.apply_weights(layer, given)
        assert_product(y, values(codes), values(weight))
        assert torch.equal(y, layer(x)[0])


@pytest.mark.parametrize("capability", [(8, 0), (8, 6)])
@pytest.mark.parametrize("strategy", ["channel", "tensor", "block"])
def test_weights_alone(gpu, capability, strategy):
    """vLLM takes such checkpoints for FP8 weights on GPUs without FP8 units. x is not cast."""
    dtype = torch.bfloat16
    gpu(*capability)
    granularity = "128x128" if strategy == "block" else strategy
    with model_of(dtype):
        weight = quantized(granularity, 200, 300)
        config = compressed_tensors(strategy)
        layer = ReplicatedLinear(300, 200, bias=False, quant_config=config, prefix="layer")
        scale = weight.scale[:, None] if granularity == "channel" else weight.scale
        load(layer, weight=weight.data, weight_scale=scale)
        assert type(kernel_of(layer)) is plugged.OctofoldWeightOnlyFP8LinearKernel
        for rows in (1, 40):
            x = random(rows, 300, dtype=dtype)
            assert_product(layer(x)[0], x.double(), values(weight))


@pytest.mark.parametrize(("capability", "dtype"), [((8, 6), torch.bfloat16), ((7, 5), torch.half)])
@pytest.mark.parametrize("granularity", ["tensor", "128x128"])
def test_weights_alone_of_fp8_checkpoints(gpu, capability, dtype, granularity):
    gpu(*capability)
    with model_of(dtype):
        weight = quantized(granularity, 200, 300)
        config = Fp8Config(**(BLOCKS if granularity == "128x128" else {}))
        layer = ReplicatedLinear(300, 200, bias=True, quant_config=config, prefix="layer")
        name = "weight_scale_inv" if granularity == "128x128" else "weight_scale"
        bias = random(200, dtype=dtype)
        load(layer, weight=weight.data, bias=bias, **{name: weight.scale})
        assert type(kernel_of(layer)) is plugged.OctofoldWeightOnlyFP8LinearKernel
        x = random(5, 300, dtype=dtype)
        assert_product(layer(x)[0], x.double(), values(weight), bias)


@pytest.mark.parametrize("kind", ["blocks", "channels", "weights alone"])
def test_compile(gpu, kind):
    """One graph for all numbers of tokens, without a break, and with the bits of the layer."""
    dtype = torch.bfloat16
    if kind == "weights alone":
        gpu(8, 6)
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph

    with model_of(dtype) as config:
        if kind == "channels":
            weight = octofold.quantize(random(384, 256, dtype=torch.float32), "channel")
            of_layer = compressed_tensors("channel")
            layer = ReplicatedLinear(256, 384, bias=False, quant_config=of_layer, prefix="layer")
            load(layer, weight=weight.data, weight_scale=weight.scale[:, None])
        else:
            layer, _ = block_layer(dtype, 256, 384)
        compiled = torch.compile(
            lambda x: layer(x)[0] + 1, fullgraph=True, dynamic=True, backend=backend
        )
        with set_current_vllm_config(config):
            for rows in (3, 8, 9, 64):
                x = random(rows, 256, dtype=dtype)
                assert torch.equal(compiled(x), layer(x)[0] + 1)
    assert len(graphs) == 1
    assert sum("octofold.serving" in target for target in graphs[0]) == 1
