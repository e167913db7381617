"""octofold.nn.inference_linear() and weight_only_linear(): linear layers of torch, whose FP8 weight
may come from a checkpoint."""

import copy
import weakref

import octofold
import pytest
import torch
from octofold.nn.autograd import frozen
from octofold.nn.layers.fp8_parameters import hold
from octofold.nn.layers.saving import coded_state_dict

from tests.python.casting import GRANULARITIES
from tests.python.nn.layer_support import NAMES, random, relative_error, step

nn = octofold.nn
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SQUARES, LINES = (
    octofold.Format("e4m3", unit, rule="torchao", power_of_two=True)
    for unit in ("128x128", "1x128")
)
EXACT = nn.Recipe(output=nn.Product(LINES, SQUARES), grad_input=None, grad_weight=None)
KINDS = (nn.inference_linear, nn.weight_only_linear)


def weight_only(granularity="128x128", dtype=FP16, bias=True):
    linear = torch.nn.Linear(300, 200, bias=bias, dtype=dtype)
    return linear, nn.weight_only_linear(linear, granularity)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def layer(kind):
    return kind(torch.nn.Linear(300, 200).bfloat16())


def same_codes(other, layer):
    return other.weight.scaled.equals(layer.weight.scaled)


def test_it_is_a_linear_layer_with_another_weight(kind):
    linear = torch.nn.Linear(300, 200).eval()
    layer = kind(linear)
    assert type(layer) is torch.nn.Linear
    assert layer.bias is linear.bias
    assert not layer.training
    assert [n for n, p in layer.named_parameters() if not p.requires_grad] == ["weight"]
    assert linear.weight.requires_grad
    assert layer.weight.compute in repr(layer)


def codes_of(layer):
    """Its state as FP8 checkpoints have it."""
    weight, bias = layer.weight, layer.bias
    return {"weight": weight.codes, weight.scale_name(): weight.scale, "bias": bias.detach()}


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(
    ("kind", "how", "name", "shape"),
    [
        (nn.inference_linear, "blockwise", "weight_scale_inv", (2, 3)),
        (nn.inference_linear, "rowwise", "weight_scale", (200,)),
        (nn.inference_linear, "tensorwise", "weight_scale", (1,)),
        (nn.weight_only_linear, "e5m2 128x128", "weight_scale_inv", (2, 3)),
        (nn.weight_only_linear, "e5m2 channel", "weight_scale", (200,)),
    ],
)
def test_takes_codes_and_scales_of_checkpoints(kind, how, name, shape, assign):
    layer, other = (kind(torch.nn.Linear(300, 200), how) for _ in range(2))
    state = codes_of(layer)
    assert tuple(state[name].shape) == shape
    model = torch.nn.Sequential(other)
    model.load_state_dict({f"0.{key}": value for key, value in state.items()}, assign=assign)
    assert same_codes(other, layer)
    if shape != (2, 3):  # as files of others have it
        other.load_state_dict(kind(torch.nn.Linear(300, 200), how).state_dict())
        state[name] = state[name].reshape([200, 1] if shape == (200,) else [])
        other.load_state_dict(state, assign=assign)
        assert same_codes(other, layer)


@pytest.mark.parametrize("assign", [False, True])
def test_states_that_do_not_fit(assign):
    linear = torch.nn.Linear(300, 200)
    served = nn.inference_linear(linear)
    weight, state = served.weight.codes.clone(), codes_of(served)
    model = torch.nn.Sequential(served)
    other = codes_of(nn.inference_linear(linear, "rowwise"))
    wrong = {**state, "weight": state["weight"].view(torch.float8_e5m2)}
    turned = {**state, "weight_scale_inv": torch.ones(3, 2)}
    whole = {**state, "weight_scale_inv": torch.ones(2, 3, dtype=torch.int32)}
    for bad, words in (
        (other, r"Unexpected .*0.weight_scale(?s:.*)'0.weight': .*expected its scales beside it"),
        (wrong, r"'0.weight': .*expected .*e4m3fn .*its own, got .*e5m2"),
        (turned, r"'0.weight': .*scales \[2, 3\], its own, got .*\[3, 2\]"),
        (whole, r"'0.weight': .*scales \[2, 3\], its own, got .*int32 scales \[2, 3\]"),
    ):
        with pytest.raises(RuntimeError, match=words):
            model.load_state_dict({f"0.{k}": v for k, v in bad.items()}, assign=assign)
    assert torch.equal(served.weight.codes.view(torch.uint8), weight.view(torch.uint8))


def test_codes_with_gaps_between_rows_are_saved(tmp_path):
    """Casts on a GPU lay codes out with gaps where K is no multiple of 16."""
    safetensors = pytest.importorskip("safetensors.torch")
    served, other = (nn.inference_linear(torch.nn.Linear(300, 200)) for _ in range(2))
    weight = served.weight
    apart = torch.empty_strided((200, 300), (304, 1), dtype=weight.codes.dtype)
    hold(served, weight.like(apart.copy_(weight.codes)))
    with coded_state_dict(served):
        safetensors.save_file(served.state_dict(), tmp_path / "one.safetensors")
    other.load_state_dict(safetensors.load_file(tmp_path / "one.safetensors"))
    assert same_codes(other, served)
    with pytest.raises(octofold.InvalidArgumentError, match=r"safetensors.*numbers.*Fp8Weight"):
        safetensors.save_file(served.state_dict(), tmp_path / "other.safetensors")


