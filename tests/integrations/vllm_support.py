"""vLLM's layers on a CPU, in a process of one rank, on what vLLM takes for a GPU, for
its tests.

vLLM's extension (vllm._C) needs a GPU's driver. What asks it for something as it is imported is
imported before vLLM is told that it is on a GPU; the one op of it that loading a weight takes is
made of torch here. Nothing else of vLLM is replaced.
"""

import contextlib
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors
import vllm.model_executor.layers.quantization.fp8 as vllm_fp8
import vllm.model_executor.layers.quantization.online.fp8  # noqa: F401
from octofold.integrations import vllm as plug
from octofold.integrations.vllm import experts as plugged_experts
from octofold.integrations.vllm import linear as plugged
from vllm import distributed, plugins
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import (
    init_distributed_environment,
    initialize_model_parallel,
    model_parallel_is_initialized,
)
from vllm.model_executor import parameter
from vllm.model_executor.kernels import linear as tables
from vllm.model_executor.layers import linear as layers
from vllm.model_executor.layers.fused_moe import layer as moe_layer
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
    compressed_tensors_w8a8_fp8 as w8a8_fp8,
)
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability, PlatformEnum
from vllm.v1.worker.workspace import init_workspace_manager

from tests.integrations.serving_support import EXPERTS, HIDDEN, INNER, TOP_K, load

LOG = "vllm.plugins.octofold"
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
GELU = "gelu_tanh", partial(torch.nn.functional.gelu, approximate="tanh")
CHECKPOINT = {"quant_method": "fp8", "activation_scheme": "dynamic"}
OF_EXPERTS = {"128x128": CHECKPOINT | {"weight_block_size": [128, 128]}, "tensor": CHECKPOINT}
"""Checkpoints' configurations, by the granularity of weights."""
checkpoint_config = partial(Fp8Config, is_checkpoint_fp8_serialized=True)
config_of_blocks = partial(plugged_experts.OctofoldFp8Config.from_config, OF_EXPERTS["128x128"])

_EXTENSION = torch.library.Library("_C", "FRAGMENT")
_EXTENSION.define(
    "static_scaled_fp8_quant(Tensor! codes, Tensor x, Tensor scale, int[]? group_shape) -> ()"
)


def _static_scaled_fp8_quant(codes, x, scale, group_shape):
    codes.copy_((x.float() / scale).clamp(-448, 448).to(codes.dtype))


_EXTENSION.impl("static_scaled_fp8_quant", _static_scaled_fp8_quant, "CPU")


def load_plugins():
    """Loads the plugins as vLLM does in each of its processes."""
    plugins.plugins_loaded = False
    plugins.load_general_plugins()


def kernels():
    """vLLM's lists of kernels, of each table."""
    return [table[PlatformEnum.CUDA] for table in TABLES]


def is_in():
    """True if any of vLLM's kernels is ours."""
    return any(kernel in KERNELS for table in kernels() for kernel in table)


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
def untouched():
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
def gpu(monkeypatch, untouched):
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
        for module in (vllm_fp8, w8a8_fp8):  # vLLM 0.26's
            name = "cutlass_block_fp8_supported"
            monkeypatch.setattr(module, name, lambda: has_fp8_units, raising=False)

    become(9, 0)
    return become


@pytest.fixture
def plugged_in(gpu, one_rank):
    torch.manual_seed(0)
    plug.register()


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


model_with_experts = partial(model_of, torch.bfloat16)


def merged(inputs, outputs):
    options = {"quant_config": checkpoint_config(weight_block_size=[128, 128]), "prefix": "layer"}
    return layers.MergedColumnParallelLinear(inputs, outputs, bias=False, **options)


def kernel_of(layer):
    method = layer.quant_method
    scheme = getattr(layer, "scheme", method)
    return getattr(scheme, "fp8_linear", None) or scheme.linear_kernel


def linear(weight, bias=None, input_scale=None, config=None):
    """vLLM's layer of a checkpoint's weight, computed by one of ours.
    config: other than what vLLM calls "fp8", or compressed tensors for scales of channels."""
    scale_name, scale = "weight_scale", weight.scale
    if weight.granularity == "channel":
        config, scale = config or compressed_tensors("channel"), scale[:, None]
    elif config is None and weight.granularity == "128x128":
        config, scale_name = checkpoint_config(weight_block_size=[128, 128]), "weight_scale_inv"
    elif config is None:
        config = checkpoint_config(activation_scheme="dynamic" if input_scale is None else "static")
    outputs, inputs = weight.shape
    layer = layers.ReplicatedLinear(
        inputs, outputs, bias=bias is not None, quant_config=config, prefix="layer"
    )
    tensors = {scale_name: scale, "bias": bias, "input_scale": input_scale}
    load(layer, weight=weight.data, **tensors)
    assert isinstance(kernel_of(layer), KERNELS)
    return layer


@contextlib.contextmanager
def rank_of(ranks, rank):
    """The state inside of one of several ranks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (layers, parameter, distributed):
            patch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
            patch.setattr(module, "get_tensor_model_parallel_world_size", lambda: ranks)
        yield


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


def experts(granularity="128x128", **options):
    make = getattr(moe_layer, "FusedMoEFactory", None) or moe_layer.FusedMoE  # vLLM 0.26
    return make(
        num_experts=EXPERTS,
        top_k=TOP_K,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        params_dtype=torch.bfloat16,
        quant_config=plugged_experts.OctofoldFp8Config.from_config(OF_EXPERTS[granularity]),
        prefix="layer",
        tp_size=1,
        dp_size=1,
        pcp_size=1,
        **options,
    ).routed_experts


def run_experts(layer, x, ids, weights):
    return layer.quant_method.apply(layer, x, weights, ids, None, None)
