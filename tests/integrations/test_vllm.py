"""How the plug gets into vLLM: its entry point, vLLM's tables and choice, what the log says, and
how it stays out."""

import logging

import octofold
import pytest
import torch
from octofold.integrations import vllm as plug
from octofold.integrations.vllm import linear as plugged
from vllm import plugins
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    FP8ScaledMMLinearLayerConfig,
)
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

from tests.integrations.vllm_support import KERNELS, TABLES, gpu, vllm_tables

__all__ = ["gpu", "vllm_tables"]  # fixtures
BLOCKS, CHANNELS, WEIGHTS = KERNELS
STATIC_BLOCKS = create_fp8_quant_key(static=True, group_shape=GroupShape(128, 128))


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


def kernels():
    return [table[PlatformEnum.CUDA] for table in TABLES]


def is_in():
    return any(kernel in KERNELS for table in kernels() for kernel in table)


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "vllm.plugins.octofold")
    return caplog


def load(monkeypatch):
    """Loads the plugins as vLLM does in each of its processes."""
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    plugins.load_general_plugins()


def test_entry_point(vllm_tables, monkeypatch, said):
    assert not is_in()
    for _ in range(3):  # several times in one process, too
        load(monkeypatch)
    of_blocks, of_channels, of_weights = kernels()
    assert of_blocks[:2] == [BLOCKS, WEIGHTS]
    assert of_channels[:2] == [CHANNELS, WEIGHTS]
    assert of_weights[0] is WEIGHTS
    for table in kernels():
        assert len(set(table)) == len(table)
        assert len(table) > 2, "vLLM's own stay"
    assert "is first for linear layers in FP8" in said.text


@pytest.mark.parametrize("text", ["0", "sglang, comfyui"])
def test_switched_off(vllm_tables, monkeypatch, said, text):
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", text)
    load(monkeypatch)
    assert not is_in()
    assert f"octofold is switched off by OCTOFOLD_INTEGRATIONS={text}" in said.text


def test_wrong_variable(vllm_tables, monkeypatch, said):
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", "vlm")
    load(monkeypatch)
    assert not is_in()
    assert "OCTOFOLD_INTEGRATIONS: expected 0, or names of vllm" in said.text


@pytest.mark.parametrize("found", ["0.32.1", "0.34.0"])
def test_another_version(vllm_tables, monkeypatch, said, found):
    monkeypatch.setattr("importlib.metadata.version", lambda name: found)
    load(monkeypatch)
    assert not is_in()
    assert [record.levelname for record in said.records] == ["WARNING"]
    assert f"is for vllm>=0.33,<0.34, found vllm {found}: nothing was changed" in said.text


def test_a_table_that_is_gone(vllm_tables, monkeypatch, said):
    """The plug needs tables that are no public API: if one is gone, vLLM goes on without us."""
    monkeypatch.delattr(vllm_tables, "_POSSIBLE_WFP8A16_KERNELS")
    plug.register()
    assert "octofold is not used" in said.text


def choose(layer, table, capability=None):
    return plugged.tables.choose_scaled_mm_linear_kernel(
        layer, table, capability, quantization="fp8"
    )


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
        (BLOCKS, (8, 9), BLOCK_LAYER, "is for GPUs of compute capability 9.0 (H100, H200)"),
        (BLOCKS, (10, 0), BLOCK_LAYER, "is for GPUs of compute capability 9.0 (H100, H200)"),
        (CHANNELS, (12, 0), CHANNEL_LAYER, "is for GPUs of compute capability 9.0 (H100, H200)"),
        (WEIGHTS, (8, 9), CHANNEL_LAYER, "is for GPUs without FP8 units"),
        (WEIGHTS, (7, 0), CHANNEL_LAYER, "has no kernels for GPUs of compute capability 7.0"),
        (
            WEIGHTS,
            (7, 5),
            CHANNEL_LAYER,
            "expected a GPU of compute capability 8.0 or later for products of bfloat16, got 7.5",
        ),
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
