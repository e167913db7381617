import expert_parallel_checks as checks
import pytest


def tokens_of(processes, ragged=True):
    return [37, 5, 0, 64][: processes.size] if ragged else [24] * processes.size


@pytest.mark.parametrize("wire", ["fp8", "input"])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
def test_forward_and_backward(processes, recipe, wire):
    tokens = tokens_of(processes)
    processes.run(checks.forward_and_backward, tokens, recipe, wire, {}, recipe == "blockwise")
