"""Modules that others import: found without an import, and torch told of octofold as it comes."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


def imported(name: str) -> ModuleType | None:
    """A module that this process has imported, else None. Where another thread is at it, or has
    failed, this waits for the end: only then a module has its attributes."""
    try:
        return importlib.import_module(name) if sys.modules.get(name) is not None else None
    except ImportError:
        return None


def import_below(package: str, path: str) -> ModuleType:
    """The module `package.path`, each package above it first. Who asks for the module at once has
    its lock and waits for the package, while a thread that imports the package waits for the
    module: a deadlock to Python, which one of the two sees as an error."""
    for part in path.split("."):
        package = f"{package}.{part}"
        module = importlib.import_module(package)
    return module


class _Introduction(MetaPathFinder):
    """Tells torch, whichever is imported first, that torch.load() may build this type of a file
    that it does not trust. It finds nothing, but is asked at each import, so at those that follow
    torch.serialization in `import torch`, too. It stays: to leave the list while another thread
    goes through it would hide a finder from that thread."""

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
