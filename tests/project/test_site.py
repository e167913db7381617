"""The documentation site's own extensions: docs/_ext. (`make docs` builds it, and takes warnings
for errors.)"""

import re

import pytest

from tests.project.project_support import REPOSITORY

INCLUDE = REPOSITORY / "include" / "octofold"


def test_tables_of_pages_are_the_sidebar():
    import sidebar

    page = "# A\n\n<!-- pages: Guides -->\n| page | of |\n|---|---|\n"
    page += "| [one.md](one.md) | see [two](two.md) |\n| [Three](../three.md#part) | |\n\nText\n"
    tree = sidebar.toctrees(page)
    assert tree == "```{toctree}\n:hidden:\n:caption: Guides\n\none\n../three\n```\n"
    assert sidebar.toctrees("| [one.md](one.md) | a table without a mark |\n") == ""


def test_readers_see_titles_and_no_marks():
    import sidebar

    source = ["<!-- given\nx = 1\n-->\n[a/one.md](a/one.md#part) and [two](two.md)"]
    sidebar.read(None, "docs/page", source)
    assert source[0].strip() == "[](a/one.md#part) and [two](two.md)"


def test_docstrings_become_fields():
    docstrings = pytest.importorskip("docstrings")  # needs Sphinx

    lines = ["Add.", "", "a, b: numbers,", "    or `codes`."]
    lines += ["Returns a * b. Raises: no.", "c: not a name"]
    assert docstrings.converted(lines, {"a", "b"}) == [
        "Add.",
        "",
        ":param a, b: numbers,",
        r"    or ``codes``\ .",
        "",
        r"**Returns** a \* b. Raises: no.",
        "c: not a name",
    ]
    assert docstrings.converted([">>> f()  # `x`", "", "Text"], set())[1] == ">>> f()  # `x`"


def test_docstrings_lead_to_functions_and_pages():
    docstrings = pytest.importorskip("docstrings")  # needs Sphinx

    text = docstrings.marked_up("See gemm(), cast() and f_(); docs/numerics.md has it.")
    assert ":py:func:`gemm() <octofold.gemm>`" in text
    assert ":py:func:`cast() <octofold.ops.cast>`" in text
    assert ":doc:`/docs/numerics`" in text
    assert "func:`f_" not in text


def test_every_public_name_is_in_the_reference():
    pytest.importorskip("torch")
    pytest.importorskip("jax_tvm_ffi")
    docstrings = pytest.importorskip("docstrings")  # needs Sphinx

    pages = [path.read_text() for path in (REPOSITORY / "docs" / "api").glob("*.md")]
    listed = set()
    for page in pages:
        for module, names in re.findall(
            r"^\.\. currentmodule:: (\S+)\n((?:\.\. auto\w+:: \S+\n)+)", page, re.MULTILINE
        ):
            listed |= {f"{module}.{name}" for name in re.findall(r"auto\w+:: (\S+)", names)}
    whole = ("octofold.kernel_cache.", "octofold.tuning.")  # automodule, with its members
    assert [name for name in docstrings.missing(listed) if not name.startswith(whole)] == []


def test_every_header_is_in_the_reference():
    page = (REPOSITORY / "docs" / "api" / "cpp.md").read_text()
    shown = set(re.findall(r"<!-- header: (\S+) -->", page))
    assert shown == {path.name for path in INCLUDE.iterdir()} - {"export.h", "octofold.h"}


@pytest.mark.parametrize("path", sorted(INCLUDE.iterdir()), ids=lambda path: path.name)
def test_every_declaration_is_in_the_reference(path):
    pytest.importorskip("clang.cindex")
    import cpp_reference

    text = cpp_reference.reference(path.name)
    code = re.sub(r"//[^\n]*|^namespace detail \{.*?^\}", "", path.read_text(), flags=re.M | re.S)
    functions = re.findall(r"^OCTOFOLD_API [^;(]*?(\w+)\(", code, re.MULTILINE)
    types = re.findall(r"^(?:struct|enum class|using) (\w+)(?= [:{=])", code, re.MULTILINE)
    if path.name != "export.h":
        assert functions or types or "#include" in code
    for name in functions:
        if (path.name, name) == ("cast.h", "column_workspace_rows"):
            continue  # declared once more, behind cast_targets.h
        assert re.search(rf"\{{cpp:function\}} .*\b{name}\(", text), name
    for name in types:
        assert re.search(rf"\{{cpp:(struct|enum-class|type)\}} (template <.*> )?{name}\b", text), (
            name
        )


def test_comments_of_the_headers():
    pytest.importorskip("clang.cindex")
    import cpp_reference

    text = cpp_reference.text_of("/// One of <int>:\n/// kA: first\n/// kB: second")
    assert text == "One of \\<int>:\n\n- `kA`: first\n- `kB`: second"
    assert "- `out`: bfloat16" in cpp_reference.reference("gemm.h")
