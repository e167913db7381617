"""vLLM's layers on a CPU, in a process of one rank, on what vLLM takes for a GPU.

vLLM's extension (vllm._C) needs a GPU's driver. What asks it for something as it is imported is
imported before vLLM is told that it is on a GPU; the one op of it that loading a weight takes is
made of torch here. Nothing else of vLLM is replaced.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")

import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors
import vllm.model_executor.layers.quantization.fp8 as vllm_fp8
import vllm.model_executor.layers.quantization.online.fp8  # noqa: F401
from octofold.integrations.vllm import linear as plugged
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import (
    init_distributed_environment,
    initialize_model_parallel,
    model_parallel_is_initialized,
)
from vllm.model_executor.kernels import linear as tables
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability, PlatformEnum
from vllm.v1.worker.workspace import init_workspace_manager

TABLES = (
    tables._POSSIBLE_FP8_BLOCK_KERNELS,
    tables._POSSIBLE_FP8_KERNELS,
    tables._POSSIBLE_WFP8A16_KERNELS,
)
KERNELS = (
    plugged.OctofoldFp8BlockScaledMMKernel,
    plugged.OctofoldFP8ScaledMMLinearKernel,
    plugged.OctofoldWeightOnlyFP8LinearKernel,
)


_EXTENSION = torch.library.Library("_C", "FRAGMENT")
_EXTENSION.define(
    "static_scaled_fp8_quant(Tensor! codes, Tensor x, Tensor scale, int[]? group_shape) -> ()"
)


def _static_scaled_fp8_quant(codes, x, scale, group_shape):
    codes.copy_((x.float() / scale).clamp(-448, 448).to(codes.dtype))


_EXTENSION.impl("static_scaled_fp8_quant", _static_scaled_fp8_quant, "CPU")


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory):
    if model_parallel_is_initialized():  # by another file's tests
        return
    current_platform.device_type = "cpu"
    torch.accelerator.empty_cache = lambda: None  # there is none
    with set_current_vllm_config(VllmConfig()):
        rendezvous = tmp_path_factory.mktemp("vllm") / "rendezvous"
        init_distributed_environment(1, 0, f"file://{rendezvous}", 0, "gloo")
        initialize_model_parallel()
    init_workspace_manager(torch.device("cpu"))


@pytest.fixture
def vllm_tables():
    """vLLM's tables, which are afterwards as they were, without us."""
    before = [(table, dict(table)) for table in TABLES]
    for table in TABLES:
        for platform, kernels in table.items():
            table[platform] = [kernel for kernel in kernels if kernel not in KERNELS]
    yield tables
    for table, kernels in before:
        table.clear()
        table.update(kernels)


@pytest.fixture
def gpu(monkeypatch, vllm_tables):
    """A function that makes this a GPU of a compute capability, for vLLM."""
    monkeypatch.setattr(current_platform, "_enum", PlatformEnum.CUDA, raising=False)
    monkeypatch.setattr(current_platform, "device_name", "a CPU", raising=False)
    monkeypatch.setattr(current_platform, "supports_fp8", lambda: True, raising=False)

    def become(major, minor):
        capability = DeviceCapability(major, minor)
        monkeypatch.setattr(
            current_platform, "get_device_capability", lambda device_id=0: capability, raising=False
        )
        has_fp8_units = (major, minor) >= (8, 9)  # as the extension would say
        monkeypatch.setattr(vllm_fp8, "cutlass_fp8_supported", lambda: has_fp8_units)

    become(9, 0)
    return become


@contextlib.contextmanager
def model_of(dtype):
    """The state inside of vLLM while it builds, or runs, a model of this dtype."""
    config = VllmConfig()
    text = SimpleNamespace(model_type="llama")
    config.model_config = SimpleNamespace(dtype=dtype, hf_text_config=text, hf_config=None)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with set_current_vllm_config(config), torch.inference_mode():
            yield config
    finally:
        torch.set_default_dtype(before)
