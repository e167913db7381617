"""What ranks do that are not of one mind."""

import time

import octofold
import pytest
import torch
from octofold._ranks import agreement
from octofold._ranks.agreement import require_agreement
from octofold._ranks.ranks import ranks_of
from octofold.distributed.boundaries import Split
from octofold.nn.recipes import blockwise


def other_shapes(rank):
    ranks = ranks_of("test", "group", None)
    message = (
        r"test: argument 'x': expected the same on all ranks, got \[0\] on rank 0 and \[1\] on "
    )
    with pytest.raises(octofold.InvalidArgumentError, match=message + "rank 1"):
        require_agreement("test", ranks, recipe="blockwise", x=[min(rank, 1)])
    # Who has agreed goes on: what was refused is compared again.
    require_agreement("test", ranks, x=[4])
    with pytest.raises(octofold.InvalidArgumentError, match="argument 'recipe'"):
        require_agreement("test", ranks, recipe="blockwise" if rank == 0 else "rowwise")


def other_order(rank):
    ranks = ranks_of("test", "group", None)
    operation = "first" if rank == 0 else "second"
    with pytest.raises(
        octofold.InvalidArgumentError, match="order: expected all ranks in the same"
    ):
        require_agreement(operation, ranks, x=[4])


def asks_once(rank, monkeypatched=None):
    ranks = ranks_of("test", "group", None)
    asked = []
    gather = torch.distributed.all_gather_object

    def counted(*arguments):
        asked.append(1)
        return gather(*arguments)

    torch.distributed.all_gather_object = counted
    try:
        for _ in range(3):
            require_agreement("asks_once", ranks, x=[4, 5])
        assert len(asked) == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OCTOFOLD_CHECK_RANKS", "1")
            for _ in range(3):
                require_agreement("asks_once", ranks, x=[4, 5])
        assert len(asked) == 4
    finally:
        torch.distributed.all_gather_object = gather


def no_group():
    with pytest.raises(octofold.InvalidArgumentError, match="'group': expected a ProcessGroup"):
        ranks_of("test", "group", 3)


def one_does_not_come(rank, how):
    """An error on the others within the time-out of the group, with the tensor and this rank."""
    if rank == 1:
        time.sleep(0.2)
        if how == "dies":
            raise SystemExit
        time.sleep(4)  # longer than the others wait
        return
    ranks = ranks_of("test", "group", None)
    boundary = Split("octofold.test", ranks)
    started = time.monotonic()
    message = (
        rf"octofold.test: .*: expected all {ranks.size} ranks to take part, got on rank {rank} "
    )
    with pytest.raises(octofold.UnavailableError, match=message):
        boundary.cast(torch.ones(128, 256), blockwise.output.a, None)
    assert time.monotonic() - started < 4
    with pytest.raises(octofold.UnavailableError, match="what ranks are about to do"):
        agreement.require_agreement("test", ranks, x=how)
