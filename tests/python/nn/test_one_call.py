"""Linear layers in one call of the library each way: when, and the bits of operations apart."""

import itertools

import octofold
import pytest

from tests.python.nn.layer_support import NAMES, random

torch = pytest.importorskip("torch")

from octofold._core.torch import LIBRARY_TAKES_TENSORS  # noqa: E402
from octofold.nn.autograd import one_call  # noqa: E402

if not LIBRARY_TAKES_TENSORS:
    pytest.skip("this torch exports its tensors one by one", allow_module_level=True)

nn = octofold.nn
IN_ONE_CALL = ("blockwise", "rowwise", "tensorwise")


@pytest.fixture
def calls(monkeypatch):
    """The calls of layers that were one of the library."""
    seen = []
    forward = one_call._Call.forward

    def record(self, *arguments):
        seen.append(self)
        return forward(self, *arguments)

    monkeypatch.setattr(one_call._Call, "forward", record)
    return seen


def results(leaves, dy, recipe):
    for leaf in leaves.values():
        leaf.grad = None
    y = octofold.linear(**leaves, recipe=recipe)
    if y.requires_grad:
        y.backward(dy)
    return [y.detach(), *(leaf.grad for leaf in leaves.values())]


@pytest.mark.parametrize("recipe", IN_ONE_CALL)
@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3)))
def test_has_the_bits_of_operations_apart(needs, recipe, calls, monkeypatch):
    leaves = {
        "x": random(2, 65, 300, dtype=torch.bfloat16),
        "weight": random(200, 300),
        "bias": random(200, dtype=torch.bfloat16),
    }
    for leaf, needed in zip(leaves.values(), needs, strict=True):
        leaf.requires_grad_(needed)
    dy = random(2, 65, 200, dtype=torch.bfloat16)
    at_once = results(leaves, dy, recipe)
    # A bias alone has no cast of dY that would sum it.
    assert len(calls) == (needs != (False, False, True))
    monkeypatch.setattr(one_call, "torch_is_watching", lambda: True)
    for one, expected in zip(at_once, results(leaves, dy, recipe), strict=True):
        assert (one is None) == (expected is None)
        assert one is None or torch.equal(one, expected)
    assert len(calls) < 2


@pytest.mark.parametrize("recipe", NAMES)
def test_is_for_recipes_without_a_state(recipe, calls):
    layer = nn.Linear(300, 200, recipe=recipe)
    layer(random(5, 300).requires_grad_())
    assert len(calls) == (recipe in IN_ONE_CALL)
    with torch.no_grad():
        layer(random(5, 300))
    assert len(calls) == (recipe in IN_ONE_CALL) + (recipe != "delayed")


def test_not_where_torch_has_to_see_it(calls):
    layer, x = nn.Linear(300, 200), random(5, 300)
    expected = layer(x)
    assert len(calls) == 1
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert torch.equal(layer(x), expected)
    assert len(calls) == 1


def test_what_does_not_fit_is_said_in_the_layers_words():
    layer = nn.Linear(300, 200)
    with pytest.raises(octofold.InvalidArgumentError, match=r"nn\.Linear: argument 'x': .* weight"):
        layer(random(5, 299))
    held = nn.keep_casts(layer)
    with held, pytest.raises(octofold.InvalidArgumentError, match=r"nn\.Linear: argument 'x'"):
        layer(random(5, 299))
    with pytest.raises(octofold.InvalidArgumentError, match=r"nn\.Linear: argument 'x'"):
        layer(random(5, 300).double())
    with pytest.raises(octofold.InvalidArgumentError, match=r"nn\.Linear: argument 'bias'"):
        torch.func.functional_call(layer, {"bias": random(199)}, random(5, 300))


def test_layers_of_other_sizes_are_not_mixed_up(monkeypatch):
    """Also when there is no room for more of them."""
    from octofold._ops import linear_passes

    monkeypatch.setattr(linear_passes, "_MOST", 2)
    for tokens, out in ((1, 7), (2, 7), (1, 8), (2, 8), (1, 7)):
        x, weight = random(tokens, 300), random(out, 300)
        y = octofold.linear(x, weight)
        assert y.shape == (tokens, out)
        assert len(linear_passes._FOUND) <= 2
        assert (y - x @ weight.T).norm() < 0.06 * y.norm()
