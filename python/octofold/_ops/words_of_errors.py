"""Errors of the library in the words of the Python operation."""

from collections.abc import Callable, Mapping
from typing import Any

from .._core.errors import InvalidArgumentError


def in_words_of(
    operation: str, function: Callable[..., None], names: Mapping[str, str]
) -> Callable[..., None]:
    """A function of the library whose errors name this operation, and its arguments: `names` has
    those that it knows by another name."""

    def call(*arguments: Any) -> None:
        try:
            function(*arguments)
        except InvalidArgumentError as error:
            message = str(error)
            at = message.find("argument '")
            message = message[max(at, 0) :]  # the library's name of the operation comes before
            parts = message.split("'")  # between quotes: arguments
            message = "'".join(names.get(part, part) for part in parts)
            raise InvalidArgumentError(f"{operation}: {message}") from None

    return call
