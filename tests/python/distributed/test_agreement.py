"""Ranks that are not of one mind, and ranks that do not answer."""

import time

import octofold
import octofold._ranks as agreement
import pytest
import torch
from octofold._ranks import ranks_of, require_agreement
from octofold._ranks.wire import gathered
from octofold.distributed import experts
from octofold.distributed.tensor_parallel.boundary import Split
from octofold.nn.recipes import blockwise

from tests.python.distributed.expert_problems import problem
from tests.python.distributed.rank_processes import Processes, on_ranks


@on_ranks
def test_other_shapes(rank):
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


@on_ranks
def test_other_order(rank):
    ranks = ranks_of("test", "group", None)
    operation = "first" if rank == 0 else "second"
    with pytest.raises(
        octofold.InvalidArgumentError, match="order: expected all ranks in the same"
    ):
        require_agreement(operation, ranks, x=[4])


@on_ranks
def test_both_known(rank):
    """Each rank's x was agreed on before, but now they differ: an error comes before anything of
    the host travels, and in the next look where nobody waits. Then they go on."""
    ranks, known = ranks_of("test", "group", None), ([2, 8], [4, 4])
    for x in known:
        require_agreement("lengths", ranks, x=x)
    refused = pytest.raises(
        octofold.InvalidArgumentError,
        match=r"lengths: argument 'x': .* got \[2, 8\] on rank 0 and \[4, 4\] on rank 1",
    )
    with refused:
        require_agreement("lengths", ranks, x=known[min(rank, 1)])
        gathered("lengths", torch.ones(16), ranks)
    with refused:
        require_agreement("lengths", ranks, x=known[min(rank, 1)])
        for _ in range(2000):
            agreement.require_agreed(ranks, wait=False)
            time.sleep(0.01)
    with pytest.MonkeyPatch.context() as patch, refused:
        patch.setenv("OCTOFOLD_CHECK_RANKS", "1")
        require_agreement("lengths", ranks, x=known[min(rank, 1)])
    assert gathered("lengths", torch.ones(16), ranks).shape == (16 * ranks.size,)


@on_ranks
def test_one_is_new(rank):
    """The value of rank 1 is new; the others have heard theirs before."""
    ranks = ranks_of("test", "group", None)
    require_agreement("news", ranks, x="old")
    refused = pytest.raises(octofold.InvalidArgumentError, match="old on rank 0 and new on rank 1")
    with refused:
        require_agreement("news", ranks, x="new" if rank == 1 else "old")
        gathered("news", torch.ones(16), ranks)


@on_ranks
def test_nobody_waits(rank):
    """For the comparison of what was said before: the others begin when rank 0 is through."""
    ranks = ranks_of("test", "group", None)
    require_agreement("waits", ranks, x=[4, 5])
    if rank == 0:
        require_agreement("waits", ranks, x=[4, 5])
    torch.distributed.barrier()
    if rank != 0:
        require_agreement("waits", ranks, x=[4, 5])
    agreement.require_agreed(ranks, wait=True)


@on_ranks
def test_what_is_no_group(rank):
    with pytest.raises(octofold.InvalidArgumentError, match="'group': expected a ProcessGroup"):
        ranks_of("test", "group", 3)


def one_does_not_come(rank, what, how):
    """An error on the other within the time-out of the group, with the operation and its rank."""
    ranks = ranks_of("test", "group", None)
    if what == "boundary":
        operation = Split("octofold.test", ranks).cast
        operands = torch.ones(128, 256), blockwise.output.a, None
    else:
        p, *_ = problem([4, 4]).part(rank)
        operation, operands = experts, (p.x, p.ids, p.weights, p.w13, p.w2)
        experts(*operands)
    if rank == 1:
        time.sleep(0.2)
        if how == "dies":
            raise SystemExit
        time.sleep(4)  # longer than the other waits
        return
    started = time.monotonic()
    message = r"octofold\..*: expected all 2 ranks to take part, got on rank 0 "
    with pytest.raises(octofold.UnavailableError, match=message):
        operation(*operands)
    assert time.monotonic() - started < 4
    with pytest.raises(octofold.UnavailableError, match="what ranks are about to do"):
        require_agreement("test", ranks, x=how)


@pytest.mark.parametrize("how", ["dies", "is late"])
@pytest.mark.parametrize("what", ["boundary", "experts"])
def test_a_rank_that_does_not_come(what, how):
    lonely = Processes(2, collective_timeout=2)
    try:
        answers = lonely.run(one_does_not_come, what, how, may_die=1)
    finally:
        lonely.stop()
    assert answers[0] is None
