"""Loads octofold_ffi.so, the C++ library behind tvm-ffi functions (see bindings/)."""

import importlib
import importlib.util
from pathlib import Path
from typing import Final

from . import errors as _errors  # noqa: F401  (registers the exceptions that calls may raise)
from ._tvm_ffi import tvm_ffi

_FILE_NAME: Final = "octofold_ffi.so"


def _load() -> tvm_ffi.Module:
    # An editable installation has two folders: the sources' and the build's.
    folders = [Path(folder) for folder in importlib.import_module(__package__).__path__]
    for folder in folders:
        if (folder / _FILE_NAME).is_file():
            return tvm_ffi.load_module(folder / _FILE_NAME)
    raise ImportError(
        f"octofold: {_FILE_NAME} is not in {' or '.join(map(str, folders))}; "
        "install the package with `pip install .` in Octofold's source folder"
    )


def _nvrtc_of_wheels() -> list[str]:
    """libnvrtc.so of the wheels nvidia-cuda-nvrtc (CUDA 13) and nvidia-cuda-nvrtc-cu12, which the
    dynamic linker does not find; newest first."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = [] if nvidia is None else nvidia.submodule_search_locations or []
    return [
        str(file)
        for name in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12")
        for file in (Path(folder) / name for folder in folders)
        if file.is_file()
    ]


library: Final = _load()
library.set_nvrtc_candidates(_nvrtc_of_wheels())
