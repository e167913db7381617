"""How the plug gets into SGLang: its entry point and hooks, what the log says, and how it stays
out."""

import logging

import octofold
import pytest
from octofold.integrations.sglang import linear as plugged
from sglang.srt.arg_groups.choices import MOE_RUNNER_BACKEND_CHOICES
from sglang.srt.layers.quantization import fp8, fp8_utils
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context

from tests.integrations.sglang_support import HOOKED, gpu, is_hooked, load, sglang_as_it_was

__all__ = ["gpu", "sglang_as_it_was"]  # fixtures
BLOCKS = [128, 128]


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "sglang.octofold")
    return caplog


def test_entry_point(sglang_as_it_was, said):
    assert not any(is_hooked())
    for _ in range(3):
        load()
    assert all(is_hooked())
    assert all(len(hooks) == 1 for hooks in HookRegistry._hooks.values())
    assert len(HookRegistry._hooks) == len(HOOKED)
    assert fp8.apply_fp8_linear is fp8_utils.apply_fp8_linear, "in the modules that import it, too"
    assert MOE_RUNNER_BACKEND_CHOICES.count("octofold") == 1
    assert "is first for linear layers in FP8" in said.text


@pytest.mark.parametrize("text", ["0", "vllm"])
def test_switched_off(sglang_as_it_was, monkeypatch, said, text):
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", text)
    load()
    assert not any(is_hooked())
    assert "octofold" not in MOE_RUNNER_BACKEND_CHOICES
    assert f"octofold is switched off by OCTOFOLD_INTEGRATIONS={text}" in said.text


@pytest.mark.parametrize("found", ["0.5.22", "0.6.0"])
def test_another_version(sglang_as_it_was, monkeypatch, said, found):
    monkeypatch.setattr("importlib.metadata.version", lambda name: found)
    load()
    assert not any(is_hooked())
    assert [record.levelname for record in said.records] == ["WARNING"]
    assert f"is for sglang>=0.5.23,<0.6, found sglang {found}: nothing was changed" in said.text


def function_of(callable):
    return getattr(callable, "func", callable)


def test_choice(gpu, said):
    load()
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
    load()
    expected = originals[0](BLOCKS)
    assert function_of(fp8.dispatch_w8a8_block_fp8_linear(BLOCKS)) is function_of(expected)
    if capability[0] is not None:
        assert fp8.can_auto_enable_marlin_fp8() == originals[2]()
    if capability == (8, 9):
        reason = "SGLang computes linear layers in FP8: Octofold's product is for GPUs of compute"
        assert reason in said.text


def test_other_blocks_are_sglangs(gpu):
    load()
    linear = fp8.dispatch_w8a8_block_fp8_linear([64, 128])
    assert function_of(linear) is fp8_utils.triton_w8a8_block_fp8_linear


def test_a_chosen_backend_stays_chosen(gpu, monkeypatch):
    load()
    monkeypatch.setattr(fp8_utils, "FP8_GEMM_RUNNER_BACKEND", fp8_utils.Fp8GemmRunnerBackend.TRITON)
    linear = fp8.dispatch_w8a8_block_fp8_linear(BLOCKS)
    assert function_of(linear) is fp8_utils.triton_w8a8_block_fp8_linear


def test_deterministic_inference_is_batch_invariant(gpu):
    load()
    try:
        for wanted in (False, True):
            with get_context().override_server_args(enable_deterministic_inference=wanted):
                linear = fp8.dispatch_w8a8_block_fp8_linear(BLOCKS)
            assert function_of(linear) is plugged.linear_of_blocks
            assert octofold.is_batch_invariant() == wanted
    finally:
        octofold.set_batch_invariant(False)
