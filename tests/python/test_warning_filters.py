"""The filterwarnings of pyproject.toml: only warnings that we cause are errors."""

import warnings
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Modules that tests share are imported by their bare names.
SHARED = [
    path.stem
    for folder in ("gpu", "project", "python")
    for path in (TESTS / folder).glob("*.py")
    if not path.stem.startswith(("test_", "conftest"))
]


def warn(module):
    warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, module=module)


@pytest.mark.parametrize(
    "module", ["octofold", "octofold._api", "octofold_tool", __name__, *SHARED]
)
def test_own_warnings_are_errors(module):
    with pytest.raises(DeprecationWarning):
        warn(module)


def test_warnings_of_other_libraries_are_none(recwarn):
    warn("torchao.utils")
    assert len(recwarn) == 1
