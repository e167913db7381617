"""The filterwarnings of pyproject.toml: only warnings that we cause are errors."""

import warnings

import pytest

from tests.python import casting


def warn(module):
    warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, module=module)


@pytest.mark.parametrize(
    "module", ["octofold", "octofold._api", "octofold_tool", __name__, casting.__name__]
)
def test_own_warnings_are_errors(module):
    with pytest.raises(DeprecationWarning):
        warn(module)


def test_warnings_of_other_libraries_are_none(recwarn):
    warn("torchao.utils")
    assert len(recwarn) == 1
