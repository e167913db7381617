"""The ranks of a process group, and checks that all of them are about to do the same thing.

A collective that ranks enter with different sizes, or in a different order, hangs or gives numbers
that mean nothing. So whoever calls one first says what it is about to do, and all ranks compare it,
in each call, as a rank to which nothing is new cannot know whether something is to another one.
Eight bytes stand for what is said, and travel by a connection of the hosts (gloo) that carries
nothing else, whatever moves the tensors. The words themselves go to the group's store, once.

Comparing goes on beside the step. It is waited for where something new is said, and before a tensor
of the host travels, which waits for all ranks anyway. The host does not wait for collectives of
GPUs, nor for this: each of them, and each call, looks whether the answer has come. With
OCTOFOLD_CHECK_RANKS=1 each call waits.
"""

import ctypes
import hashlib
import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import torch
import torch.distributed
from torch import Tensor
from torch.distributed import ProcessGroup, ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore

from .._core.errors import Error, InvalidArgumentError, UnavailableError, invalid_argument


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


_T = TypeVar("_T")
_SWITCH: Final = "OCTOFOLD_CHECK_RANKS"
_WORDS: Final = "what ranks are about to do"

_is_compiling: Final = torch.compiler.is_compiling

_Said: TypeAlias = tuple[str, dict[str, str]]
"""An operation and its facts."""


class _Comparison(NamedTuple):
    operation: str
    digests: Tensor
    """int64 [ranks, 1], when the work is done."""
    work: torch.distributed.Work


class _Connection:
    """A connection of the hosts of a group's ranks. All of them make it in the same call."""

    def __init__(self, ranks: Ranks) -> None:
        group = ranks.group
        found: Any = torch.distributed.distributed_c10d._get_process_group_store(group)
        self._ranks: Final = ranks
        self._store: Final = PrefixStore(f"octofold/{ranks.name}", found)
        backends = [group._get_backend(device) for device in group._device_types]
        timeout = min(backend.options._timeout for backend in backends)
        self._gloo: Final[Any] = ProcessGroupGloo(self._store, ranks.rank, ranks.size, timeout)
        self.agreed: Final[dict[str, Tensor]] = {}
        """Texts that all ranks have said at one time, each with the digest that stands for it."""
        self.begun: Final[deque[_Comparison]] = deque()
        weakref.finalize(self, _let_go, self._gloo, self.begun)

    def announce(self, said: _Said) -> Tensor:
        """Stores words, and returns their digest, int64 [1], by which the others find them."""
        words = json.dumps(said)
        digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, signed=True)
        self._store.set(str(number), words)
        return torch.tensor([number])

    def begin(self, operation: str, digest: Tensor) -> None:
        of_ranks = digest.new_empty((self._ranks.size, 1))
        work = self._gloo.allgather(list(of_ranks.unbind()), digest)
        self.begun.append(_Comparison(operation, of_ranks, work))

    def settle(self, wait: bool) -> None:
        """Raises what was found, in what has been compared by now, or in all that was begun."""
        while self.begun and (wait or self.begun[0].work.is_completed()):
            operation, digests, work = self.begun.popleft()
            try:
                work.wait()
            except RuntimeError as error:
                raise _unavailable(operation, _WORDS, self._ranks, error) from error
            numbers = digests.flatten().tolist()
            if numbers != numbers[:1] * len(numbers):
                said = [json.loads(self._store.get(str(number))) for number in numbers]
                _require_same(operation, self._ranks, said)


def _let_go(gloo: Any, begun: deque[_Comparison]) -> None:
    """Gloo's destructor waits for the ranks that are late, for as long as the group's time-out, and
    a process that ends after an error must not. So what is still waiting is never destroyed."""
    if not all(comparison.work.is_completed() for comparison in begun):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(gloo))


_CONNECTIONS: Final[weakref.WeakKeyDictionary[ProcessGroup, _Connection]] = (
    weakref.WeakKeyDictionary()
)


_LAYERS: Final[weakref.WeakKeyDictionary[ProcessGroup, int]] = weakref.WeakKeyDictionary()


