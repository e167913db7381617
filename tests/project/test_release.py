"""Errors of `make release`, and findings of its audit of a wheel."""

import dataclasses
import importlib
import re
import sys
import tomllib

import pytest

from tests.project.project_support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
audit_wheel = importlib.import_module("audit_wheel")
manylinux_wheel = importlib.import_module("manylinux_wheel")
test_matrix = importlib.import_module("test_matrix")
changelog = importlib.import_module("changelog")

GOOD = audit_wheel.Audit(
    name="octofold-0.1.0-py3-none-manylinux_2_28_aarch64.whl",
    bytes=6_000_000,
    machine="AArch64",
    needed=("libtvm_ffi.so", "libm.so.6", "libc.so.6", "ld-linux-aarch64.so.1"),
    glibc="2.28",
    foreign=(),
    shown=(),
    paths=(),
    tag="manylinux_2_28_aarch64",
)


def test_a_wheel_that_keeps_its_word():
    assert GOOD.faults() == []
    assert "glibc 2.28, C++ run-time inside" in str(GOOD)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"bytes": 10_000_001}, "takes 10000001 bytes"),
        ({"needed": ("libstdc++.so.6",)}, "needs libstdc++.so.6"),
        ({"glibc": "2.34"}, "asks for glibc 2.34"),
        ({"foreign": ("GLIBCXX_3.4.30",)}, "asks for GLIBCXX_3.4.30"),
        ({"shown": ("cblas_sgemm",)}, "shows cblas_sgemm"),
        ({"paths": ("/root/a.h",)}, "has a path of this machine inside: /root/a.h"),
        ({"tag": "manylinux_2_35_aarch64"}, "is manylinux_2_35_aarch64, says auditwheel"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wheel_that_does_not(change, fault):
    assert [f for f in dataclasses.replace(GOOD, **change).faults() if fault in f]


def test_paths_of_this_machine_are_found():
    here = f"{REPOSITORY}/src/a.cpp"
    binary = b"\0".join([b"/usr/lib/libc.so", here.encode(), b"include/octofold/a.h"])
    assert audit_wheel.paths_in(binary) == {here}


def test_the_changelog_is_of_the_version():
    state, notes = changelog.first_section((REPOSITORY / "CHANGELOG.md").read_text(), VERSION)
    assert state == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", state)
    assert notes.startswith("### Added")
    assert "\n## " not in notes


VERSION = changelog.version()


@pytest.mark.parametrize("head", ["9.9.9 (unreleased)", "0.1.0", "Unreleased"])
def test_another_changelog_is_refused(head):
    with pytest.raises(SystemExit, match=re.escape(f"got '## {head}'")):
        changelog.first_section(f"# Changelog\n\n## {head}\n\n- a\n", VERSION)


def test_a_section_ends_where_the_next_begins():
    text = f"# Changelog\n\n## {VERSION} (2026-12-01)\n\n### Added\n- a\n\n## 0.0.1 (x)\n\n- b\n"
    assert changelog.first_section(text, VERSION) == ("2026-12-01", "### Added\n- a\n")


def test_the_matrix_begins_where_the_metadata_does():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    torch = project["optional-dependencies"]["torch"]
    admitted = {
        name: oldest
        for requirement in [*project["dependencies"], *torch]
        for name, _, oldest in [requirement.partition(",")[0].partition(">=")]
    }
    oldest = dict(pin.split("==") for pin in test_matrix.ENDS["oldest"])
    assert oldest.keys() == admitted.keys()
    for name, version in oldest.items():
        assert version.removesuffix(".*").removesuffix(".0") == admitted[name], name
    assert manylinux_wheel.oldest_tvm_ffi() == oldest["apache-tvm-ffi"]
