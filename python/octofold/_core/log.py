"""The handler of the library's messages."""

import atexit
import functools
import os
from collections.abc import Callable
from typing import Final, TypeAlias

from .library import library

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
