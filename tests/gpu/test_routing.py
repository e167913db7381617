"""Routing on the GPU, against the CPU backend: bit for bit wherever nothing but order and single
operations decides; numbers that are no experts and no rows; graphs whose routing changes."""

from functools import partial

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    ON_GPU,
    Surrounded,
    assert_same_bits,
    needs_gpu,
    normal,
    run_python,
    surrounded_copy,
    torch,
)
from tests.python import routing_reference as reference

SOURCES = ("bfloat16", "float16", "float32")
HOSTILE = (-2, -(2**31), 2**31 - 1)
ROUTERS = {
    "mixtral": {"normalize": True},
    "qwen3": {},
    "sigmoid": {"scoring": "sigmoid", "scaling_factor": 0.5},
    "deepseek": {"scoring": "sigmoid", "normalize": True, "scaling_factor": 2.5},
}
every_router = pytest.mark.parametrize("router", ROUTERS)
every_source = pytest.mark.parametrize("source", SOURCES)


def integers(generator, low, high, *shape):
    return torch.randint(low, high, shape, generator=generator, device=DEVICE, dtype=torch.int32)


def with_hostile(generator, index, beyond):
    """Some entries are nothing that they may be; and what they count as."""
    if not ON_GPU:
        return index, index  # the CPU backend raises
    bad = torch.tensor([*HOSTILE, beyond], device=DEVICE, dtype=torch.int32)
    chosen = bad[integers(generator, 0, len(bad), *index.shape).long()]
    is_bad = integers(generator, 0, 4, *index.shape) == 0
    return torch.where(is_bad, chosen, index), torch.where(is_bad, -1, index)


def on_cpu(call, *tensors, **options):
    """The CPU backend's results, on the device."""
    moved = [t.cpu() if isinstance(t, torch.Tensor) else t for t in tensors]
    options = {n: t.cpu() if isinstance(t, torch.Tensor) else t for n, t in options.items()}
    results = call(*moved, **options)
    if isinstance(results, torch.Tensor):
        return results.to(DEVICE)
    return tuple(result.to(DEVICE) for result in results)


def assert_same(actual, expected):
    for left, right in zip(actual, expected, strict=True):
        assert_same_bits(left, right)


# Experts of each number that lanes hold; one token, and none.
TOP_K = (
    (300, 8, 2),
    (70, 64, 6),
    (1, 128, 8),
    (130, 256, 8),
    (33, 384, 8),
    (5, 1024, 32),
    (0, 8, 2),
)


@every_router
@every_source
def test_top_k_gradient(router, source, generator):
    options = ROUTERS[router]
    for tokens, experts, k in TOP_K:
        logits = (2 * normal(generator, tokens, experts)).to(DTYPES[source])
        gradient = normal(generator, tokens, k)
        ids = octofold.ops.top_k(logits, k, **options).ids
        ids, plain = with_hostile(generator, ids, experts)
        actual = octofold.ops.top_k_gradient(gradient, logits, ids, **options)
        expected = on_cpu(octofold.ops.top_k_gradient, gradient, logits, plain, **options)
        assert actual.dtype is logits.dtype
        step = torch.finfo(logits.dtype).eps
        torch.testing.assert_close(actual, expected, rtol=max(step, 1e-4), atol=1e-5)


def slots(generator, tokens, k, experts):
    """Most go to few experts."""
    few = integers(generator, -1, min(experts, 3), tokens, k)
    return torch.where(
        integers(generator, 0, 2, tokens, k) == 0,
        few,
        integers(generator, -1, experts, tokens, k),
    )


# One span and several; every number of counters; spans longer than the shortest.
SORTS = (
    (0, 4, 8), (1, 1, 1), (64, 6, 64), (2048, 1, 8), (2049, 1, 256), (4096, 8, 128),
    (3001, 7, 384), (16384, 8, 256), (20_000, 2, 1024), (9999, 5, 2048), (70_000, 8, 160),
)  # fmt: skip


@pytest.mark.parametrize(("tokens", "k", "experts"), SORTS)
def test_sort_by_expert(tokens, k, experts, generator):
    ids, plain = with_hostile(generator, slots(generator, tokens, k, experts), experts)
    routing = octofold.ops.sort_by_expert(ids, experts)
    assert_same(routing, on_cpu(octofold.ops.sort_by_expert, plain, experts))
    assert_same(routing, reference.sort_by_expert(plain, experts))
    wide = torch.cat([ids, ids], 1)[:, k:]
    assert_same(octofold.ops.sort_by_expert(wide, experts), routing)


def test_sort_of_one_expert_and_of_none():
    for fill in (-1, 0, 7):
        ids = torch.full((5000, 4), fill, device=DEVICE, dtype=torch.int32)
        assert_same(
            octofold.ops.sort_by_expert(ids, 8), on_cpu(octofold.ops.sort_by_expert, ids, 8)
        )


