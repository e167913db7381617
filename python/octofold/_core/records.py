"""Dataclasses of fields by their names, as the library gives them and files in JSON hold them: each
field has to be there, and of its annotation."""

import functools
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import BadFormatError, InvalidArgumentError
from .files import path_of

T = TypeVar("T")


def record(kind: type[T], content: Any, source: str = "the library") -> T:
    """A value of a dataclass, of whatever else its annotations name too: other dataclasses, tuples,
    mappings, None, paths as bytes.

    source: of the content. Raises BadFormatError that names it and the field."""
    value: T = _value(kind, content, source, "")
    return value


def wrong_field(source: str, path: str, expected: str, got: object) -> BadFormatError:
    """The error about the field at this path."""
    return BadFormatError(f"{source}: field '{path}': expected {expected}, got {got!r}")


def _value(kind: Any, content: Any, source: str, path: str) -> Any:
    """The content of the field at this path as a value of its type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # with None, as all of ours
        return None if content is None else _value(arguments[0], content, source, path)
    if origin is tuple:
        if isinstance(content, str) or not isinstance(content, Sequence):
            raise wrong_field(source, path, "a list", content)
        parts = enumerate(content)
        return tuple(_value(arguments[0], part, source, f"{path}[{i}]") for i, part in parts)
    if origin is not None or is_dataclass(kind):
        if not isinstance(content, Mapping):
            raise wrong_field(source, path, "an object", content)
        if origin is not None:
            inner, items = arguments[1], content.items()
            return {str(key): _value(inner, part, source, f"{path}.{key}") for key, part in items}
        return _dataclass(kind, content, source, path)
    if kind is Path and isinstance(content, bytes):
        return path_of(content)
    if isinstance(content, str if kind is str else int if kind is float else ()):
        content = kind(content)  # also the library's own kind of str
    if type(content) is not kind:
        raise wrong_field(source, path, "a string" if kind is str else "a number", content)
    if kind is float and not math.isfinite(content):
        raise wrong_field(source, path, "a finite number", content)
    return content


def _dataclass(kind: Any, content: Mapping[str, Any], source: str, path: str) -> Any:
    hints, prefix = _hints(kind), path and f"{path}."
    for key in (*content, *hints):
        if key not in hints:
            raise wrong_field(source, prefix + key, "no such field", "one")
        if key not in content:
            raise wrong_field(source, prefix + key, "a value", "none")
    found = {key: _value(hint, content[key], source, prefix + key) for key, hint in hints.items()}
    try:
        return kind(**found)
    except InvalidArgumentError as error:
        raise BadFormatError(f"{source}: field '{path}': {error}") from None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
