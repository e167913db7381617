"""The versions of its dependencies that Octofold works with. pyproject.toml says the same, which
pip heeds; an environment that was put together otherwise is told by these checks."""

import re
from typing import Final

from .errors import UnavailableError

REQUIREMENTS: Final = {"apache-tvm-ffi": ("0.1.11", "0.2"), "torch": ("2.9", None)}
"""The oldest version of each distribution, and the first one that is too new."""


def require(distribution: str, found: str) -> None:
    """Raise UnavailableError unless the version found is one that Octofold works with."""
    oldest, too_new = REQUIREMENTS[distribution]
    if release(oldest) <= release(found) and (too_new is None or release(found) < release(too_new)):
        return
    wanted = f"{distribution}>={oldest}" + (f",<{too_new}" if too_new else "")
    raise UnavailableError(
        f"octofold needs {wanted}, found {distribution} {found}: pip install '{wanted}'"
    )


def release(version: str) -> tuple[int, ...]:
    """(2, 9, 1) of "2.9.1rc2+cu128"."""
    digits = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, digits[0].split("."))) if digits else ()
