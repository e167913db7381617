"""The C++ reference, from the headers: `<!-- header: gemm.h -->` in a page becomes what
include/octofold/gemm.h declares, each declaration with its comment.

libclang reads the headers. Comments are Markdown already.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

from clang.cindex import AccessSpecifier, Cursor, CursorKind, Index

INCLUDE = Path(__file__).resolve().parents[2] / "include"
HEADER = re.compile(r"^<!-- header: (\S+) -->$", re.MULTILINE)
STRUCTS = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.CLASS_TEMPLATE)
FUNCTIONS = (CursorKind.FUNCTION_DECL, CursorKind.CXX_METHOD, CursorKind.FUNCTION_TEMPLATE)
ALIASES = (CursorKind.TYPE_ALIAS_DECL, CursorKind.TYPEDEF_DECL, CursorKind.TYPE_ALIAS_TEMPLATE_DECL)
VARIABLES = (CursorKind.VAR_DECL, CursorKind.FIELD_DECL)
DIRECTIVES = (
    (STRUCTS, "struct"),
    (FUNCTIONS, "function"),
    (ALIASES, "type"),
    (VARIABLES, "member"),
    ((CursorKind.ENUM_DECL,), "enum-class"),
    ((CursorKind.ENUM_CONSTANT_DECL,), "enumerator"),
)


@cache
def system_includes() -> list[str]:
    """Returns g++'s folders of the standard library, as options: libclang's wheel brings none."""
    command = ["g++", "-E", "-x", "c++", "-v", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    folders = said.split("search starts here:\n")[-1].split("End of search list")[0].split()
    return [f"-isystem{folder}" for folder in folders]


def text_of(comment: str | None) -> str:
    """A comment's text, as Markdown that holds no HTML. Lines that begin with a name and a colon
    are a list of what each name is."""
    lines = [re.sub(r"^\s*//[/!]?<? ?", "", line) for line in (comment or "").splitlines()]
    text = re.sub(r"<(?=[\w/])", r"\\<", "\n".join(lines)).strip()
    text = re.sub(r"\bdocs/([\w/-]+\.md)", r"[](../\1)", text)  # the page is in docs/api
    text = re.sub(r"^(k[A-Z]\w*|[a-z]\w*|[A-Z]): ", r"- `\1`: ", text, flags=re.MULTILINE)
    return re.sub(r"^(?!- )(.+)\n(?=- )", r"\1\n\n", text, count=1, flags=re.MULTILINE)


def declaration(cursor: Cursor, source: bytes) -> str:
    """The declaration as the header spells it, in one line, without its body."""
    extent = cursor.extent
    text = source[extent.start.offset : extent.end.offset].decode()
    if cursor.kind in FUNCTIONS:
        text = body_removed(text)
    elif cursor.kind in (*STRUCTS, CursorKind.ENUM_DECL):
        text = re.sub(r"\b(?:struct|class|enum)\s+", "", text.partition("{")[0])
    elif cursor.kind is CursorKind.ENUM_CONSTANT_DECL:
        text = cursor.spelling
    elif cursor.kind in ALIASES:
        text = re.sub(r"\b(?:using|typedef)\s+", "", text)
    elif cursor.kind in VARIABLES and text.endswith("}") and len(text) > 150:
        text = text.partition("=")[0]  # a table
    text = re.sub(r"\b(?:OCTOFOLD_API|inline)\b|: (?:std::uint8_t|unsigned char)", " ", text)
    text = re.sub(r"\{\..*\}$", "", " ".join(text.split()).rstrip(" ;"))  # designated values
    return re.sub(r"\{\}$", " = {}", text)


def body_removed(text: str) -> str:
    """A function's text up to its body: the first brace that no parenthesis holds."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in "(") - (sign in ")")
        if sign == "{" and depth == 0:
            return text[:place]
    return text


def is_shown(cursor: Cursor) -> bool:
    if not any(cursor.kind in kinds for kinds, _ in DIRECTIVES):
        return False
    public = cursor.access_specifier in (AccessSpecifier.PUBLIC, AccessSpecifier.INVALID)
    again = cursor.canonical != cursor and not cursor.is_definition()
    return public and not again and not cursor.spelling.startswith("operator")


def entries(cursor: Cursor, source: bytes, file: str, depth: int = 0) -> str:
    """The members of a namespace or a struct, as directives."""
    shown: list[tuple[str, list[str], str, str]] = []
    last_line = 0
    for child in cursor.get_children():
        if str(child.location.file) != file or not is_shown(child):
            continue
        kind = next(name for kinds, name in DIRECTIVES if child.kind in kinds)
        spelled = declaration(child, source)
        comment = text_of(child.raw_comment)
        first, end = child.extent.start.line, child.extent.end.line
        # Declarations that follow one another without comments share the one above them.
        if shown and not comment and kind == shown[-1][0] == "function" and first == last_line + 1:
            shown[-1][1].append(spelled)
        else:
            inner = (
                entries(child, source, file, depth + 1) if kind in ("struct", "enum-class") else ""
            )
            shown.append((kind, [spelled], comment, inner))
        last_line = end
    fence = "`" * (7 - depth)
    parts = []
    for kind, signatures, comment, inner in shown:
        *others, last = signatures
        parts += [f"{fence}{{cpp:{kind}}} {other}\n{fence}\n" for other in others]
        parts.append(f"{fence}{{cpp:{kind}}} {last}\n\n{comment}\n\n{inner}\n{fence}\n")
    return "\n".join(parts)


def reference(header: str) -> str:
    """A header as MyST: its own comment, then what it declares."""
    path = INCLUDE / "octofold" / header
    options = ["-xc++", "-std=c++20", "-fparse-all-comments", f"-I{INCLUDE}", *system_includes()]
    unit = Index.create().parse(str(path), args=options)
    source = path.read_bytes()
    begin = text_of(source.decode().split("#pragma once")[0])
    spaces = (
        inner
        for inner in unit.cursor.get_children()
        if inner.kind is CursorKind.NAMESPACE and str(inner.location.file) == str(path)
    )
    body = "\n".join(entries(space, source, str(path)) for space in spaces)
    return (
        f"`#include <octofold/{header}>`\n\n{begin}\n\n```{{cpp:namespace}} octofold\n```\n\n{body}"
    )


def read(app, docname, source):
    source[0] = HEADER.sub(lambda found: reference(found[1]), source[0])


def setup(app):
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
