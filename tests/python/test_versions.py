"""A version of what Octofold stands on that it does not work with is named, with what is needed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from octofold import UnavailableError
from octofold._core.library import REQUIREMENTS, release, require

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize("found", ["0.1.11", "0.1.15.post2", "0.1.11rc1+local"])
def test_what_serves_is_taken(found):
    require("apache-tvm-ffi", found)


@pytest.mark.parametrize(
    ("distribution", "found", "sentence"),
    [
        ("apache-tvm-ffi", "0.1.9", "apache-tvm-ffi>=0.1.11,<0.2, found apache-tvm-ffi 0.1.9"),
        ("apache-tvm-ffi", "0.2.0", "apache-tvm-ffi>=0.1.11,<0.2, found apache-tvm-ffi 0.2.0"),
        ("torch", "2.8.0+cu128", "needs torch>=2.9, found torch 2.8.0+cu128"),
        ("torch", "unknown", "found torch unknown"),
    ],
)
def test_what_does_not_is_named(distribution, found, sentence):
    with pytest.raises(UnavailableError, match=re.escape(sentence)):
        require(distribution, found)


def test_releases_compare_by_number():
    assert release("2.10.0") > release("2.9.1") > release("2.9")


def test_the_first_use_tells_of_an_old_tvm_ffi():
    code = (
        "import sys, types, numpy, octofold\n"
        "sys.modules['tvm_ffi'] = types.SimpleNamespace(__version__='0.1.9')\n"
        "octofold.quantize(numpy.ones((1, 128), numpy.float32))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stderr.splitlines()[-1].endswith(
        "UnavailableError: octofold needs apache-tvm-ffi>=0.1.11,<0.2, found apache-tvm-ffi 0.1.9: "
        "pip install 'apache-tvm-ffi>=0.1.11,<0.2'"
    )


def test_pip_is_told_the_same():
    project = tomllib.loads(PYPROJECT.read_text())
    told = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["torch"],
    ]
    for distribution, (oldest, too_new) in REQUIREMENTS.items():
        assert f"{distribution}>={oldest}" + (f",<{too_new}" if too_new else "") in told
    assert "apache-tvm-ffi>=0.1.11,<0.2" in project["build-system"]["requires"]
