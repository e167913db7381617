"""The wheel in dist/, as a user installs it: a fresh venv, only what it asks for itself."""

import venv
import zipfile

import pytest

from tests.project.project_support import REPOSITORY, assert_example_output, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel():
    wheels = list((REPOSITORY / "dist").glob("octofold-*.whl"))
    assert len(wheels) == 1, f"expected one wheel in dist/ (run `make wheel`), got {wheels}"
    return wheels[0]


@pytest.fixture(scope="module")
def clean_venv(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", wheel)
    return folder


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "octofold/__init__.py",
        "octofold/octofold_ffi.so",
        "octofold/py.typed",
    } <= names
    licenses = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
    assert {"LICENSE", "NOTICE"} <= licenses
    # Headers and the CMake package are for C++ users, who install with CMake.
    assert not [name for name in names if name.endswith((".h", ".cpp", ".cmake"))]


def test_it_serves_every_python(wheel):
    assert "-py3-none-linux_" in wheel.name or "-py3-none-manylinux" in wheel.name


def test_the_example_runs_without_optional_packages(clean_venv, tmp_path):
    example = REPOSITORY / "examples" / "python" / "quantize_and_multiply.py"
    output = run(clean_venv / "bin" / "python", example, cwd=tmp_path)
    assert_example_output(output)


def test_the_tool_runs(clean_venv, tmp_path):
    assert "octofold" in run(clean_venv / "bin" / "octofold", "info", cwd=tmp_path).lower()
