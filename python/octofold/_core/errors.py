"""The errors of Octofold, and those of the library in the words of the Python operation. Each class
is also the builtin that fits, so either can be caught."""

import errno
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_OF_TVM_FFI: Final = "__tvm_ffi_error__"


class Error(Exception):
    """Base of all errors of Octofold. The message names the argument (or file), what was expected
    and what came."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Without tvm-ffi's own form of the error, which does not pickle before its 0.1.12."""
        made_by = super().__reduce__()
        assert isinstance(made_by, tuple)
        kept = {k: v for k, v in self.__dict__.items() if k != _OF_TVM_FFI}
        return *made_by[:2], kept


class InvalidArgumentError(Error, ValueError):
    """The caller's argument is wrong; the message names it."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but nothing here can do it."""


class UnavailableError(Error, RuntimeError):
    """Needs a device, a driver or a library that is not there."""


class OutOfMemoryError(Error, MemoryError):
    """The host has too little memory left, or the process may not have more of it."""


class IoError(Error, OSError):
    """The operating system refused a file operation. `errno` says why, where the system did; for
    the reasons that have a builtin class of their own the error is one of that class too."""

    def __str__(self) -> str:
        return str(self.args[-1])  # the message alone: it ends with the system's reason


class IoFileNotFoundError(IoError, FileNotFoundError):
    """A file or folder is not there."""


class IoFileExistsError(IoError, FileExistsError):
    """A file is there that must not be."""


class IoIsADirectoryError(IoError, IsADirectoryError):
    """A folder, where a file was expected."""


class IoNotADirectoryError(IoError, NotADirectoryError):
    """A file, where a folder was expected."""


class IoPermissionError(IoError, PermissionError):
    """The user may not do that."""


class BadFormatError(Error, ValueError):
    """A file is not what it claims to be."""


class InternalError(Error, RuntimeError):
    """A fault of Octofold itself."""


KINDS: Final[tuple[type[Error], ...]] = (
    InvalidArgumentError,
    UnsupportedError,
    UnavailableError,
    OutOfMemoryError,
    IoError,
    BadFormatError,
    InternalError,
)
"""The kinds of errors of the C++ library."""


class IoErrorWithErrno:
    """Makes an IoError of the library's text: from "2:cannot open …" to the class that fits."""

    def __new__(cls, text: str) -> IoError:  # type: ignore[misc]  # no instance of this class
        number, _, message = text.partition(":")
        builtin = type(OSError(int(number), message))
        for fitting in IoError.__subclasses__():
            if builtin in fitting.__bases__:
                return fitting(int(number), message)
        return IoError(int(number), message)


def invalid_argument(
    operation: str, argument: str, expected: str, got: object
) -> InvalidArgumentError:
    """The error in the words that the C++ library uses too."""
    return InvalidArgumentError(
        f"{operation}: argument '{argument}': expected {expected}, got {got}"
    )


def require_type(
    operation: str, argument: str, value: object, kind: type | tuple[type, ...], expected: str
) -> None:
    """Checks that the caller's argument is of this class or one of these: `expected` in words."""
    if not isinstance(value, kind):
        raise invalid_argument(operation, argument, expected, type(value).__qualname__)


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first of some names in a message, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def io_error(error: OSError, what: str) -> IoError:
    """An error of the system as one of the library's own, of the class that fits."""
    number = error.errno or errno.EIO
    return IoErrorWithErrno(f"{number}:{what}: {error.strerror or error}")


def in_words_of(
    operation: str, error: InvalidArgumentError, names: Mapping[str, str]
) -> InvalidArgumentError:
    """An error of the library that names this operation, and its arguments: `names` has those that
    the library knows by another name."""
    message = str(error)
    at = message.find("argument '")
    message = message[max(at, 0) :]  # the library's name of the operation comes before
    parts = message.split("'")  # between quotes: arguments
    message = "'".join(names.get(part, part) for part in parts)
    return InvalidArgumentError(f"{operation}: {message}")


def with_errors_in_words_of(
    operation: str, function: Callable[..., None], names: Mapping[str, str]
) -> Callable[..., None]:
    """A function of the library with such errors."""

    @functools.wraps(function)
    def call(*arguments: Any) -> None:
        try:
            function(*arguments)
        except InvalidArgumentError as error:
            raise in_words_of(operation, error, names) from None

    return call
