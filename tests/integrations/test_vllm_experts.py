"""vLLM's mixture of experts with `--quantization octofold`: its layer, its loader of weights and
its modular kernel, with the plug's experts inside."""

import logging

import octofold
import pytest
import torch
from octofold.integrations.vllm import experts as plugged
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
from vllm.model_executor.layers.linear import LinearBase, ReplicatedLinear
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod, Fp8MoEMethod

from tests.integrations.serving_support import (
    experts_of,
    quantized,
    random,
    relative_error,
    routed,
    values,
)
from tests.integrations.vllm_support import gpu, model_of, one_rank, vllm_tables

__all__ = ["gpu", "one_rank", "vllm_tables"]  # fixtures
pytestmark = pytest.mark.usefixtures("one_rank")
DTYPE = torch.bfloat16
HIDDEN, INNER, EXPERTS, TOP_K = 256, 128, 4, 2
CHECKPOINT = {"quant_method": "fp8", "activation_scheme": "dynamic"}
GRANULARITIES = {"128x128": CHECKPOINT | {"weight_block_size": [128, 128]}, "tensor": CHECKPOINT}


@pytest.fixture(autouse=True)
def plugged_in(gpu):
    torch.manual_seed(0)
    plugged.insert()


def make(granularity="128x128", **options):
    """vLLM's layer, and its experts' weights."""
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER}
    return FusedMoEFactory(
        num_experts=EXPERTS,
        top_k=TOP_K,
        **sizes,
        params_dtype=DTYPE,
        quant_config=plugged.OctofoldFp8Config.from_config(GRANULARITIES[granularity]),
        prefix="layer",
        tp_size=1,
        dp_size=1,
        pcp_size=1,
        **options,
    ).routed_experts


def load(layer, granularity):
    """Loads a checkpoint's experts, by vLLM's loader. Returns them, gates and ups together."""
    name = "weight_scale_inv" if granularity == "128x128" else "weight_scale"
    loaded = []
    for expert in range(EXPERTS):
        gate, up, down = (
            quantized(granularity, *shape)
            for shape in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
        )
        for shard, part in (("w1", gate), ("w3", up), ("w2", down)):
            matrix = "w2" if shard == "w2" else "w13"
            for suffix, tensor in (("weight", part.data), (name, part.scale)):
                if granularity == "tensor" and suffix == name:
                    tensor = tensor.reshape(())
                parameter = getattr(layer, f"{matrix}_{suffix}")
                layer.weight_loader(parameter, tensor, f"{matrix}_{suffix}", shard, expert)
        loaded.append((torch.cat([values(gate), values(up)]), values(down)))
    layer.quant_method.process_weights_after_loading(layer)
    return loaded


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("tokens", [1, 40])
def test_experts(granularity, tokens):
    with model_of(DTYPE) as config:
        layer = make(granularity)
        method = layer.quant_method
        assert isinstance(method, Fp8MoEMethod)
        assert method.experts_cls is plugged.OctofoldExperts
        loaded = load(layer, granularity)
        x, (ids, weights) = random(tokens, HIDDEN, dtype=DTYPE), routed(tokens, EXPERTS, TOP_K)
        with set_current_vllm_config(config):
            y = method.apply(layer, x, weights, ids, None, None)
    assert y.dtype == DTYPE
    # x and the activation are cast to e4m3, each with an error of some 2.6 %.
    assert relative_error(y, experts_of(loaded, x, ids, weights)) < 0.06


def test_the_bits_are_those_of_octofold_experts():
    with model_of(DTYPE):
        layer = make()
        load(layer, "128x128")
        x, (ids, weights) = random(9, HIDDEN, dtype=DTYPE), routed(9, EXPERTS, TOP_K)
        y = layer.quant_method.apply(layer, x, weights, ids, None, None)
        w13 = octofold.ScaledTensor(layer.w13_weight, layer.w13_weight_scale_inv, "128x128")
        w2 = octofold.ScaledTensor(layer.w2_weight, layer.w2_weight_scale_inv, "128x128")
        assert torch.equal(y, octofold.experts(x, ids, weights, w13, w2))


def test_gelu():
    with model_of(DTYPE):
        layer = make(activation="gelu_tanh")
        loaded = load(layer, "128x128")
        x, (ids, weights) = random(9, HIDDEN, dtype=DTYPE), routed(9, EXPERTS, TOP_K)
        y = layer.quant_method.apply(layer, x, weights, ids, None, None)

    def activation(gate):
        return torch.nn.functional.gelu(gate, approximate="tanh")

    assert relative_error(y, experts_of(loaded, x, ids, weights, activation)) < 0.06


def test_experts_of_other_ranks():
    """With an expert_map, of which vLLM gives each rank its own: the sums of the ranks are those of
    one that has them all."""
    with model_of(DTYPE):
        layer = make()
        load(layer, "128x128")
        kernel = layer.quant_method.moe_kernel.fused_experts
        x, (ids, weights) = random(9, HIDDEN, dtype=DTYPE), routed(9, EXPERTS, TOP_K)
        whole = layer.quant_method.apply(layer, x, weights, ids, None, None)
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
def test_what_does_not_fit_is_vllms(gpu, caplog, capability, options, reason):
    gpu(*capability)
    caplog.set_level(logging.INFO, "vllm.plugins.octofold")
    with model_of(DTYPE):
        method = make(**options).quant_method
    assert method.experts_cls is not plugged.OctofoldExperts
    assert "Using vLLM's experts, not OctofoldExperts" in caplog.text
    assert reason in caplog.text


def test_it_is_chosen_by_name():
    ask = plugged.OctofoldFp8Config.override_quantization_method
    assert plugged.NAME in QUANTIZATION_METHODS
    assert ask(CHECKPOINT, "octofold") == "octofold"
    for user in (None, "fp8", "compressed-tensors"):
        assert ask(CHECKPOINT, user) is None
    assert ask({"quant_method": "awq"}, "octofold") is None


def test_a_checkpoint_in_16_bits_is_refused():
    with pytest.raises(ValueError, match="--quantization octofold: expected a checkpoint whose"):
        plugged.OctofoldFp8Config()  # what vLLM does where a checkpoint says nothing


def test_linear_layers_are_vllms():
    with model_of(DTYPE):
        config = plugged.OctofoldFp8Config.from_config(GRANULARITIES["128x128"])
        layer = ReplicatedLinear(256, 256, quant_config=config, prefix="layer")
        assert isinstance(layer, LinearBase)
        assert type(layer.quant_method) is Fp8LinearMethod
