"""scripts/check_imports.py finds arrows up the floors and circles."""

import sys

import pytest

from tests.project.project_support import REPOSITORY, outcome

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
    result = outcome(sys.executable, REPOSITORY / "scripts" / "check_imports.py", folder)
    assert result.returncode == bool(result.stdout), result.stderr
    return result.stdout.splitlines()


def test_what_is_sound(tmp_path):
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
def test_what_is_not(changes, message, tmp_path):
    found = problems(tmp_path, changes)
    assert any(line.endswith(message) for line in found), found


def test_types_do_not_count(tmp_path):
    code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .._ops import gemm\n"
    assert problems(tmp_path, {"_core/errors.py": code}) == []
