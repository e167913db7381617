"""Whether all ranks are about to do the same thing.

A collective that ranks enter with different sizes, or in a different order, hangs or gives numbers
that mean nothing. So whoever calls one first says what it is about to do, and all ranks compare.
That takes the host a round trip, so it is done once for each new thing that is said: layers whose
sizes stay as they are do not pay for it in each step. OCTOFOLD_CHECK_RANKS=1 compares each time.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.distributed import ProcessGroup

from .._core.errors import Error, InvalidArgumentError, UnavailableError
from .ranks import Ranks

_T = TypeVar("_T")
_SWITCH: Final = "OCTOFOLD_CHECK_RANKS"
_AGREED: Final[WeakKeyDictionary[ProcessGroup, set[str]]] = WeakKeyDictionary()

_is_compiling: Final = torch.compiler.is_compiling


def require_agreement(operation: str, ranks: Ranks, **facts: object) -> None:
    """That all ranks of a group call this operation now, with the same facts (shapes, dtypes,
    recipes): each a value whose text says it. Raises InvalidArgumentError on every rank otherwise,
    which names the ranks and the fact, and UnavailableError where a rank does not answer within the
    group's time-out.

    Not checked while torch.compile traces or a CUDA graph is captured: what is captured has run
    before.
    """
    if ranks.size == 1 or _is_compiling() or _is_capturing():
        return
    text = "; ".join((operation, *(f"{name}={value}" for name, value in facts.items())))
    agreed = _AGREED.setdefault(ranks.group, set())
    if text in agreed and os.environ.get(_SWITCH, "0") in ("", "0"):
        return
    require_agreement_now(operation, ranks, **facts)
    agreed.add(text)


def require_agreement_now(operation: str, ranks: Ranks, **facts: object) -> None:
    """The same, also of what was agreed on before: for ranks that all know that it is time to
    compare. Of two that come with different models, one may have come with its own before."""
    said: list[tuple[str, dict[str, str]]] = [("", {})] * ranks.size
    mine = operation, {name: str(value) for name, value in facts.items()}
    answered(
        operation,
        "what ranks are about to do",
        ranks,
        lambda: torch.distributed.all_gather_object(said, mine, ranks.group),
    )
    _require_same(operation, ranks, said)


def answered(operation: str, tensor: str, ranks: Ranks, call: Callable[[], _T]) -> _T:
    """The result of a call that waits for all ranks. Raises UnavailableError, which names this rank
    and the tensor, where torch's call fails: a rank died, or did not come within the time-out."""
    try:
        return call()
    except Error:
        raise
    except RuntimeError as error:
        raise UnavailableError(
            f"{operation}: {tensor}: expected all {ranks.size} ranks to take part, got on {ranks}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def words_of(tensor: torch.Tensor) -> str:
    """A tensor in messages: "bfloat16 [4, 128]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _require_same(operation: str, ranks: Ranks, said: list[tuple[str, dict[str, str]]]) -> None:
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
