"""Octofold as a kernel of Hugging Face's `kernels`, which loads this file as the __init__.py of a
folder that scripts/hf_kernel.py lays out. It is not imported from here.

The folder has all of the package. It becomes the process's `octofold`, because torch knows its
operations, and files of torch.save() its types, by that name; where an Octofold of the same
version is loaded already, the kernel is that one.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent
_VERSION: Final = (_FOLDER / "VERSION").read_text().strip()


def _load() -> ModuleType:
    finder = _Here()
    sys.meta_path.insert(0, finder)
    try:  # by Python's own import, which has other threads wait until the package is whole
        loaded = importlib.import_module("octofold")
    finally:
        sys.meta_path.remove(finder)
    is_this = getattr(loaded, "__path__", None) == [str(_FOLDER / "octofold")]
    if not is_this and loaded.__version__ != _VERSION:
        raise ImportError(
            f"this kernel is octofold {_VERSION}, and octofold {loaded.__version__} is loaded "
            "already: a process has one of them"
        )
    return loaded


class _Here(MetaPathFinder):
    """Finds this folder's octofold, where none is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "octofold":
            return None
        return importlib.util.spec_from_file_location(name, _FOLDER / name / "__init__.py")


_octofold: Final = _load()

from . import layers  # noqa: E402  (they need the package)

__all__ = ["layers", *_octofold.__all__]


def __getattr__(name: str) -> Any:
    return getattr(_octofold, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
