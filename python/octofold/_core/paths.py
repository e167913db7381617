"""Paths on their way to the operating system and the library, and back: as bytes, because a file's
name need not be UTF-8."""

import os
from pathlib import Path

from .errors import invalid_argument


def path_argument(operation: str, argument: str, path: object) -> Path:
    """The path that a caller names. Raises InvalidArgumentError for another type, and for a NUL,
    at which the system would cut it."""
    expected = "a path (str or os.PathLike)"
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise invalid_argument(operation, argument, expected, type(path).__qualname__)
    if "\0" in text:
        raise invalid_argument(operation, argument, f"{expected} without NUL", repr(text))
    return Path(text)


def path_bytes(operation: str, argument: str, path: object) -> bytes:
    """The same for the library."""
    return os.fsencode(path_argument(operation, argument, path))


def path_of(name: bytes) -> Path:
    """A path that the library names."""
    return Path(os.fsdecode(name))
