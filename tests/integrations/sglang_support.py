"""SGLang's layers on a CPU, on what SGLang takes for a GPU, for its tests."""

import contextlib
from functools import partial

import pytest
import torch
from octofold.integrations.sglang import linear as plugged
from sglang.srt import plugins
from sglang.srt.arg_groups.choices import MOE_RUNNER_BACKEND_CHOICES
from sglang.srt.layers import linear as layers
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.moe_runner import runner as runners
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.moe.utils import resolve_moe_runner_backend
from sglang.srt.layers.quantization import fp8, fp8_utils
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.layers.quantization.w8a8_fp8 import W8A8Fp8Config
from sglang.srt.plugins.hook_registry import HookRegistry, _propagate_patch
from sglang.srt.runtime_context import get_context, get_flags, get_parallel

from tests.integrations.serving_support import EXPERTS, HIDDEN, INNER, TOP_K, load

LOG = "sglang.octofold"
HOOKED = (
    (fp8_utils, "dispatch_w8a8_block_fp8_linear"),
    (fp8_utils, "apply_fp8_linear"),
    (fp8_utils, "can_auto_enable_marlin_fp8"),
    (fp8.Fp8LinearMethod, "create_weights"),
    (fp8.Fp8LinearMethod, "process_weights_after_loading"),
    (fp8.Fp8MoEMethod, "create_moe_runner"),
    (fp8.Fp8MoEMethod, "apply"),
)
GELU = "gelu", torch.nn.functional.gelu
OF_EXPERTS = ("128x128",)


def load_plugins():
    """Loads the plugins as SGLang does in each of its processes."""
    plugins._plugins_loaded = False
    plugins.load_plugins()


def is_in():
    """True if anything of SGLang is ours."""
    hooked = any(hasattr(getattr(owner, name), "__wrapped__") for owner, name in HOOKED)
    return hooked or "octofold" in MOE_RUNNER_BACKEND_CHOICES


@pytest.fixture
def untouched():
    """SGLang's functions and registries, which are afterwards as they were, without us."""
    originals = [(owner, name, getattr(owner, name)) for owner, name in HOOKED]
    yield
    for owner, name, original in originals:
        hooked = getattr(owner, name)
        if hooked is not original:
            setattr(owner, name, original)
            _propagate_patch(hooked, original, owner)
    HookRegistry.reset()
    runners._CUSTOM_RUNNER_CORE_FACTORIES.pop("octofold", None)
    if "octofold" in MOE_RUNNER_BACKEND_CHOICES:
        MOE_RUNNER_BACKEND_CHOICES.remove("octofold")


@pytest.fixture
def gpu(untouched, monkeypatch):
    """A function that makes this a GPU of a compute capability, for SGLang."""

    def become(major, minor):
        for module in (fp8_utils, fp8):
            monkeypatch.setattr(module, "get_device_capability", lambda device_id=0: (major, minor))
        monkeypatch.setattr(fp8, "_is_cuda", True)
        monkeypatch.setattr(fp8, "cutlass_fp8_supported", lambda: (major, minor) >= (8, 9))
        plugged._who_computes_on.cache_clear()

    become(9, 0)
    return become


@pytest.fixture
def plugged_in(gpu):
    torch.manual_seed(0)
    load_plugins()


@contextlib.contextmanager
def model_of(dtype):
    """The state inside of SGLang while it builds, or runs, a model of this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_default_dtype(before)


fp8_config = partial(Fp8Config, is_checkpoint_fp8_serialized=True, activation_scheme="dynamic")
config_of_blocks = partial(fp8_config, weight_block_size=[128, 128])


def rank_of(ranks, rank):
    """The state inside of one of several ranks."""
    return get_parallel().override(tp_size=ranks, tp_rank=rank, tp_group=None)


def linear(weight, bias=None, input_scale=None, **options):
    """SGLang's layer of a checkpoint's weight, after what SGLang does with what it has loaded."""
    outputs, inputs = weight.shape
    tensors = {"weight": weight.data, "bias": bias, "input_scale": input_scale}
    if weight.granularity == "128x128":
        config = config_of_blocks(**options)
        tensors["weight_scale_inv"] = weight.scale
    elif weight.granularity == "channel":
        config = W8A8Fp8Config(is_checkpoint_fp8_serialized=True)
        tensors["weight_scale"] = weight.scale[:, None]
    else:
        config = fp8_config(activation_scheme="dynamic" if input_scale is None else "static")
        tensors["weight_scale"] = weight.scale
    layer = layers.ReplicatedLinear(
        inputs, outputs, bias=bias is not None, quant_config=config, prefix="layer"
    )
    load(layer, **tensors)
    assert not getattr(layer.quant_method, "use_marlin", False)
    return layer


def merged(inputs, outputs):
    options = {"quant_config": config_of_blocks(), "parallel_group": "replicated"}
    return layers.MergedColumnParallelLinear(inputs, outputs, False, **options)


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


model_with_experts = server


def experts(granularity="128x128", **options):
    blocks = [128, 128] if granularity == "128x128" else None
    config = fp8_config(weight_block_size=blocks)
    sizes = (EXPERTS, HIDDEN, INNER, 0, TOP_K)
    return FusedMoE(*sizes, params_dtype=torch.bfloat16, quant_config=config, **options)


def run_experts(layer, x, ids, weights):
    return layer(x, StandardTopKOutput(weights, ids, None))
