"""Octofold as a kernel of Hugging Face's `kernels`, which loads this file as the __init__.py of a
folder that scripts/hf_kernel.py lays out. It is not imported from here.

The folder has all of the package. It becomes the process's `octofold`, because torch knows its
operations, and files of torch.save() its types, by that name; where an Octofold of the same
version is loaded already, the kernel is that one.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent
_VERSION: Final = (_FOLDER / "VERSION").read_text().strip()


def _load() -> ModuleType:
    loaded = sys.modules.get("octofold")
    if loaded is not None:
        if loaded.__version__ != _VERSION:
            raise ImportError(
                f"this kernel is octofold {_VERSION}, and octofold {loaded.__version__} is loaded "
                "already: a process has one of them"
            )
        return loaded
    spec = importlib.util.spec_from_file_location("octofold", _FOLDER / "octofold" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["octofold"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["octofold"]
        raise
    return module


_octofold: Final = _load()

from . import layers  # noqa: E402  (they need the package)

__all__ = ["layers", *_octofold.__all__]


def __getattr__(name: str) -> Any:
    return getattr(_octofold, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
