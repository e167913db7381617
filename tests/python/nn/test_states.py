"""Recipes that keep something of the steps before: histories of delayed scaling, and factors of
two-level scales in the weight gradient."""

import dataclasses

import octofold
import pytest
from octofold import gemm, quantize

from tests.python.casting import cast_side
from tests.python.nn.layer_support import exact, random, relative_error, step

torch = pytest.importorskip("torch")

from octofold.nn.casting.casts import GRADIENT, INPUT, WEIGHT, delayed_scale, new_history  # noqa: E402

nn = octofold.nn
TWO_LEVEL = "blockwise_two_level"


def layer_of(recipe=TWO_LEVEL, in_features=300, out_features=200, **options):
    if recipe == "delayed":
        recipe = dataclasses.replace(nn.recipes.delayed, delayed=nn.Delayed(history=3))
    return nn.Linear(in_features, out_features, recipe=recipe, **options)


def operands():
    return random(65, 300), random(65, 200)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("recipe", ["delayed", TWO_LEVEL])
def test_what_is_not_finite_propagates_and_is_forgotten(recipe, value):
    layer, (x, dy) = layer_of(recipe, bias=False), operands()
    step(layer, x, dy=dy)
    bad, bad_dy = x.clone(), dy.clone()
    bad[3, 7] = bad_dy[3, 7] = value
    y, _, of_bad = step(layer, bad, dy=dy)
    _, dx, dw = step(layer, x, dy=bad_dy)
    assert not of_bad.isfinite().all()
    for result in (y, dx, dw):
        assert not result.isfinite().all()
        assert recipe != "delayed" or result.isnan().all()
    assert all(buffer.isfinite().all() for buffer in layer.buffers())
    expected = exact(x, layer.weight.detach(), None, dy)[2]
    for _ in range(2):  # with factor 1 for that feature, then with its own
        assert relative_error(step(layer, x, dy=dy)[2], expected) < 0.065


@pytest.mark.parametrize(
    ("recipe", "name"), [("delayed", "amax_history"), (TWO_LEVEL, "channel_amax")]
)
def test_a_state_is_no_part_of_files(recipe, name):
    layer = layer_of(recipe)
    step(layer, random(65, 300))
    before = getattr(layer, name).clone()
    assert before.any()
    assert list(layer.state_dict()) == ["weight", "bias"]
    layer.half()
    assert torch.equal(getattr(layer, name), before)
    assert not list(layer.to_linear().buffers())
    assert getattr(nn.Linear(3, 5), name) is None
    layer.reset_parameters()
    assert not getattr(layer, name).any()


@pytest.mark.parametrize("margin", [0, 2])
def test_a_delayed_scale_is_that_of_the_steps_before(margin):
    delayed = nn.Delayed(history=3, margin=margin)
    history = new_history(delayed)[0]
    for nothing in (torch.zeros(3, 300), torch.zeros(0, 300)):
        assert float(delayed_scale(nothing, history, "e5m2", delayed)) == 2**margin
    assert not history.any()
    largest = [5.0, 2.0, 3.0, 1.0, 4.0, 4.0]
    before = [5.0, 5.0, 5.0, 5.0, 3.0, 4.0]  # the first has none: its own
    for amax, expected in zip(largest, before, strict=True):
        x = random(7, 300)
        x *= -amax / x.abs().max()
        scale = delayed_scale(x, history, "e4m3", delayed)
        assert scale.shape == (1,)
        assert float(scale) == pytest.approx(expected * 2**margin / 448, rel=1e-6)
    assert history.tolist() == pytest.approx([4.0, 4.0, 1.0])


def test_history_of_a_layer():
    """One entry a step of x, of the weight and of the gradient; in training alone."""
    assert nn.Linear(300, 200, recipe="delayed").amax_history.shape == (3, 1024)
    layer = layer_of("delayed")
    seen = {INPUT: [], WEIGHT: [], GRADIENT: []}
    for _ in range(2):
        x, dy = operands()
        step(layer, x, dy=dy)
        for row, tensor in ((INPUT, x), (WEIGHT, layer.weight.detach()), (GRADIENT, dy)):
            seen[row].insert(0, float(tensor.abs().max()))
    for row, amaxes in seen.items():
        assert layer.amax_history[row].tolist() == pytest.approx([*amaxes, 0.0])
    with torch.no_grad():
        layer.weight.mul_(2)
    before = layer.amax_history.clone()
    layer.eval()
    layer(random(65, 300))
    assert torch.equal(layer.amax_history, before)


