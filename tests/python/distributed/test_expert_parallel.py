"""Experts that are spread over ranks, on gloo."""

import pytest

from tests.python.distributed import expert_module_checks as modules
from tests.python.distributed import expert_parallel_checks as checks
from tests.python.distributed.rank_processes import DEVICE, Processes

torch = checks.torch


def ragged(processes):
    """Tokens of each rank: few, none, many."""
    return [37, 0, 5, 64][: processes.size]


def alike(processes, tokens=24):
    return [tokens] * processes.size


FIXED = {"capacity": 64}


@pytest.mark.parametrize("options", [{}, FIXED], ids=["exact", "capacity"])
@pytest.mark.parametrize("wire", ["fp8", "input"])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
def test_forward_and_backward(processes, recipe, wire, options):
    processes.run(checks.forward_and_backward, ragged(processes), recipe, wire, options)


@pytest.mark.parametrize("wire", ["fp8", "input"])
@pytest.mark.parametrize("options", [{}, FIXED, {"halves": 2}], ids=["exact", "capacity", "halves"])
@pytest.mark.parametrize(("recipe", "slots"), [("blocks", 1), ("blocks", 2), ("rowwise", 1)])
def test_bits_of_one_process(processes, recipe, slots, wire, options):
    tokens = ragged(processes)
    processes.run(checks.bits_of_one_process, tokens, recipe, slots, wire, options)


def test_sums_over_ranks_in_float32(processes):
    options = {"combine_dtype": torch.float32}
    processes.run(checks.forward_and_backward, alike(processes), "blockwise", "input", options)


def test_error_by_codes(processes):
    processes.run(checks.error_by_codes, [300, 200, 260, 240][: processes.size])


@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("wire", ["fp8", "input"])
def test_two_halves_are_one_batch(processes, wire, capacity):
    processes.run(checks.equal_halves, ragged(processes)[::-1], wire, capacity)


@pytest.mark.skipif(DEVICE == "cpu", reason="graphs need GPUs")
@pytest.mark.parametrize("halves", [1, 2])
def test_graphs(processes, halves):
    processes.run(checks.graphs, alike(processes, 128), halves)


def test_single_gradients(processes):
    processes.run(checks.one_way, ragged(processes))


def test_fp8_weights(processes):
    processes.run(checks.fp8_weights, alike(processes))


@pytest.mark.parametrize("tokens", [0, 1])
def test_nobody_has_tokens(processes, tokens):
    processes.run(checks.forward_and_backward, alike(processes, tokens), "blockwise", "fp8", {})


KINDS = ["recipe", "k", "dtype", "experts", "shape", "wire", "capacity", "splits", "gradient"]
KINDS += ["order"]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_disagree(processes, kind):
    kinds = processes.run(checks.disagreement, alike(processes), kind)
    assert set(kinds) == {"InvalidArgumentError"}


@pytest.mark.parametrize("capacity", [None, 64])
def test_bad_ids(processes, capacity):
    kinds = processes.run(checks.bad_ids, alike(processes), capacity)
    assert set(kinds) == {"InvalidArgumentError"}


def test_too_little_room_raises(processes):
    processes.run(checks.overflow, alike(processes))


@pytest.mark.parametrize(("capacity", "local_rows"), [(7, None), (64, 5)])
def test_too_little_room_is_counted(processes, capacity, local_rows):
    processes.run(checks.dropped_rows, alike(processes), capacity, local_rows)


@pytest.mark.parametrize("how", ["dies", pytest.param("is late", marks=pytest.mark.slow)])
def test_a_rank_that_does_not_come(how):
    seconds = 2
    ranks = Processes(2, collective_timeout=seconds)
    try:
        if how == "dies":
            with pytest.raises(AssertionError, match="rank 1: the process died") as caught:
                ranks.run(checks.dead_rank, how, seconds)
            assert "rank 0:" not in str(caught.value)  # which raised what it should
        else:
            assert ranks.run(checks.dead_rank, how, seconds)[0] == "UnavailableError"
    finally:
        ranks.stop()


@pytest.mark.parametrize(
    ("group", "style", "options"),
    [
        ("mesh", False, {}),
        ("mesh", True, {"capacity": 64}),
        ("processes", False, {"wire": "input", "halves": 2}),
    ],
)
def test_mixture_of_experts(processes, group, style, options):
    processes.run(modules.mixture, group, style, options)


def test_fp8_module(processes):
    processes.run(modules.fp8_module)


def test_under_fsdp(processes):
    processes.run(modules.fully_sharded)


def test_what_cannot_be_spread(processes):
    processes.run(modules.refusals)


@pytest.mark.parametrize("fp8", [False, True])
def test_checkpoints_of_two_ranks(tmp_path_factory, processes, fp8):
    """Saved by two, loaded by two, four or one each."""
    folder = tmp_path_factory.getbasetemp() / f"experts-{fp8}"
    if processes.size == 2:
        processes.run(modules.save, str(folder), fp8)
    if folder.exists():  # where only tests of four processes run there is none
        processes.run(modules.load, str(folder), fp8, False)
        processes.run(modules.load, str(folder), fp8, True)


@pytest.mark.slow
def test_compiles_with_a_capacity(two_processes):
    two_processes.run(modules.compiled, alike(two_processes))
