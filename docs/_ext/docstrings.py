"""Octofold's docstrings as Sphinx reads them. They are plain text with a few habits:

name: what it is, where `name` is a parameter or a field; lines that go on are indented
Returns …   Raises …   at the beginning of a line
`code`, docs/page.md, function()
>>> examples
"""

import contextlib
import enum
import importlib
import inspect
import operator
import re
from collections.abc import Iterable

from sphinx.util import logging

FIELD = re.compile(r"(?P<names>\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*): (?P<text>.*)")
PART = re.compile(
    r"`[^`\n]+`|docs/[\w/-]+\.md|\b[a-z_][\w.]*\(\)|[^`]+?(?=`|docs/|\b[a-z_][\w.]*\(\)|$)"
)
ALIAS = re.compile(r"~?(?:typing\.)?Annotated\[~?(?:typing\.)?Any, '(array|dtype|stream)'\]")
ALIASES = {"array": "Array", "dtype": "DTypeLike", "stream": "StreamLike"}
OTHER_MODULES = (
    "octofold.distributed",
    "octofold.jax",
    "octofold.kernel_cache",
    "octofold.tuning",
)
MODULES = ("octofold", "octofold.ops", "octofold.nn", "octofold.models")


def marked_up(text: str) -> str:
    """Plain text as reStructuredText: code in backticks, pages as links, all else as it is."""
    return PART.sub(lambda found: _part(found[0]), text)


def _part(text: str) -> str:
    if text.startswith("`") and len(text) > 1:
        return f"``{text[1:-1]}``\\ "
    if text.endswith("()"):
        return _function(text)
    if text.startswith("docs/"):
        return f":doc:`/{text.removesuffix('.md')}`\\ "
    return re.sub(r"([\\*|`]|_(?=\W|$))", r"\\\1", text)


def _function(text: str) -> str:
    """A function of ours as a link, another one as it is."""
    name = text.removesuffix("()").removeprefix("octofold.")
    for module in map(importlib.import_module, MODULES):
        try:
            found = operator.attrgetter(name)(module)
        except AttributeError:
            continue
        if callable(found):
            return f":py:func:`{text} <{module.__name__}.{name}>`\\ "
    return text.replace("_", r"\_")


def parameters(thing: object) -> set[str]:
    """The names that a docstring may describe: parameters of a function, fields of a class."""
    names = set(getattr(thing, "__annotations__", ()))
    with contextlib.suppress(TypeError, ValueError):  # what has no signature
        names |= set(inspect.signature(thing).parameters)  # type: ignore[arg-type]
    return names


def converted(lines: list[str], names: set[str]) -> list[str]:
    """The lines of a docstring as reStructuredText, the names that it describes as fields."""
    result: list[str] = []
    in_field = False
    place = 0
    while place < len(lines):
        line = lines[place]
        found = FIELD.fullmatch(line)
        if line.startswith(">>>"):
            end = place
            while end < len(lines) and lines[end].strip():
                end += 1
            result += ["", *lines[place:end], ""]
            place, in_field = end, False
            continue
        if found and {name.strip("* ") for name in found["names"].split(",")} <= names:
            if not in_field and result and result[-1]:
                result.append("")
            result.append(f":param {found['names'].replace('*', '')}: {marked_up(found['text'])}")
            in_field = True
        elif in_field and line.startswith(" "):
            result.append(marked_up(line))
        else:
            if (
                (in_field or re.match(r"(Returns|Raises)\b", line))
                and line
                and result
                and result[-1]
            ):
                result.append("")
            in_field = in_field and not line
            text = marked_up(line)
            result.append(re.sub(r"^(Returns|Raises)\b", r"**\1**", text))
        place += 1
    return result


def process(app, what, name, thing, options, lines):
    if not name.startswith("octofold"):
        return
    names = parameters(thing)
    if what == "class":
        names |= parameters(getattr(thing, "__init__", None))
    lines[:] = converted(lines, names)
    if what == "class" and issubclass(thing, enum.Enum):
        lines += ["", "One of " + ", ".join(f"``{member.name}``" for member in thing) + ".", ""]


def short(app, what, name, thing, options, signature, returned):
    """Aliases of types by their names, where autodoc spells out what they stand for."""
    return tuple(
        text and ALIAS.sub(lambda found: ALIASES[found[1]], text) for text in (signature, returned)
    )


def skip(app, what, name, thing, skipped, options):
    """Methods of torch's modules that say nothing of their own."""
    return skipped or name in ("extra_repr", "reset_parameters")


def missing(names: Iterable[str]) -> list[str]:
    """Public names of the package that are not among those of the reference. A class may also be
    there where it says that it is, if several modules have it."""
    known, absent = set(names), []
    for module in map(importlib.import_module, (*MODULES, *OTHER_MODULES)):
        for name in module.__all__:
            thing = getattr(module, name)
            places = {f"{module.__name__}.{name}"}
            if inspect.isclass(thing):
                places.add(f"{thing.__module__}.{name}")
            if not inspect.ismodule(thing) and not places & known:
                absent.append(f"{module.__name__}.{name}")
    return absent


def check(app, env):
    for name in missing(env.domains["py"].objects):
        logging.getLogger(__name__).warning("%s is in no page of docs/api", name)


def setup(app):
    app.connect("autodoc-process-docstring", process)
    app.connect("env-check-consistency", check)
    app.connect("autodoc-process-signature", short)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
