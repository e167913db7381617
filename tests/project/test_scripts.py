"""Scripts that check and count: include rules, floors, seconds of tests, what kernels take."""

import json
import sys

import pytest

from tests.project.project_support import REPOSITORY, outcome, run

SCRIPTS = REPOSITORY / "scripts"


SOUND = {
    "__init__.py": "from . import ops\n",
    "ops.py": "from ._ops.gemm import gemm\n",
    "_core/__init__.py": "",
    "_core/errors.py": "",
    "_ops/__init__.py": "",
    "_ops/gemm.py": "from .._core import errors\n",
    "nn/__init__.py": "from .layers.linear import Linear\n",
    "nn/layers/__init__.py": "",
    "nn/layers/linear.py": "from ..._ops.gemm import gemm\n",
}


def problems(folder, changes):
    for name, text in (SOUND | changes).items():
        path = folder / "python" / "octofold" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = outcome(sys.executable, SCRIPTS / "check_imports.py", folder)
    assert result.returncode == bool(result.stdout), result.stderr
    return result.stdout.splitlines()


def test_imports_that_are_sound(tmp_path):
    assert problems(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_core/errors.py": "from .._ops import gemm\n"}, "_core.errors lies below _ops.gemm"),
        ({"_ops/gemm.py": "from .. import ops\n"}, "_ops.gemm lies below ops"),
        ({"ops.py": "def f():\n    from .nn import layers\n"}, "ops lies below nn.layers"),
        (
            {
                "_core/log.py": "from . import errors\n",
                "_core/errors.py": "from .log import note\n",
            },
            "circle of modules: _core.errors -> _core.log -> _core.errors",
        ),
        (
            {
                "_core/log.py": "from . import errors\n",
                "_core/errors.py": "def f():\n    from .log import note\n",
            },
            "circle of modules: _core.errors -> _core.log -> _core.errors",
        ),
        (
            {
                "nn/recipes/__init__.py": "",
                "nn/recipes/a.py": "from ..layers import linear\n",
                "nn/recipes/b.py": "",
                "nn/layers/linear.py": "from ..recipes import b\n",
            },
            "circle of folders: nn/layers -> nn/recipes -> nn/layers",
        ),
    ],
    ids=["core", "private", "in a function", "circle", "put off", "folders"],
)
def test_imports_up_the_floors_and_in_circles(changes, message, tmp_path):
    found = problems(tmp_path, changes)
    assert any(line.endswith(message) for line in found), found


def test_imports_for_types_do_not_count(tmp_path):
    code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .._ops import gemm\n"
    assert problems(tmp_path, {"_core/errors.py": code}) == []


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("path", "line", "complaint"),
    [
        (
            "src/core/a.h",
            '#include "cpu/gemm.h"',
            "src/core may include octofold, core, kernels/shared",
        ),
        ("src/cpu/a.cpp", '#include "../ops/gemm.h"', "not a relative one"),
        ("src/cpu/a.cpp", '#include "gemm.h"', "src/cpu may include octofold, cpu, core"),
        ("src/ops/a.cpp", '#include "model/file.h"', "src/ops may include"),
        (
            "src/plan/a.cpp",
            "#include <cuda.h>",
            "only examples/cpp/inference_engine.cpp, examples/kernels/ladder.cu may",
        ),
        ("src/core/a.cpp", "#include <cblas.h>", "only src/cpu, tests/cpp/cpu, bench may"),
        ("include/octofold/a.h", "#include <fmt/format.h>", "standard library only"),
        ("include/octofold/a.h", "#include <cuda_fp8.h>", "standard library only"),
        ("include/octofold/a.h", '#include "core/check.h"', "include may include octofold"),
        ("kernels/shared/a.h", "#include <cstdint>", "no device code"),
        ("kernels/sm90/config/a.h", '#include "kernels/ptx/a.h"', "no device code"),
        ("kernels/sm90/a.h", "#include <cuda_fp8.h>", "self-contained"),
        ("kernels/numeric/a.h", '#include "octofold/types.h"', "kernels/numeric may include"),
        ("bindings/a.cpp", '#include "ops/gemm.h"', "bindings may include octofold"),
        ("bench/a.cpp", '#  include "core/check.h"', "bench may include octofold"),
        ("tools/a.py", "from octofold._ffi import gemm", "public names only"),
        ("tools/a.py", "from octofold import _ffi", "public names only"),
        ("examples/a.py", "import octofold._ffi as ffi", "public names only"),
    ],
)
def test_an_include_that_is_not_allowed_is_named(tmp_path, path, line, complaint):
    write(tmp_path, path, f"\n{line}\n")
    result = outcome(sys.executable, SCRIPTS / "check_includes.py", tmp_path)
    assert result.returncode == 1
    assert complaint in result.stderr
    assert result.stderr.startswith(path)


