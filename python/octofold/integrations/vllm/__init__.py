"""Octofold in vLLM: its kernels come first in vLLM's tables of linear layers in FP8, and
`--quantization octofold` has the experts of FP8 checkpoints computed by it, too.

vLLM calls register() in each of its processes (the entry point of `vllm.general_plugins`). Which
kernel a layer has is then vLLM's choice: it asks each of a table in turn, and says in its log which
it took. docs/integrations/vllm.md tells the rest.
"""

from importlib.metadata import version

from ..._core.library import set_batch_invariant
from ..hosts import plug_in
from ..server_weights import refit

__all__ = ["refit", "register"]


def register() -> None:
    """Plug into vLLM, once; its log says what was done, or why nothing was."""
    from vllm.logger import init_logger

    log = init_logger("vllm.plugins.octofold")  # vLLM shows what its own loggers say
    plug_in("vllm", _plug, log.info, log.warning)


def _plug() -> str:
    import vllm.envs as envs

    from . import experts, linear

    if envs.VLLM_BATCH_INVARIANT:
        set_batch_invariant(True)
    linear.insert()
    experts.insert()
    return (
        f"octofold {version('octofold')} is first for linear layers in FP8 on compute capability "
        "9.0, and for FP8 weights with 16-bit activations on 7.5 to 8.8 (off: "
        "OCTOFOLD_INTEGRATIONS=0); for experts by --quantization octofold"
    )
