"""Errors of the library in the words of the Python operation."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from .._core.errors import InvalidArgumentError


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