def test_limits_are_named():
    if not ON_GPU:
        pytest.skip("the CPU backend has none")
    logits = torch.zeros(2, 1025, device=DEVICE)
    ids = torch.zeros(2, 4, device=DEVICE, dtype=torch.int32)
    for call, message in (
        (lambda: octofold.ops.top_k(logits, 2), "at most 1024 experts on a GPU, got 1025"),
        (lambda: octofold.ops.top_k(logits[:, :64], 33), "at most 32 slots of a token on a GPU"),
        (lambda: octofold.ops.sort_by_expert(ids, 2049), "at most 2048 experts on a GPU"),
    ):
        with pytest.raises(octofold.UnsupportedError, match=message):
            call()


def positions(generator, tokens, k, rows):
    return with_hostile(generator, integers(generator, -1, rows, tokens, k), rows)


# Rows that threads hold, and that none do; in vectors, and element by element.
COMBINES = (
    (300, 8, 500, 2048),
    (40, 1, 60, 7168),
    (9, 6, 30, 77),
    (5, 3, 7, 40_000),
    (3, 2, 0, 64),
)


@every_source
@pytest.mark.parametrize("out_dtype", SOURCES)
def test_combine(source, out_dtype, generator):
    for tokens, k, rows, cols in COMBINES:
        y = normal(generator, rows, cols, dtype=source)
        given, plain = positions(generator, tokens, k, rows)
        weights = normal(generator, tokens, k)
        c = normal(generator, tokens, cols, dtype=out_dtype)
        for options in ({}, {"weights": weights}, {"weights": weights, "c": c}):
            options = {**options, "out_dtype": out_dtype}
            actual = octofold.ops.combine(y, given, **options)
            assert_same_bits(actual, on_cpu(octofold.ops.combine, y, plain, **options))
        expected = octofold.ops.combine(y, given, weights, c=c, out_dtype=out_dtype)
        assert_same_bits(octofold.ops.combine(y, given, weights, c=c, out=c), expected)


@every_source
def test_combine_of_unaligned_rows(source, generator):
    y, c = (normal(generator, rows, 272, dtype=source) for rows in (50, 20))
    given, _ = positions(generator, 20, 4, 50)
    weights = normal(generator, 20, 4)
    expected = octofold.ops.combine(y, given, weights, c=c)
    for padding, offset in ((0, 0), (8, 0), (1, 0), (0, 1), (5, 3)):
        out = Surrounded(20, 272, y.dtype, padding, offset)
        places = (surrounded_copy(matrix, padding, offset) for matrix in (y, c))
        rows, addend = places
        octofold.ops.combine(rows, given, weights, c=addend, out=out.view)
        assert_same_bits(out.view, expected)
        out.assert_only_view_written()


@every_source
@pytest.mark.parametrize("gradient_dtype", SOURCES)
def test_combine_gradient(gradient_dtype, source, generator):
    for tokens, k, rows, cols in COMBINES:
        y = normal(generator, rows, cols, dtype=source)
        gradient = normal(generator, tokens, cols, dtype=gradient_dtype)
        given, plain = positions(generator, tokens, k, rows)
        actual = octofold.ops.combine_gradient(gradient, y, given)
        expected = on_cpu(octofold.ops.combine_gradient, gradient, y, plain)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6 * cols)
        assert bool((actual[plain < 0] == 0).all())


@every_source
@pytest.mark.parametrize("activation", ["swiglu", "swiglu-oss", "geglu", "gelu-tanh"])
def test_activation_dots(activation, source, generator):
    for tokens, k, rows, cols in COMBINES:
        x = normal(generator, rows, cols * (1 if activation == "gelu-tanh" else 2), dtype=source)
        gradient = normal(generator, rows, cols, dtype=source)
        given, plain = positions(generator, tokens, k, rows)
        dots = partial(octofold.ops.activation_dots, activation=activation)
        actual, expected = dots(gradient, x, given), on_cpu(dots, gradient, x, plain)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * cols**0.5)
        assert bool((actual[plain < 0] == 0).all())


def route(logits, y, gradient):
    ids, weights = octofold.ops.top_k(logits, 8, normalize=True)
    routing = octofold.ops.sort_by_expert(ids, logits.shape[1])
    out = octofold.ops.combine(y, routing.positions, weights)
    by_weights = octofold.ops.combine_gradient(gradient, y, routing.positions)
    by_weights = by_weights + octofold.ops.activation_dots(y[:, :512], y, routing.positions)
    by_logits = octofold.ops.top_k_gradient(by_weights, logits, ids, normalize=True)
    return ids, weights, *routing, out, by_weights, by_logits


def problem(generator, tokens=1500, experts=128, cols=1024):
    y = normal(generator, 8 * tokens, cols, dtype="bfloat16")
    gradient = normal(generator, tokens, cols, dtype="bfloat16")
    return normal(generator, tokens, experts), y, gradient


@needs_gpu
def test_in_a_graph_whose_routing_changes(generator):
    logits, y, gradient = problem(generator)
    route(logits, y, gradient)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = route(logits, y, gradient)
    for _ in range(100):
        logits.copy_(normal(generator, *logits.shape))
        graph.replay()
        torch.cuda.synchronize()
        assert_same(results, route(logits, y, gradient))


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
