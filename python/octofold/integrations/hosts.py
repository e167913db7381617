"""The programs that Octofold plugs into, and which versions of them it knows."""

import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .._core.errors import Error, InvalidArgumentError, UnavailableError
from .._core.library import release

_VARIABLE: Final = "OCTOFOLD_INTEGRATIONS"


@dataclass(frozen=True)
class Host:
    """A program, by the name of its distribution: the oldest version that a plug was tested with,
    and the first that is too new. What a plug needs of a host is no public API everywhere."""

    distribution: str
    oldest: str
    too_new: str

    @property
    def wanted(self) -> str:
        """The requirement as pip says it: "vllm>=0.26,<0.34"."""
        return f"{self.distribution}>={self.oldest},<{self.too_new}"


HOSTS: Final = {
    "vllm": Host("vllm", "0.26", "0.34"),
    "sglang": Host("sglang", "0.5.23", "0.6"),
    "transformers": Host("transformers", "5.17", "6"),
    "diffusers": Host("diffusers", "0.42", "0.43"),
    "peft": Host("peft", "0.21", "0.22"),
    "comfyui": Host("comfy-kitchen", "0.2.31", "0.3"),
    "torchao": Host("torchao", "0.18", "0.20"),
    "torchtitan": Host("torchtitan", "0.3", "0.4"),
    "kernels": Host("kernels", "0.17", "0.18"),
}
"""By the names of their modules here."""


def require(name: str) -> None:
    """Raise UnavailableError, with both versions, unless this host is there in a version that its
    plug knows."""
    host = HOSTS[name]
    plug = f"octofold.integrations.{name}"
    try:
        found = importlib.metadata.version(host.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise UnavailableError(f"{plug} needs {host.wanted}, which is not installed") from None
    if not release(host.oldest) <= release(found) < release(host.too_new):
        raise UnavailableError(
            f"{plug} is for {host.wanted}, found {host.distribution} {found}: nothing was changed"
        )


def switched_on(name: str) -> bool:
    """True if the environment lets an entry point plug into this host. Raises
    InvalidArgumentError."""
    text = os.environ.get(_VARIABLE, "")
    names = {part.strip() for part in text.split(",") if part.strip()}
    if names == {"0"}:
        return False
    if unknown := sorted(names - set(HOSTS)):
        raise InvalidArgumentError(
            f"environment variable {_VARIABLE}: expected 0, or names of {', '.join(HOSTS)}, got "
            f"{', '.join(unknown)}"
        )
    return not names or name in names


def plug_in(
    name: str, plug: Callable[[], str], say: Callable[[str], object], warn: Callable[[str], object]
) -> bool:
    """Call a plug from an entry point, where an error would take the host down: its reason goes to
    the host's log, and the host goes on without us.

    plug: does it, and returns a sentence on what it did.
    say, warn: the host's log.
    Returns whether it was plugged in.
    """
    try:
        if not switched_on(name):
            say(f"octofold is switched off by {_VARIABLE}={os.environ[_VARIABLE]}")
            return False
        require(name)
        say(plug())
    except (Error, ImportError, AttributeError) as error:
        warn(f"octofold is not used: {error}")
        return False
    return True
