"""SGLang's layers on a CPU, on what SGLang takes for a GPU."""

import pytest
import torch

pytest.importorskip("sglang")

from octofold.integrations.sglang import linear as plugged
from sglang.srt import plugins
from sglang.srt.arg_groups.choices import MOE_RUNNER_BACKEND_CHOICES
from sglang.srt.layers.moe.moe_runner import runner as runners
from sglang.srt.layers.quantization import fp8, fp8_utils
from sglang.srt.plugins.hook_registry import HookRegistry

HOOKED = (
    (fp8_utils, "dispatch_w8a8_block_fp8_linear"),
    (fp8_utils, "apply_fp8_linear"),
    (fp8_utils, "can_auto_enable_marlin_fp8"),
    (fp8.Fp8LinearMethod, "process_weights_after_loading"),
    (fp8.Fp8MoEMethod, "create_moe_runner"),
    (fp8.Fp8MoEMethod, "apply"),
)


def load():
    """Loads the plugins as SGLang does in each of its processes."""
    plugins._plugins_loaded = False
    plugins.load_plugins()


def is_hooked():
    return [hasattr(getattr(owner, name), "__wrapped__") for owner, name in HOOKED]


@pytest.fixture
def sglang_as_it_was():
    """SGLang's functions and registries, which are afterwards as they were, without us."""
    from sglang.srt.plugins.hook_registry import _propagate_patch

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
def gpu(sglang_as_it_was, monkeypatch):
    """A function that makes this a GPU of a compute capability, for SGLang."""

    def become(major, minor):
        for module in (fp8_utils, fp8):
            monkeypatch.setattr(module, "get_device_capability", lambda device_id=0: (major, minor))
        monkeypatch.setattr(fp8, "_is_cuda", True)
        monkeypatch.setattr(fp8, "cutlass_fp8_supported", lambda: (major, minor) >= (8, 9))
        plugged._way_on.cache_clear()

    become(9, 0)
    return become


@pytest.fixture
def plugged_in(gpu):
    torch.manual_seed(0)
    load()
