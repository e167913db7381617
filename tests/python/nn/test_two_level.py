"""The weight gradient of two-level scales: factors of the step before, and what a layer keeps."""

import copy

import octofold
import pytest

from tests.python.casting import cast_side
from tests.python.nn.layer_support import exact, random, relative_error, step

torch = pytest.importorskip("torch")

nn = octofold.nn
RECIPE = "blockwise_two_level"


def layer_of(in_features=300, out_features=200, recipe=RECIPE, **options):
    return nn.Linear(in_features, out_features, recipe=recipe, **options)


def test_is_what_its_recipe_says():
    """Bit by bit: plain 128x128 scales in the first step, the step's before factors later; all but
    the weight gradient is blockwise's."""
    layer = layer_of()
    twin = layer_of(recipe="blockwise")
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
        assert torch.equal(dw, octofold.gemm(gradient, columns, out_dtype="float32"))
        factors = x.flatten(0, 1).abs().amax(0)
        assert torch.equal(layer.channel_amax, factors)


def test_outlier_channels():
    """Features of x with magnitudes e^N(0, 2), Student's t with 4 degrees of freedom: from the
    second step on as good as blockwise, the worst feature too."""
    of_x = torch.exp(2 * torch.randn(256))
    student = torch.distributions.StudentT(torch.tensor(4.0))

    def errors(recipe):
        torch.manual_seed(1)
        layer = layer_of(256, 256, recipe, bias=False)
        for _ in range(2):
            x, dy = student.sample((512, 256)) * of_x, random(512, 256)
            dw = step(layer, x, dy=dy)[2]
        expected = exact(x, layer.weight.detach(), None, dy)[2] / of_x
        error = dw / of_x - expected
        worst = (error.norm(dim=0) / expected.norm(dim=0)).max()
        return relative_error(dw / of_x, expected), float(worst)

    squares = nn.Recipe(
        output=nn.Product("torchao", "128x128 torchao"),
        grad_input=nn.Product("torchao", "128x128 torchao"),
        grad_weight=nn.Product("torchao", "128x128 torchao"),
    )
    ours, channel, plain = errors(RECIPE), errors("blockwise"), errors(squares)
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
    layer.zero_grad()
    factors = layer.channel_amax.clone()
    ys = [layer(x) for x, _ in step_of]
    for y, (x, dy) in reversed(list(zip(ys, step_of, strict=True))):
        layer.zero_grad()
        y.backward(dy)
        expected = exact(x, layer.weight.detach(), None, dy)[2]
        assert relative_error(layer.weight.grad, expected) < 0.042
        assert torch.equal(layer.channel_amax, x.abs().amax(0))
    assert torch.equal(layer.channel_amax, factors)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_propagates_and_is_forgotten(value):
    layer = layer_of(bias=False)
    x, dy = random(65, 300), random(65, 200)
    step(layer, x, dy=dy)
    bad = x.clone()
    bad[3, 7] = value
    assert step(layer, bad, dy=dy)[2].isnan().any()
    for _ in range(2):  # with factor 1 for that feature, then with its own
        expected = exact(x, layer.weight.detach(), None, dy)[2]
        assert relative_error(step(layer, x, dy=dy)[2], expected) < 0.042


def test_only_a_weight_gradient_looks_at_factors(casts):
    layer = layer_of()
    x, dy = random(65, 300), random(65, 200)
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


def test_state_is_no_part_of_files_but_of_copies():
    layer = layer_of()
    step(layer, random(65, 300))
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert torch.equal(copy.deepcopy(layer).channel_amax, layer.channel_amax)
    before = layer.channel_amax.clone()
    layer.bfloat16()
    assert torch.equal(layer.channel_amax, before)
    assert not list(layer.to_linear().buffers())
    assert nn.Linear(3, 5).channel_amax is None
    layer.reset_parameters()
    assert not layer.channel_amax.any()


def test_without_a_layer_there_is_nothing_to_keep_it_in():
    x, weight = random(65, 300), random(200, 300)
    for call in (
        lambda: octofold.linear(x, weight, recipe=RECIPE),
        lambda: nn.NormLinear(300, 200, recipe=RECIPE),
    ):
        with pytest.raises(
            octofold.InvalidArgumentError, match=f"'recipe': expected .* two-level .*, got {RECIPE}"
        ):
            call()


@pytest.mark.parametrize("field", ["output", "grad_input", "grad_weight"])
def test_is_for_x_in_the_weight_gradient_alone(field):
    product = nn.Product("1x128", "128x128", two_level=True)
    fields = {"output": None, "grad_input": None, "grad_weight": None, field: product}
    if field == "grad_weight":
        assert nn.Recipe(**fields).two_level
        return
    with pytest.raises(octofold.InvalidArgumentError, match=f"'{field}.two_level': .* got True"):
        nn.Recipe(**fields)
