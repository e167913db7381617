"""What a layer costs the host, beside torch's own. Prints what it measured (pytest -s); the gates,
45 µs forward and 140 µs forward and backward, are those of a GPU's host (tests/gpu)."""

import statistics
import timeit

import octofold
import pytest
from layer_support import STATELESS

torch = pytest.importorskip("torch")

nn = octofold.nn
CALLS, ROUNDS = 200, 7


def microseconds(calls):
    """Of functions by their names: medians, measured in turns."""
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(timeit.timeit(call, number=CALLS) / CALLS * 1e6)
    return {name: statistics.median(taken) for name, taken in times.items()}


def test_layers():
    """Of no tokens: of a call nothing but its way there."""
    x, dy = torch.randn(0, 128, requires_grad=True), torch.randn(0, 128)
    layers = {"torch": torch.nn.Linear(128, 128)}
    layers |= {recipe: nn.Linear(128, 128, recipe=recipe) for recipe in STATELESS}
    for layer in layers.values():
        layer(x).backward(dy)
    forward = microseconds({name: lambda layer=layer: layer(x) for name, layer in layers.items()})
    both = microseconds(
        {name: lambda layer=layer: layer(x).backward(dy) for name, layer in layers.items()}
    )
    for name in layers:
        print(f"{name}: {forward[name]:.1f} µs forward, {both[name]:.1f} forward and backward")
    # Meant: 9 and 4; six calls of the library are most of it.
    assert forward["blockwise"] < 60 * forward["torch"]
    assert both["blockwise"] < 24 * both["torch"]
