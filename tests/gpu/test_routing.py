"""Routing on the GPU: numbers that are no experts and no rows, memory anywhere, and checks that
say what was wrong."""

from functools import partial

import pytest
from octofold.ops import (
    activation_dots,
    combine,
    combine_gradient,
    sort_by_expert,
    top_k,
    top_k_gradient,
)

from tests.cases.shapes import COMBINES, SORTS, TOP_K
from tests.gpu.gpu_support import (
    DEVICE,
    Surrounded,
    assert_same_bits,
    needs_gpu,
    normal,
    run_python,
    surrounded_copy,
    torch,
)
from tests.python.judge import assert_same

every_source = pytest.mark.parametrize("source", ["bfloat16", "float16", "float32"])


def integers(generator, low, high, *shape):
    return torch.randint(low, high, shape, generator=generator, device=DEVICE, dtype=torch.int32)


def assert_hostile_are_none(call, index, beyond, generator):
    """Some entries are nothing that they may be: they count as -1."""
    bad = torch.tensor([-2, -(2**31), 2**31 - 1, beyond], device=DEVICE, dtype=torch.int32)
    chosen = bad[integers(generator, 0, len(bad), *index.shape).long()]
    is_bad = integers(generator, 0, 4, *index.shape) == 0
    actual, expected = (call(torch.where(is_bad, other, index)) for other in (chosen, -1))
    assert_same(actual, expected)


@needs_gpu
def test_numbers_that_are_no_experts(generator):
    for tokens, k, experts in SORTS:
        ids = integers(generator, -1, experts, tokens, k)
        assert_hostile_are_none(partial(sort_by_expert, experts=experts), ids, experts, generator)
    for shape, k in TOP_K:
        logits, gradient = normal(generator, *shape), normal(generator, *shape[:-1], k)
        ids = top_k(logits, k).ids
        for scoring in ("softmax", "sigmoid"):
            call = partial(top_k_gradient, gradient, logits, scoring=scoring, normalize=True)
            assert_hostile_are_none(call, ids, shape[-1], generator)


@needs_gpu
@every_source
def test_numbers_that_are_no_rows(source, generator):
    for tokens, k, rows, cols in COMBINES:
        y, x, dh = (normal(generator, rows, n, dtype=source) for n in (cols, 2 * cols, cols))
        dy = normal(generator, tokens, cols, dtype=source)
        positions, weights = integers(generator, -1, rows, tokens, k), normal(generator, tokens, k)
        for call in (
            lambda index, y=y, weights=weights, c=dy: combine(y, index, weights, c=c),
            lambda index, y=y: combine(y, index, out_dtype="float32"),
            partial(combine_gradient, dy, y),
            partial(activation_dots, dh, x),
        ):
            assert_hostile_are_none(call, positions, rows, generator)


@every_source
def test_combine_of_unaligned_rows(source, generator):
    y, c = (normal(generator, rows, 272, dtype=source) for rows in (50, 20))
    positions, weights = integers(generator, -1, 50, 20, 4), normal(generator, 20, 4)
    expected = combine(y, positions, weights, c=c)
    for padding, offset in ((0, 0), (8, 0), (1, 0), (0, 1), (5, 3)):
        out = Surrounded(20, 272, y.dtype, padding, offset)
        rows, addend = (surrounded_copy(matrix, padding, offset) for matrix in (y, c))
        combine(rows, positions, weights, c=addend, out=out.view)
        assert_same_bits(out.view, expected)
        out.assert_only_view_written()


CHECKED = """
import octofold
import torch

ids = torch.zeros(3000, 4, device="cuda", dtype=torch.int32)
ids[1000, 2], ids[2000, 1] = 8, -5
octofold.ops.sort_by_expert(ids, 8)
torch.cuda.synchronize()
y, positions = torch.zeros(10, 64, device="cuda"), ids[:7].clamp(max=9)
try:
    octofold.ops.combine(y, positions)
except octofold.InvalidArgumentError as error:
    print(error)
    expected = "sort_by_expert: argument 'ids': expected numbers from -1 to 7, got 8"
    assert f"{expected} at flat index 4002" in str(error)
else:
    raise AssertionError("nothing was said")
octofold.ops.combine(y, positions)  # said once
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    octofold.ops.combine(y, positions)
positions[3, 3] = 10
graph.replay()
torch.cuda.synchronize()
try:
    octofold.ops.sort_by_expert(ids.clamp(0, 7), 8)
except octofold.InvalidArgumentError as error:
    assert "combine: argument 'positions': expected numbers from -1 to 9, got 10" in str(error)
else:
    raise AssertionError("nothing was said of the graph")
octofold.ops.sort_by_expert(ids.clamp(0, 7), 8)
torch.cuda.synchronize()
octofold.ops.sort_by_expert(ids.clamp(0, 7), 8)
"""


@needs_gpu
def test_checks_say_what_was_wrong(monkeypatch):
    monkeypatch.setenv("OCTOFOLD_CHECK_GROUPS", "1")
    run_python(CHECKED)