def test_options_of_the_weight_decide(monkeypatch):
    asked = []

    def linear_compute(*arguments):
        asked.append(arguments[4:])
        return decide(*arguments)

    decide = frozen.linear_compute
    invariant = nn.recipes.batch_invariant("blockwise")
    layers = (
        nn.inference_linear(torch.nn.Linear(300, 200), invariant, few_tokens=3),
        nn.weight_only_linear(torch.nn.Linear(300, 200), batch_invariant=True),
    )
    monkeypatch.setattr(frozen, "linear_compute", linear_compute)
    for layer in layers:
        layer(random(5, 300, dtype=BF16))
    assert asked == [("native", 3, True), ("weight-only", None, True)]


@pytest.mark.parametrize("shape", [(300,), (5, 300), (2, 65, 300)])
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("recipe", [*NAMES, EXACT])
def test_inference_has_the_bits_of_the_layer(recipe, dtype, shape):
    """The gradient by x is that of a layer which casts its weight both ways, where squares share a
    scale; else that of the codes' values, up to casts."""
    layer = nn.Linear(300, 200, dtype=dtype, recipe=recipe)
    served = nn.inference_linear(layer, recipe)
    x, dy = random(*shape, dtype=dtype), random(*shape[:-1], 200, dtype=dtype)
    y, dx, db = step(served, x, dy=dy)
    expected, of_layer, *_ = step(layer, x, dy=dy)
    assert relative_error(db, dy.double().view(-1, 200).sum(0)) < 4e-3
    with torch.no_grad():
        assert torch.equal(served(x), y)
        if recipe != "tensorwise":  # whose scale is that of all x
            first = (0,) * (len(shape) - 1)
            assert relative_error(y[first], served(x[first])) < 2**-8
    assert torch.equal(y, expected)
    assert (y.dtype, dx.shape, dx.dtype) == (dtype, x.shape, dtype)
    exact = dy.double() @ served.weight.scaled.dequantize("float32").double()
    assert relative_error(dx, exact) < (0.01 if recipe is EXACT else 0.06)
    if recipe in ("blockwise", "tensorwise"):
        assert torch.equal(dx, of_layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_tokens_are_multiplied_as_they_are(dtype):
    linear = torch.nn.Linear(300, 200).to(dtype)
    native = nn.inference_linear(linear)
    served = nn.inference_linear(linear, few_tokens=6)
    alone = nn.weight_only_linear(linear, "128x128 torchao")
    assert "few_tokens=6" in repr(served)
    assert "few_tokens" not in repr(native)
    few, many = random(2, 3, 300, dtype=dtype), random(7, 300, dtype=dtype)
    assert torch.equal(served(many), native(many))
    expected = native if dtype == torch.float32 else alone
    assert torch.equal(served(few), expected(few))
    few.requires_grad_()
    served(few).sum().backward()
    assert few.grad.abs().sum() > 0


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("shape", [(300,), (2, 70, 300)])
def test_many_tokens_take_a_copy_of_the_weight(shape, granularity, dtype, monkeypatch):
    """A GPU takes a copy for many tokens, where torch's product is quicker for them."""
    _, layer = weight_only(granularity, dtype)
    x, dy = random(*shape, dtype=dtype), random(*shape[:-1], 200, dtype=dtype)

    def outcome():
        results = step(layer, x, dy=dy)
        with torch.no_grad():
            assert torch.equal(layer(x), results[0])
        return results

    expected = outcome()
    monkeypatch.setattr("octofold.nn.autograd.frozen._is_by_copy", lambda *_: True)
    monkeypatch.setattr("octofold.nn.autograd.frozen.gemm_weight_only", None)
    monkeypatch.setattr("octofold.nn.autograd.frozen.gemm_weight_only_gradient", None)
    for found, other in zip(outcome(), expected, strict=True):
        assert (found.shape, found.dtype) == (other.shape, other.dtype)
        assert relative_error(found, other) < 2**-7


@pytest.mark.parametrize("granularity", ["128x128", "channel", "tensor"])
def test_activations_may_be_cast(granularity):
    """Few tokens stay exact; many lose what e4m3 does, and no more."""
    linear = torch.nn.Linear(512, 256).bfloat16()
    exact = nn.convert_weight_only(copy.deepcopy(linear), granularity).model
    report = nn.convert_weight_only(copy.deepcopy(linear), granularity, activations="auto")
    layer = report.model
    assert (exact.weight.compute, layer.weight.compute) == ("weight-only", "native")
    assert f"an octofold.nn.Fp8Weight, {granularity}, native" in str(report)
    few, many = random(4, 512, dtype=torch.bfloat16), random(200, 512, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(layer(few), exact(few))
        error = relative_error(layer(many), exact(many))
    assert 0.01 < error < 0.032


def test_models_are_converted():
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 48), torch.nn.GELU(), torch.nn.Linear(48, 10)
    ).half()
    x = random(7, 64, dtype=torch.float16)
    expected = model(x)
    assert nn.convert_weight_only(model, module_filter_fn=lambda m, fqn: fqn != "2").model is model
    assert model[0].weight.compute == "weight-only"
    assert type(model[2].weight) is torch.nn.Parameter
    nn.convert_weight_only(model, "e5m2 channel")
    assert "e5m2, channel" in repr(model[2])
    assert 1e-3 < relative_error(model(x), expected) < 0.1


def test_old_weights_are_let_go_one_by_one(monkeypatch):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    weights = [weakref.ref(layer.weight) for layer in model]
    make, alive = nn.weight_only_linear, []

    def counting(*arguments, **options):
        alive.append(sum(weight() is not None for weight in weights))
        return make(*arguments, **options)

    monkeypatch.setattr("octofold.nn.conversion.linear.weight_only_linear", counting)
    nn.convert_weight_only(model)
    assert alive == [5, 4, 3, 2, 1]
