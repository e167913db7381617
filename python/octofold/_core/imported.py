"""What others import: looked up without importing it, and torch told of octofold as it comes."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


def imported(name: str) -> ModuleType | None:
    """A module that this process has imported; None if it has not. Where another thread is at it,
    this waits: a module has its attributes only when its import is over."""
    if sys.modules.get(name) is None:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:  # the other thread's import failed
        return None


def import_below(package: str, path: str) -> ModuleType:
    """The module `package.path`, each package above it first. A thread that asks for the module at
    once holds its lock and waits for the package, while one that imports the package waits for the
    module: Python calls that a deadlock, and one of the two fails."""
    for part in path.split("."):
        package = f"{package}.{part}"
        module = importlib.import_module(package)
    return module


class _Introduction(MetaPathFinder):
    """Tells torch, whichever is imported first, that torch.load() may build this type of a
    file that it does not trust. It finds nothing, but is asked at each import, so also at those
    that come in `import torch` behind its `serialization`, in whichever thread. It stays: to leave
    the list while another thread goes through it would hide a finder from that thread."""

    def __init__(self, safe: type) -> None:
        self._safe = safe
        self._told: object = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        serialization: Any = sys.modules.get("torch.serialization")
        if serialization is not self._told and hasattr(serialization, "add_safe_globals"):
            self._told = serialization
            serialization.add_safe_globals([self._safe])


def introduce(safe: type) -> None:
    """A type to torch, now or as it is imported; once, if octofold is reloaded."""
    if any(isinstance(finder, _Introduction) for finder in sys.meta_path):
        return
    introduction = _Introduction(safe)
    sys.meta_path.insert(0, introduction)
    introduction.find_spec("torch", None)