def next_layer(ranks: Ranks) -> int:
    """The number of a layer that a group's ranks make now, all of them in one order: by it they
    tell layers of the same sizes apart."""
    group = ranks.group
    _LAYERS[group] = number = _LAYERS.get(group, 0) + 1
    return number


def require_agreement(operation: str, ranks: Ranks, **facts: object) -> None:
    """Requires all ranks of a group to call this operation now, with the same facts (shapes,
    dtypes, recipes): each a value whose text says it. Raises InvalidArgumentError on all ranks
    otherwise, naming ranks and fact, and UnavailableError where a rank does not answer within the
    group's time-out: now if something new was said, and otherwise at the latest in the next call.

    Not checked while torch.compile traces or a CUDA graph is captured: what is captured has run
    before.
    """
    if not _is_compiling() and not _is_capturing():
        _compare(operation, ranks, facts, os.environ.get(_SWITCH, "0") not in ("", "0"))


def require_agreement_now(operation: str, ranks: Ranks, **facts: object) -> None:
    """The same, and this call raises also where nothing new is said: for ranks that are about to
    change more than numbers, or that know already that they differ."""
    _compare(operation, ranks, facts, True)


def require_agreed(ranks: Ranks, wait: bool) -> None:
    """Requires that ranks have agreed on what was said so far: in what has been compared by now,
    or, if this waits, in all of it."""
    connection = _CONNECTIONS.get(ranks.group)
    if connection is not None:
        connection.settle(wait)


def _compare(operation: str, ranks: Ranks, facts: Mapping[str, object], wait: bool) -> None:
    if ranks.size == 1:
        return
    text = "; ".join((operation, *(f"{name}={value}" for name, value in facts.items())))
    connection = _CONNECTIONS.get(ranks.group)
    if connection is None:
        connection = answered(operation, _WORDS, ranks, lambda: _Connection(ranks))
        _CONNECTIONS[ranks.group] = connection
    digest = known = connection.agreed.get(text)
    if digest is None:
        said = operation, {name: str(value) for name, value in facts.items()}
        digest = answered(operation, _WORDS, ranks, lambda: connection.announce(said))
    connection.begin(operation, digest)
    connection.settle(wait or known is None)
    connection.agreed[text] = digest


def answered(operation: str, tensor: str, ranks: Ranks, call: Callable[[], _T]) -> _T:
    """The result of a call that waits for all ranks. Raises UnavailableError, which names this rank
    and the tensor, where torch's call fails: a rank died, or did not come within the time-out; if
    ranks were found to differ before, InvalidArgumentError, which says why it did not come."""
    try:
        return call()
    except Error:
        raise
    except RuntimeError as error:
        require_agreed(ranks, wait=False)
        raise _unavailable(operation, tensor, ranks, error) from error


def _unavailable(
    operation: str, tensor: str, ranks: Ranks, error: RuntimeError
) -> UnavailableError:
    return UnavailableError(
        f"{operation}: {tensor}: expected all {ranks.size} ranks to take part, got on {ranks}: "
        f"{str(error).splitlines()[0]}"
    )


def words_of(tensor: torch.Tensor) -> str:
    """A tensor in messages: "bfloat16 [4, 128]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _require_same(operation: str, ranks: Ranks, said: list[_Said]) -> None:
    expected_operation, expected = said[0]
    for rank, (other, facts) in enumerate(said):
        if other != expected_operation:
            raise InvalidArgumentError(
                f"{operation}: order: expected all ranks in the same call, got "
                f"{expected_operation} on rank 0 and {other} on rank {rank} (this is {ranks})"
            )
        _require_same_facts(operation, ranks, expected, rank, facts)


def _require_same_facts(
    operation: str, ranks: Ranks, expected: Mapping[str, str], rank: int, facts: Mapping[str, str]
) -> None:
    for name in dict.fromkeys((*expected, *facts)):
        if expected.get(name) != facts.get(name):
            raise InvalidArgumentError(
                f"{operation}: argument '{name}': expected the same on all ranks, got "
                f"{expected.get(name)} on rank 0 and {facts.get(name)} on rank {rank} "
                f"(this is {ranks})"
            )
