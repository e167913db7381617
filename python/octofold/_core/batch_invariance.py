"""The same bits at every batch size, for all calls of a process."""

import os
from typing import Final

from .errors import invalid_argument
from .library import library

_VARIABLE: Final = "OCTOFOLD_BATCH_INVARIANT"

# The library has the same flag: torch.compile may read this one, and puts a guard on it.
_enabled = os.environ.get(_VARIABLE) == "1"


def set_batch_invariant(enabled: bool) -> None:
    """For all further calls of this process: whether a row of a result depends on that row of the
    input alone, not on how many rows there are nor on which place it has.

    Products and attention have a `batch_invariant` for one call, recipes one for layers; either is
    enough. At first: the environment variable OCTOFOLD_BATCH_INVARIANT. A CUDA graph keeps what was
    on while it was captured. docs/batch-invariance.md tells what it holds for and what it costs.

    Example: octofold.set_batch_invariant(True)
    Raises InvalidArgumentError for what is neither True nor False.
    """
    global _enabled
    if not isinstance(enabled, bool):
        raise invalid_argument("set_batch_invariant", "enabled", "True or False", repr(enabled))
    library.set_batch_invariant(enabled)
    _enabled = enabled


def is_batch_invariant() -> bool:
    """True if set_batch_invariant() or the environment variable has it on for all calls."""
    return _enabled
