"""Loads octofold_ffi.so, the C++ library behind tvm-ffi functions (see bindings/)."""

import importlib
from pathlib import Path
from typing import Final

import tvm_ffi

from . import errors as _errors  # noqa: F401  (registers the exceptions that calls may raise)

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


library: Final = _load()
