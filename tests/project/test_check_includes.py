"""The include-rule check finds what it is there to find, and nothing in what is right."""

import sys

import pytest

from tests.project.project_support import REPOSITORY, outcome

SCRIPT = REPOSITORY / "scripts" / "check_includes.py"


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
        ("src/plan/a.cpp", "#include <cuda.h>", "nobody may include this"),
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
def test_a_violation_is_named(tmp_path, path, line, complaint):
    write(tmp_path, path, f"\n{line}\n")
    result = outcome(sys.executable, SCRIPT, tmp_path)
    assert result.returncode == 1
    assert complaint in result.stderr
    assert result.stderr.startswith(path)


def test_a_long_file_is_named(tmp_path):
    write(tmp_path, "python/a.py", "x = 0\n" * 401)
    result = outcome(sys.executable, SCRIPT, tmp_path)
    assert result.returncode == 1
    assert "python/a.py: 401 lines" in result.stderr


def test_what_is_right_passes(tmp_path):
    write(tmp_path, "include/octofold/a.h", '#include <cstdint>\n#include "octofold/b.h"\n')
    write(tmp_path, "src/cpu/a.cpp", '#include "kernels/shared/a.h"\n#include <cblas.h>\n')
    write(tmp_path, "src/model/a.cpp", '#include "core/check.h"\n#include <nlohmann/json.hpp>\n')
    write(tmp_path, "bindings/a.cpp", '#include "b.h"\n#include "octofold/gemm.h"\n')
    write(tmp_path, "kernels/numeric/a.h", '#include "kernels/ptx/a.h"\n')
    twin = "tests/cpp/support/ptx_on_host/kernels/ptx/a.h"
    write(tmp_path, twin, '#include "../../../../../../kernels/ptx/a.h"\n')
    write(tmp_path, "tools/a.py", "import octofold\nfrom octofold.torch import gemm\n")
    write(tmp_path, "python/a.py", "from octofold import _ffi\n" * 400)
    result = outcome(sys.executable, SCRIPT, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