def test_a_long_file_is_named(tmp_path):
    write(tmp_path, "python/a.py", "x = 0\n" * 501)
    result = outcome(sys.executable, SCRIPTS / "check_includes.py", tmp_path)
    assert result.returncode == 1
    assert "python/a.py: 501 lines" in result.stderr


def test_includes_that_are_right_pass(tmp_path):
    write(tmp_path, "include/octofold/a.h", '#include <cstdint>\n#include "octofold/b.h"\n')
    write(tmp_path, "src/cpu/a.cpp", '#include "kernels/shared/a.h"\n#include <cblas.h>\n')
    write(tmp_path, "src/model/a.cpp", '#include "core/check.h"\n#include <nlohmann/json.hpp>\n')
    write(tmp_path, "bindings/a.cpp", '#include "b.h"\n#include "octofold/gemm.h"\n')
    write(tmp_path, "kernels/numeric/a.h", '#include "kernels/ptx/a.h"\n')
    twin = "tests/cpp/support/ptx_on_host/kernels/ptx/a.h"
    write(tmp_path, twin, '#include "../../../../../../kernels/ptx/a.h"\n')
    write(tmp_path, "tools/a.py", "import octofold\nfrom octofold.torch import gemm\n")
    write(tmp_path, "python/a.py", "from octofold import _ffi\n" * 500)
    result = outcome(sys.executable, SCRIPTS / "check_includes.py", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


SUITE = """<testsuite>
<testcase name="plan.CastTest.Rows" classname="plan.CastTest.Rows" time="1.5"/>
<testcase name="plan.CastTest.Both" classname="plan.CastTest.Both" time="0.25"/>
</testsuite>"""
PYTHON = """<testsuites><testsuite>
<testcase classname="tests.python.nn.test_mlp" name="test_one" time="2.0"/>
<testcase classname="tests.python.nn.test_any_order.TestAnyOrder" name="runTest" time="3.0"/>
<testcase classname="tests.python.test_gemm" name="test_case" time="0.5"/>
</testsuite></testsuites>"""


def test_seconds_are_summed_by_area(tmp_path):
    (tmp_path / "quick.xml").write_text(SUITE)
    (tmp_path / "python.xml").write_text(PYTHON)
    shown = run(sys.executable, SCRIPTS / "test_times.py", tmp_path)
    assert [line.split() for line in shown.splitlines()] == [
        ["area", "tests", "seconds"],
        ["tests/python/nn", "2", "5.0"],
        ["tests/cpp/plan", "(quick)", "2", "1.8"],
        ["tests/python", "1", "0.5"],
    ]


def program(folder, kernels):
    """A stand-in of the tests that compile kernels, which records these."""
    tests = [{"name": "AreSound/Gemm_Sm90", "time": "0s"} | kernels]
    output = json.dumps({"testsuites": [{"testsuite": tests}]})
    file = folder / f"{len(list(folder.iterdir()))}.sh"
    file.write_text(f"#!/bin/sh\ncat <<'END' >\"${{2#*json:}}\"\n{output}\nEND\n")
    file.chmod(0o755)
    return file


def test_what_kernels_take_is_compared(tmp_path):
    before = program(tmp_path, {"a": "128 100 0 1000", "b": "128 100 0 1000", "c": "32 9 0 90"})
    changes = {"a": "128 104 0 1020", "b": "128 100 512 1000", "c": "32 9 0 80"}
    script = SCRIPTS / "kernel_resources.py"
    result = outcome(sys.executable, script, program(tmp_path, changes), "--before", before)
    assert (result.returncode, result.stderr) == (0, "")
    assert "registers 100 104, instructions 1000 1020: a" in result.stdout
    assert "3 kernels on both sides, 0 over a bound" in result.stdout
    for worse in ({"a": "128 105 0 1000"}, {"a": "128 100 0 1021"}, {"d": "32 9 0 90"}):
        result = outcome(
            sys.executable, script, program(tmp_path, changes | worse), "--before", before
        )
        assert result.returncode == 1
        assert result.stdout.count(" <--") == 1
