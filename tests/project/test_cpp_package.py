"""The package of a C++ user: `cmake --install`, find_package, pkg-config, a clean symbol table."""

import re

import pytest

from tests.project.project_support import REPOSITORY, assert_example_output, outcome, run

pytestmark = pytest.mark.slow

EXAMPLE = REPOSITORY / "examples" / "cpp"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """A prefix that Octofold was installed into and that was then moved elsewhere."""
    build = REPOSITORY / "build" / "release"
    run("cmake", "--preset", "release", "-S", REPOSITORY)
    run("cmake", "--build", build, "--target", "octofold")
    staging = tmp_path_factory.mktemp("staging")
    run("cmake", "--install", build, "--prefix", staging / "octofold")
    return (staging / "octofold").rename(tmp_path_factory.mktemp("prefix") / "octofold")


def test_find_package_builds_the_examples(prefix, tmp_path):
    run("cmake", "-S", EXAMPLE, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    for example in ("quantize_and_multiply", "inference_engine"):
        assert_example_output(run(tmp_path / example))
    assert "the loss fell from" in run(tmp_path / "train_experts")  # by half, or it fails


def test_pkg_config_builds_the_example(prefix, tmp_path):
    pkg_config = next(prefix.rglob("pkgconfig"))
    library = pkg_config.parent
    flags = run("pkg-config", "--cflags", "--libs", "octofold", PKG_CONFIG_PATH=str(pkg_config))
    program = tmp_path / "program"
    source = EXAMPLE / "quantize_and_multiply.cpp"
    run("g++", "-std=c++20", source, "-o", program, *flags.split())
    assert_example_output(run(program, LD_LIBRARY_PATH=str(library)))


def test_find_package_refuses_another_version(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p CXX)\nfind_package(octofold 9 REQUIRED)\n"
    )
    build = ("-S", tmp_path, "-B", tmp_path / "build")
    result = outcome("cmake", *build, f"-DCMAKE_PREFIX_PATH={prefix}")
    assert result.returncode != 0
    assert "octofold-config.cmake, version: 0." in result.stderr


def test_only_headers_library_licenses_and_package_files_are_installed(prefix):
    folders = {path.relative_to(prefix).parts[0] for path in prefix.rglob("*") if path.is_file()}
    assert folders <= {"include", "lib", "lib64", "share"}
    shared = {path.name for path in (prefix / "share").rglob("*") if path.is_file()}
    assert shared == {"LICENSE", "NOTICE"}
    installed = {path.name for path in (prefix / "include" / "octofold").iterdir()}
    assert installed == {path.name for path in (REPOSITORY / "include" / "octofold").iterdir()}


def test_the_library_shows_and_needs_nothing_of_its_third_parties(prefix):
    library = next(prefix.rglob("liboctofold.so"))
    symbols = run("nm", "--dynamic", "--defined-only", "--demangle", library)
    names = [line.split(maxsplit=2)[2] for line in symbols.splitlines()]
    assert any("octofold::gemm" in name for name in names)
    assert not [name for name in names if "octofold" not in name and "std::" not in name]
    assert not [line for line in symbols.splitlines() if line.split()[1] == "u"]  # dlclose() unmaps
    dynamic = run("readelf", "--dynamic", library)
    assert re.search(r"soname: \[liboctofold\.so\.\d+\.\d+\]", dynamic)
    needed = re.findall(r"NEEDED.*\[(.*)\.so", dynamic)
    assert set(needed) <= {"libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64"}
