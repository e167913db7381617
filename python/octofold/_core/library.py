"""octofold_ffi.so, the C++ library behind tvm-ffi functions (see bindings/), loaded when a function
of it is first used; with its messages, its progress and its switches.

pyproject.toml names the versions of the dependencies too, which pip heeds; an environment that was
put together otherwise is told by the checks here.

tvm-ffi is imported when something of it is first used: it imports torch where torch is installed,
which takes longer than all the rest, and `import octofold` shall cost what Octofold needs. At its
import tvm-ffi also asks torch.cuda.is_available(). That asks the CUDA runtime, which starts the
driver; from then on children by fork can use no GPU. Where PYTORCH_NVML_BASED_CUDA_CHECK is 1,
torch asks the management library instead and leaves the driver alone
(https://docs.pytorch.org/docs/stable/cuda_environment_variables.html). What evaluates
`tvm_ffi.Tensor` loads it, annotations too: write those as strings.
"""

import atexit
import contextlib
import functools
import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from . import errors
from .errors import UnavailableError, invalid_argument

REQUIREMENTS: Final = {"apache-tvm-ffi": ("0.1.11", "0.2"), "torch": ("2.9", None)}
"""The oldest version of each distribution, and the first one that is too new."""


def require(distribution: str, found: str) -> None:
    """Raise UnavailableError unless the version found is one that Octofold works with."""
    oldest, too_new = REQUIREMENTS[distribution]
    if release(oldest) <= release(found) and (too_new is None or release(found) < release(too_new)):
        return
    wanted = f"{distribution}>={oldest}" + (f",<{too_new}" if too_new else "")
    raise UnavailableError(
        f"octofold needs {wanted}, found {distribution} {found}: pip install '{wanted}'"
    )


def release(version: str) -> tuple[int, ...]:
    """(2, 9, 1) of "2.9.1rc2+cu128"."""
    digits = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, digits[0].split("."))) if digits else ()


__all__ = ["tvm_ffi"]

_CUDA_CHECK: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextlib.contextmanager
def _cuda_untouched() -> Iterator[None]:
    if _CUDA_CHECK in os.environ:  # the user has decided
        yield
        return
    os.environ[_CUDA_CHECK] = "1"
    try:
        yield
    finally:
        os.environ.pop(_CUDA_CHECK, None)  # several threads may be here


class _TvmFfi:
    """The module's attributes, each bound here at its first use."""

    def __getattr__(self, name: str) -> Any:
        with _cuda_untouched():
            module = importlib.import_module("tvm_ffi")
        require("apache-tvm-ffi", module.__version__)
        value = getattr(module, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import tvm_ffi
else:
    tvm_ffi: Final = _TvmFfi()


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
    """The kinds that bindings/export.cpp gives to errors, each with what is to be raised."""
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


LogHandler: TypeAlias = Callable[[str, str], None]

_handler: LogHandler | None = None
_warned: Final[set[str]] = set()


def set_log_handler(handler: LogHandler | None) -> None:
    """Install the handler of all further messages; None drops them (the default).

    handler(level, message): level is "debug", "info" or "warning"; messages below the environment
    variable OCTOFOLD_LOG_LEVEL (default "info") do not reach it. It may be called from several
    threads. What it raises reaches the caller of the operation that logged: builtin exceptions and
    Octofold's own as they are, others as RuntimeError.

    Example: octofold.set_log_handler(lambda level, message: print(level, message))
    """
    global _handler
    if handler is not None:
        _drop_at_exit()
    library.set_log_handler(handler)
    _handler = handler


def warn_once(message: str) -> None:
    """A warning of the Python side: to the handler that is installed, if any, and the same message
    only once in a process."""
    if _handler is not None and message not in _warned:
        _warned.add(message)
        _handler("warning", message)


def note(message: str) -> None:
    """An information of the Python side, to the handler that is installed, if any."""
    if _handler is not None and os.environ.get("OCTOFOLD_LOG_LEVEL", "info") in ("info", "debug"):
        _handler("info", message)


@functools.cache
def _drop_at_exit() -> None:
    """The library outlives the interpreter and must not call into it then."""
    atexit.register(library.set_log_handler, None)


Progress: TypeAlias = Callable[[int, int], None]


@contextmanager
def reporting(progress: Progress | None) -> Iterator[Progress]:
    """Yields the callback to hand to the library, while the block runs, in place of `progress`.

    It is called even without one: Python handles an interrupt (Ctrl-C) in it. What `progress`
    raises leaves the block as it is, of whatever class, and not as its image behind C++.
    """
    raised: list[BaseException] = []

    def report(done: int, total: int) -> None:
        try:
            if progress is not None:
                progress(done, total)
        except BaseException as error:
            raised.append(error)
            raise

    try:
        yield report
    except BaseException:
        if raised:
            raise raised[0] from None
        raise


_BATCH_INVARIANT: Final = "OCTOFOLD_BATCH_INVARIANT"

# The library has the same flag: torch.compile may read this one, and puts a guard on it.
_enabled = os.environ.get(_BATCH_INVARIANT) == "1"


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
