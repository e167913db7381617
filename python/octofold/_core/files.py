"""Files, and their names on the way to the operating system and the library: as bytes, because a
name need not be UTF-8. Opening a file waits for nobody, what is read of it has a bound, and it is
replaced as a whole; these raise OSError."""

import errno
import os
import stat
from io import FileIO
from pathlib import Path

from .errors import invalid_argument


def open_regular(path: str | os.PathLike[str]) -> FileIO:
    """A regular file, for reading without a buffer: a pipe has no writer to wait for."""
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        text = "expected a regular file, got a device, pipe or socket"
        raise OSError(errno.EINVAL, text, os.fspath(path))
    return file


def read_text(path: str | os.PathLike[str], most: int = 100_000_000) -> str:
    """The text of a regular file in UTF-8. Raises ValueError for what is none."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            text = f"expected at most {most} bytes, got {size}"
            raise OSError(errno.EFBIG, text, os.fspath(path))
        return file.readall().decode("utf-8")


def write_whole(path: Path, content: str | bytes) -> None:
    """Through a new file beside it, which takes its place at the end."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def path_argument(operation: str, argument: str, path: object) -> Path:
    """The caller's path. Raises InvalidArgumentError for what is none, or would be cut."""
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