def test_delayed_scales_are_used():
    layer = layer_of("delayed", bias=False)
    layer(random(65, 300))
    x = random(65, 300) * 100  # beyond the scale of the step before: saturates
    of_x, of_weight = (layer.amax_history[row].max().view(1) / 448 for row in (INPUT, WEIGHT))
    weight = quantize(layer.weight.detach(), "tensor te", scale=of_weight)
    expected = gemm(quantize(x, "tensor te", scale=of_x), weight, out_dtype="float32")
    assert torch.equal(layer(x), expected)


def test_two_level_is_what_its_recipe_says():
    """Bit by bit: plain 128x128 scales in the first step, the step's before factors later; all but
    the weight gradient is blockwise's."""
    layer, twin = layer_of(), layer_of("blockwise")
    twin.load_state_dict(layer.state_dict())
    factors = torch.ones(300)
    for _ in range(3):
        x, dy = random(2, 65, 300), random(2, 65, 200)
        y, dx, dw, db = step(layer, x, dy=dy)
        expected = step(twin, x, dy=dy)
        assert torch.equal(y, expected[0])
        assert torch.equal(dx, expected[1])
        assert torch.equal(db, expected[3])
        columns = cast_side(x, "128x128 torchao", True, channel_scale=factors)
        gradient = cast_side(dy, "torchao", True)
        assert torch.equal(dw, gemm(gradient, columns, out_dtype="float32"))
        factors = x.flatten(0, 1).abs().amax(0)
        assert torch.equal(layer.channel_amax, factors)


def test_outlier_channels():
    """Features of x with magnitudes e^N(0, 2), Student's t with 4 degrees of freedom: from the
    second step on as good as blockwise, the worst feature too."""
    of_x = torch.exp(2 * torch.randn(256))
    student = torch.distributions.StudentT(torch.tensor(4.0))

    def errors(recipe):
        torch.manual_seed(1)
        layer = layer_of(recipe, 256, 256, bias=False)
        for _ in range(2):
            x, dy = student.sample((512, 256)) * of_x, random(512, 256)
            dw = step(layer, x, dy=dy)[2]
        expected = exact(x, layer.weight.detach(), None, dy)[2] / of_x
        error = dw / of_x - expected
        worst = (error.norm(dim=0) / expected.norm(dim=0)).max()
        return relative_error(dw / of_x, expected), float(worst)

    squares = nn.Product("torchao", "128x128 torchao")
    squares = nn.Recipe(output=squares, grad_input=squares, grad_weight=squares)
    ours, channel, plain = errors(TWO_LEVEL), errors("blockwise"), errors(squares)
    assert ours[0] < 1.1 * channel[0]
    assert ours[1] < 1.2 * channel[1]
    assert ours[1] < 0.06
    assert plain[1] > 3 * ours[1]


def test_backwards_in_any_order():
    """Each has the factors of its own forward; the last one leaves those of the next step."""
    layer = layer_of(bias=False)
    step_of = [(random(65, 300) * 10**i, random(65, 200)) for i in range(3)]
    x, dy = step_of[0]
    layer(x).backward(dy)
    factors = layer.channel_amax.clone()
    ys = [layer(x) for x, _ in step_of]
    for y, (x, dy) in reversed(list(zip(ys, step_of, strict=True))):
        layer.zero_grad()
        y.backward(dy)
        expected = exact(x, layer.weight.detach(), None, dy)[2]
        assert relative_error(layer.weight.grad, expected) < 0.042
        assert torch.equal(layer.channel_amax, x.abs().amax(0))
    assert torch.equal(layer.channel_amax, factors)


def test_only_a_weight_gradient_looks_at_factors(casts):
    layer, (x, dy) = layer_of(), operands()
    layer.requires_grad_(False)
    layer(x.clone().requires_grad_()).backward(dy)
    with torch.no_grad():
        layer(x)
    assert not layer.channel_amax.any()
    layer.requires_grad_(True)
    casts.clear()
    step(layer, x, dy=dy)
    assert casts.count((65, 300)) == 1
    before = layer.channel_amax.clone()
    step(layer, x[:0], dy=dy[:0])
    assert torch.equal(layer.channel_amax, before)


def test_two_levels_are_for_x_in_the_weight_gradient_alone():
    product = nn.Product("1x128", "128x128", two_level=True)
    none = dict.fromkeys(("output", "grad_input", "grad_weight"))
    assert nn.Recipe(**none | {"grad_weight": product}).two_level
    for field in ("output", "grad_input"):
        with pytest.raises(
            octofold.InvalidArgumentError, match=f"'{field}.two_level': .* got True"
        ):
            nn.Recipe(**none | {field: product})
