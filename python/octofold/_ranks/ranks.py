"""The ranks of a process group, as a value."""

from dataclasses import dataclass
from typing import Any

import torch.distributed
from torch.distributed import ProcessGroup

from .._core.errors import invalid_argument


@dataclass(frozen=True)
class Ranks:
    """The ranks of a group, one of which is this process.

    name: the name that torch has for the group; torch.compile takes it for a constant, which a
        ProcessGroup is not.
    rank: this process among them, from 0 to size - 1.
    size: how many there are.
    """

    name: str
    rank: int
    size: int

    @property
    def group(self) -> ProcessGroup:
        """torch's group."""
        found: ProcessGroup = torch._C._distributed_c10d._resolve_process_group(
            self.name  # type: ignore[arg-type]  # torch's name for a str
        )
        return found

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} (group {self.name!r})"


def ranks_of(operation: str, argument: str, group: Any) -> Ranks:
    """Returns the ranks of a ProcessGroup, a DeviceMesh of one dimension, or None for all
    processes. Raises InvalidArgumentError that names the argument."""
    if isinstance(group, Ranks):
        return group
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        expected = "torch.distributed.init_process_group() to have been called"
        raise invalid_argument(operation, argument, expected, "no process group")
    if group is None:
        group = torch.distributed.group.WORLD
    elif hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim != 1:
            expected = "a DeviceMesh of one dimension, such as mesh['tp']"
            raise invalid_argument(operation, argument, expected, f"{group.ndim} dimensions")
        group = group.get_group()
    if not isinstance(group, ProcessGroup):
        expected = "a ProcessGroup, a DeviceMesh of one dimension, or None"
        raise invalid_argument(operation, argument, expected, type(group).__qualname__)
    return Ranks(group.group_name, group.rank(), group.size())
