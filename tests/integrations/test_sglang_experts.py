"""SGLang's mixture of experts with `--moe-runner-backend octofold`: its layer, its loader of
weights, its dispatcher and its runner, with the plug's experts inside."""

import contextlib

import octofold
import pytest
import torch
from octofold.integrations.sglang.experts import OctofoldRunnerCore
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.moe_runner.runner import MoeRunner
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.moe.utils import resolve_moe_runner_backend
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.runtime_context import get_context, get_flags, get_parallel

from tests.integrations.serving_support import (
    experts_of,
    quantized,
    random,
    relative_error,
    routed,
    values,
)
from tests.integrations.sglang_support import gpu, plugged_in, sglang_as_it_was

__all__ = ["gpu", "plugged_in", "sglang_as_it_was"]  # fixtures
pytestmark = pytest.mark.usefixtures("plugged_in")
DTYPE = torch.bfloat16
HIDDEN, INNER, EXPERTS, TOP_K = 256, 128, 4, 2


@contextlib.contextmanager
def server(backend="octofold", **options):
    """The state inside of a server of one rank that was started with this --moe-runner-backend."""
    with get_context().override_server_args(moe_runner_backend=backend, **options):
        one = {"moe_ep_rank": 0, "moe_tp_rank": 0, "tp_rank": 0, "tp_group": None}
        with (
            get_parallel().override(**one),
            get_flags().moe.override(runner_backend=resolve_moe_runner_backend(backend)),
            torch.inference_mode(),
        ):
            yield


def make(blocks=(128, 128), **options):
    config = Fp8Config(
        is_checkpoint_fp8_serialized=True,
        activation_scheme="dynamic",
        weight_block_size=None if blocks is None else list(blocks),
    )
    return FusedMoE(
        EXPERTS, HIDDEN, INNER, 0, TOP_K, params_dtype=DTYPE, quant_config=config, **options
    )


def load(layer):
    """Loads a checkpoint's experts, by SGLang's loader. Returns them, gates and ups together."""
    loaded = []
    for expert in range(EXPERTS):
        gate, up, down = (
            quantized("128x128", *shape)
            for shape in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
        )
        for shard, part in (("w1", gate), ("w3", up), ("w2", down)):
            matrix = "w2" if shard == "w2" else "w13"
            for suffix, tensor in (("weight", part.data), ("weight_scale_inv", part.scale)):
                parameter = getattr(layer, f"{matrix}_{suffix}")
                layer.weight_loader(parameter, tensor, f"{matrix}_{suffix}", shard, expert)
        loaded.append((torch.cat([values(gate), values(up)]), values(down)))
    layer.quant_method.process_weights_after_loading(layer)
    return loaded


def run(layer, x, ids, weights):
    return layer(x, StandardTopKOutput(weights, ids, None))


@pytest.mark.parametrize("tokens", [1, 40])
def test_experts(tokens):
    with server():
        layer = make()
        assert isinstance(layer.runner, MoeRunner)
        loaded = load(layer)
        x, (ids, weights) = random(tokens, HIDDEN, dtype=DTYPE), routed(tokens, EXPERTS, TOP_K)
        y = run(layer, x, ids, weights)
    assert y.dtype == DTYPE
    # x and the activation are cast to e4m3, each with an error of some 2.6 %.
    assert relative_error(y, experts_of(loaded, x, ids, weights)) < 0.06


def test_the_bits_are_those_of_octofold_experts():
    """With the factor that some models multiply the sum by, and slots that go nowhere."""
    with server():
        layer = make(routed_scaling_factor=2.5)
        load(layer)
        x, (ids, weights) = random(9, HIDDEN, dtype=DTYPE), routed(9, EXPERTS, TOP_K)
        ids[0, 1] = -1
        y = run(layer, x, ids, weights)
        w13 = octofold.ScaledTensor(layer.w13_weight, layer.w13_weight_scale_inv, "128x128")
        w2 = octofold.ScaledTensor(layer.w2_weight, layer.w2_weight_scale_inv, "128x128")
        assert torch.equal(y, octofold.experts(x, ids, weights * 2.5, w13, w2))


def test_gelu():
    with server():
        layer = make(activation="gelu")
        loaded = load(layer)
        x, (ids, weights) = random(9, HIDDEN, dtype=DTYPE), routed(9, EXPERTS, TOP_K)
        y = run(layer, x, ids, weights)
    expected = experts_of(loaded, x, ids, weights, torch.nn.functional.gelu)
    assert relative_error(y, expected) < 0.06


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
def test_what_does_not_fit_is_an_error(gpu, capability, options, reason):
    """A user has asked for it: SGLang does not start, and says why."""
    gpu(*capability)
    with server(), pytest.raises(octofold.UnsupportedError, match=reason):
        make(**options)


def test_deterministic_inference():
    """Tokens are apart, which tokens that share a scale would not be."""
    try:
        with server(enable_deterministic_inference=True):
            layer = make()
            load(layer)
            x, (ids, weights) = random(40, HIDDEN, dtype=DTYPE), routed(40, EXPERTS, TOP_K)
            y = run(layer, x, ids, weights)
            for tokens in (slice(7, 8), slice(3, 20)):
                some = run(layer, x[tokens], ids[tokens], weights[tokens])
                assert torch.equal(some, y[tokens])
            with pytest.raises(octofold.UnsupportedError, match="got a scale for each expert"):
                make(blocks=None)
        assert octofold.is_batch_invariant()
    finally:
        octofold.set_batch_invariant(False)


def test_other_backends_are_sglangs():
    with server("triton"):
        layer = make()
    assert layer.runner_backend.is_triton()
    assert not isinstance(layer.runner.runner_core, OctofoldRunnerCore)
