"""How many functions of the package a call passes: the host's time without a clock, which other
programs would disturb. `octofold bench host` has the microseconds."""

import sys
from pathlib import Path

import octofold
import pytest

torch = pytest.importorskip("torch")

PACKAGE = str(Path(octofold.__file__).parent)


def functions_of(call):
    """Names, in their order. The call is warm."""
    call()
    names = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            names.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def operations():
    a, b = octofold.quantize(torch.randn(4, 128)), octofold.quantize(torch.randn(16, 128))
    x, out = torch.randn(4, 128), torch.empty(4, 16)
    return {
        "gemm with out": (lambda: octofold.gemm(a, b, out=out), 11),
        "gemm": (lambda: octofold.gemm(a, b), 14),
        "quantize": (lambda: octofold.quantize(x), 19),
    }


@pytest.mark.parametrize("name", ["gemm with out", "gemm", "quantize"])
def test_operations(name):
    call, most = operations()[name]
    names = functions_of(call)
    assert 0 < len(names) <= most, names


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise", "rowwise"])
def test_linear_layers(recipe):
    layer = octofold.nn.Linear(128, 128, recipe=recipe)
    x, dy = torch.randn(4, 128, requires_grad=True), torch.randn(4, 128)
    forward, both = functions_of(lambda: layer(x)), functions_of(lambda: layer(x).backward(dy))
    assert 0 < len(forward) <= 29, forward
    assert 0 < len(both) - len(forward) <= 11, both[len(forward) :]
