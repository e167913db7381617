"""octofold_ffi.so, the C++ library behind tvm-ffi functions (see bindings/), loaded when a function
of it is first used."""

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any, Final

from . import errors
from .tvm_ffi import tvm_ffi

_FILE_NAME: Final = "octofold_ffi.so"
_PACKAGE: Final = __name__.partition(".")[0]


class _Library:
    """The library's functions, each bound here at its first use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked by copy, inspect and the like: the library has none
            raise AttributeError(name)
        function = getattr(_load(), name)
        setattr(self, name, function)
        return function


library: Final = _Library()


@functools.cache
def _load() -> "tvm_ffi.Module":
    _register_errors()
    module = tvm_ffi.load_module(_find())
    module.set_nvrtc_candidates(_nvrtc_of_wheels())
    return module


def _find() -> Path:
    # An editable installation has two folders: the sources' and the build's.
    folders = [Path(folder) for folder in importlib.import_module(_PACKAGE).__path__]
    for folder in folders:
        if (folder / _FILE_NAME).is_file():
            return folder / _FILE_NAME
    raise ImportError(
        f"octofold: {_FILE_NAME} is not in {' or '.join(map(str, folders))}; "
        "install the package with `pip install .` in Octofold's source folder"
    )


def _register_errors() -> None:
    """The kinds that bindings/error.cpp gives to errors, each with what is to be raised."""
    for error in errors.KINDS:
        tvm_ffi.register_error(f"octofold.{error.__name__}", error)
    tvm_ffi.register_error("octofold.IoErrorWithErrno", errors.IoErrorWithErrno)
    # An interrupt (Ctrl-C) that Python notices as the library calls a log handler.
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)


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
