"""Ranks that are not of one mind, and ranks that do not answer."""

import pytest

from tests.python.distributed import agreement_checks
from tests.python.distributed.rank_processes import Processes


@pytest.mark.parametrize(
    "check",
    [
        agreement_checks.other_shapes,
        agreement_checks.other_order,
        agreement_checks.both_known,
        agreement_checks.one_is_new,
        agreement_checks.nobody_waits,
    ],
    ids=lambda check: check.__name__,
)
def test_all_ranks_say_so(processes, check):
    processes.run(check)


@pytest.mark.parametrize("how", ["dies", "is late"])
def test_a_rank_that_does_not_come(how):
    lonely = Processes(2, collective_timeout=2)
    try:
        answers = lonely.run(agreement_checks.one_does_not_come, how, may_die=1)
    finally:
        lonely.stop()
    assert answers[0] is None
