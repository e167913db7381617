"""octofold.nn.InferenceLinear: FP8 weights as checkpoints have them."""

import copy
import dataclasses

import octofold
import pytest

from tests.python.nn.layer_support import STATELESS, random, relative_error

torch = pytest.importorskip("torch")

nn = octofold.nn
SQUARES, LINES = (
    octofold.Format("e4m3", unit, rule="torchao", power_of_two=True)
    for unit in ("128x128", "1x128")
)
EXACT = nn.Recipe(output=nn.Product(LINES, SQUARES), grad_input=None, grad_weight=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", STATELESS)
def test_has_the_bits_of_the_layer(recipe, dtype):
    layer = nn.Linear(300, 200, recipe=recipe)
    served = nn.InferenceLinear.from_linear(layer, recipe)
    x = random(2, 65, 300, dtype=dtype)
    with torch.no_grad():
        y = served(x)
        assert torch.equal(y, layer(x))
        if recipe != "tensorwise":  # whose scale is that of all x
            assert relative_error(y[0, 0], served(x[0, 0])) < 2**-8
    assert y.dtype == dtype


def test_delayed_scales_are_those_of_the_data():
    served = nn.InferenceLinear.from_linear(torch.nn.Linear(300, 200), "delayed")
    x = random(5, 300)
    assert relative_error(served(x * 64) - served.bias, (served(x) - served.bias) * 64) < 1e-5


@pytest.mark.parametrize("recipe", [EXACT, dataclasses.replace(nn.recipes.rowwise)])
def test_is_its_dequantized_weight(recipe):
    """Bit by bit: scales that are powers of two cast unit vectors without an error."""
    linear = torch.nn.Linear(300, 200, bias=False)
    served = nn.InferenceLinear.from_linear(linear, recipe)
    dequantized = served.scaled_weight.dequantize()
    assert torch.equal(served(torch.eye(300)), dequantized.t())
    assert 0.01 < relative_error(dequantized, linear.weight) < 0.03


@pytest.mark.parametrize(
    ("recipe", "name", "shape"),
    [
        ("blockwise", "weight_scale_inv", (2, 3)),
        ("rowwise", "weight_scale", (200,)),
        ("tensorwise", "weight_scale", (1,)),
    ],
)
def test_state_is_that_of_checkpoints(recipe, name, shape):
    served = nn.InferenceLinear.from_linear(torch.nn.Linear(300, 200), recipe)
    state = served.state_dict()
    assert set(state) == {"weight", name, "bias"}
    assert state["weight"].dtype == torch.float8_e4m3fn
    assert tuple(state[name].shape) == shape
    other = nn.InferenceLinear(300, 200, recipe=recipe)
    other.load_state_dict(state)
    x = random(5, 300)
    assert torch.equal(other(x), served(x))
    if recipe != "blockwise":  # as files of others have it
        state[name] = state[name].reshape([200, 1] if recipe == "rowwise" else [])
        other.load_state_dict(state)
        assert torch.equal(other(x), served(x))


def test_reads_a_converted_checkpoint(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    linear = torch.nn.Linear(300, 200)
    source, target = tmp_path / "model.safetensors", tmp_path / "fp8.safetensors"
    safetensors.save_file(torch.nn.Sequential(linear).state_dict(), source)
    octofold.quantize_checkpoint(source, target)
    model = torch.nn.Sequential(nn.InferenceLinear(300, 200))
    model.load_state_dict(safetensors.load_file(target))
    expected = octofold.quantize(linear.weight.detach(), "128x128")
    assert model[0].scaled_weight.equals(expected)
    x = random(5, 300)
    assert relative_error(model(x), linear(x)) < 0.05


@pytest.mark.parametrize("as_parameter", [False, True])
def test_codes_with_gaps_between_rows_are_saved(as_parameter, tmp_path):
    """Casts on a GPU lay codes out with gaps where K is no multiple of 16."""
    safetensors = pytest.importorskip("safetensors.torch")
    served = nn.InferenceLinear.from_linear(torch.nn.Linear(300, 200))
    weight = served.scaled_weight
    apart = torch.empty_strided((200, 300), (304, 1), dtype=weight.data.dtype).copy_(weight.data)
    served.hold(dataclasses.replace(weight, data=apart), None)
    if as_parameter:
        served.keep_as_parameter()
    safetensors.save_file(served.state_dict(), tmp_path / "one.safetensors")
    other = nn.InferenceLinear(300, 200, bias=False)
    other.load_state_dict(safetensors.load_file(tmp_path / "one.safetensors"))
    assert other.scaled_weight.equals(weight)
    assert served.scaled_weight.equals(weight)


def test_moves_but_does_not_convert():
    served = nn.InferenceLinear.from_linear(torch.nn.Linear(300, 200))
    weight, x = served.scaled_weight, random(5, 300)
    for convert in (
        lambda layer: layer.half(),
        lambda layer: layer.to(torch.bfloat16),
        lambda layer: layer.double(),
    ):
        other = convert(copy.deepcopy(served))
        assert other.scaled_weight.equals(weight)
        assert other.bias.dtype != torch.float32
    assert served.half()(x.half()).dtype == torch.float16
    meta = copy.deepcopy(served).to("meta")
    assert meta.weight.device.type == meta.weight_scale_inv.device.type == "meta"
    assert meta(x.to("meta")).shape == (5, 200)


def test_autocast():
    served = nn.InferenceLinear.from_linear(torch.nn.Linear(300, 200))
    with torch.autocast("cpu", torch.bfloat16):
        assert served(random(5, 300)).dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(300,), (5, 300), (2, 3, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", [*STATELESS, EXACT])
def test_the_gradient_by_x(recipe, dtype, shape):
    """The gradient is that of a layer which casts its weight both ways, where squares share a
    scale; else that of the codes' values, up to casts."""
    layer = nn.Linear(300, 200, dtype=dtype, recipe=recipe)
    served = nn.InferenceLinear.from_linear(layer, recipe)
    x = random(*shape, dtype=dtype).requires_grad_()
    dy = random(*shape[:-1], 200, dtype=dtype)
    y = served(x)
    with torch.no_grad():
        assert torch.equal(y, served(x))
    y.backward(dy)
    assert (x.grad.shape, x.grad.dtype) == (x.shape, dtype)
    exact = dy.double() @ served.scaled_weight.dequantize("float32").double()
    assert relative_error(x.grad, exact) < (0.01 if recipe is EXACT else 0.06)
    if recipe in ("blockwise", "tensorwise"):
        found, x.grad = x.grad, None
        layer(x).backward(dy)
        assert torch.equal(found, x.grad)
    assert not list(served.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_tokens_are_multiplied_as_they_are(dtype):
    linear = torch.nn.Linear(300, 200).to(dtype)
    native = nn.InferenceLinear.from_linear(linear)
    served = nn.InferenceLinear(300, 200, few_tokens=6)
    served.hold(native.scaled_weight, native.bias)
    alone = nn.WeightOnlyLinear.from_linear(linear)
    alone.hold(native.scaled_weight, linear.bias)
    assert "few_tokens=6" in repr(served)
    assert "few_tokens" not in repr(native)
    few, many = random(2, 3, 300, dtype=dtype), random(7, 300, dtype=dtype)
    assert torch.equal(served(many), native(many))
    expected = native if dtype == torch.float32 else alone
    assert torch.equal(served(few), expected(few))
    few.requires_grad_()
    served(few).sum().backward()
    assert few.grad.abs().sum() > 0
    with pytest.raises(octofold.InvalidArgumentError, match="'few_tokens': expected a number"):
        nn.InferenceLinear(300, 200, few_tokens=-1)


def test_states_that_do_not_fit():
    linear = torch.nn.Linear(300, 200)
    served = nn.InferenceLinear.from_linear(linear)
    weight = served.weight.clone()
    model = torch.nn.Sequential(served)
    for strict in (False, True):
        state = torch.nn.Sequential(linear).state_dict()
        with pytest.raises(
            RuntimeError, match=r"'0.weight': expected torch.float8_e4m3fn, .*float32"
        ):
            model.load_state_dict(state, strict=strict)
    other = nn.InferenceLinear.from_linear(linear, "rowwise").state_dict()
    with pytest.raises(RuntimeError, match=r"Missing .*weight_scale_inv(?s:.*)Unexpected .*scale"):
        served.load_state_dict(other)
    wrong = {**served.state_dict(), "weight": served.weight.view(torch.float8_e5m2)}
    with pytest.raises(RuntimeError, match=r"'weight': expected .*e4m3fn, its own, got .*e5m2"):
        served.load_state_dict(wrong)
    served.load_state_dict(nn.InferenceLinear.from_linear(linear).state_dict())
    assert torch.equal(served.weight.view(torch.uint8), weight.view(torch.uint8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.InferenceLinear(0, 3), "'in_features': expected a whole number"),
        (lambda: nn.InferenceLinear(3, 3, recipe="fp8"), "'recipe': expected a Recipe or one of"),
        (
            lambda: nn.InferenceLinear(
                3, 3, recipe=dataclasses.replace(nn.recipes.blockwise, output=None)
            ),
            "'recipe': expected one whose product 'output' is in FP8",
        ),
        (
            lambda: nn.InferenceLinear.from_linear(torch.nn.ReLU()),
            "'linear': expected a torch.nn.Linear, got torch.nn",
        ),
        (lambda: nn.InferenceLinear(3, 5)(random(2, 4)), r"'x': expected \[..., 3\]"),
        (lambda: nn.InferenceLinear(3, 5)(random(2, 3).int()), "'x': expected a torch tensor of"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(
        octofold.InvalidArgumentError, match=r"octofold.nn.InferenceLinear.*" + message
    ):
        call()
