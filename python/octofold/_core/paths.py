"""Paths on their way to the library and back: as bytes, for a file's name need not be UTF-8."""

import os
from pathlib import Path

from .errors import invalid_argument


def path_argument(operation: str, argument: str, path: object) -> Path:
    """What a caller names. Raises InvalidArgumentError for what is none, or would be cut."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if isinstance(text, str) and "\0" not in text:
        return Path(text)
    got = repr(text) if isinstance(text, str) else type(path).__qualname__
    raise invalid_argument(operation, argument, "a path (str or os.PathLike) without NUL", got)


def path_bytes(operation: str, argument: str, path: object) -> bytes:
    """The same for the library."""
    return os.fsencode(path_argument(operation, argument, path))


def path_of(name: bytes) -> Path:
    """A path that the library names."""
    return Path(os.fsdecode(name))
