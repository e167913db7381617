"""Octofold in SGLang: its linear layers in FP8 are Octofold's products, and
`--moe-runner-backend octofold` has the experts of FP8 checkpoints computed by it, too.

SGLang calls register() in each of its processes (the entry point of `sglang.srt.plugins`). Linear
layers are reached by hooks of SGLang's own HookRegistry, experts by its registry of runner cores.
docs/integrations/sglang.md tells the rest.
"""

import logging
from importlib.metadata import version

from ..hosts import plug_in
from ..server_weights import refit

__all__ = ["refit", "register"]


def register() -> None:
    """Plug into SGLang, once; its log says what was done, or why nothing was."""
    log = logging.getLogger("sglang.octofold")
    plug_in("sglang", _plug, log.info, log.warning)


def _plug() -> str:
    from . import experts, linear

    linear.hook()
    experts.hook()
    return (
        f"octofold {version('octofold')} is first for linear layers in FP8 on compute capability "
        "9.0, and for FP8 weights with 16-bit activations on 8.0 to 8.8 (off: "
        "OCTOFOLD_INTEGRATIONS=0); for experts by --moe-runner-backend octofold"
    )
