"""What Octofold raises. Each class is also the builtin that fits, so either can be caught."""

from ._tvm_ffi import tvm_ffi


class Error(Exception):
    """Base of all errors of Octofold. The message names the argument (or file), what was expected
    and what came."""


class InvalidArgumentError(Error, ValueError):
    """The caller's argument is wrong; the message names it."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but nothing here can do it."""


class UnavailableError(Error, RuntimeError):
    """Needs a device, a driver or a library that is not there."""


class IoError(Error, OSError):
    """The operating system refused a file operation."""


class BadFormatError(Error, ValueError):
    """A file is not what it claims to be."""


class InternalError(Error, RuntimeError):
    """A fault of Octofold itself."""


# The kinds that bindings/error.cpp gives to the codes of octofold::Error.
for _class in (
    InvalidArgumentError,
    UnsupportedError,
    UnavailableError,
    IoError,
    BadFormatError,
    InternalError,
):
    tvm_ffi.register_error(f"octofold.{_class.__name__}", _class)

# An interrupt (Ctrl-C) that Python notices as the library calls a log handler.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)


def invalid_argument(
    operation: str, argument: str, expected: str, got: object
) -> InvalidArgumentError:
    """The error in the words that the C++ library uses too."""
    return InvalidArgumentError(
        f"{operation}: argument '{argument}': expected {expected}, got {got}"
    )
