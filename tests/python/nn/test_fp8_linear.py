"""octofold.nn.InferenceLinear and WeightOnlyLinear: linear layers whose FP8 weight is that of a
checkpoint, in a buffer or, as libraries that offload layers want it, in a parameter."""

import copy
import dataclasses
import io
import weakref

import octofold
import pytest

from tests.python.casting import GRANULARITIES
from tests.python.nn.layer_support import NAMES, random, relative_error, step

torch = pytest.importorskip("torch")

from octofold.nn.casting.weight_tensors import StoredWeight  # noqa: E402

nn = octofold.nn
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SQUARES, LINES = (
    octofold.Format("e4m3", unit, rule="torchao", power_of_two=True)
    for unit in ("128x128", "1x128")
)
EXACT = nn.Recipe(output=nn.Product(LINES, SQUARES), grad_input=None, grad_weight=None)
KINDS = (nn.InferenceLinear, nn.WeightOnlyLinear)


def weight_only(granularity="128x128", dtype=FP16, bias=True):
    linear = torch.nn.Linear(300, 200, bias=bias, dtype=dtype)
    return linear, nn.WeightOnlyLinear.from_linear(linear, granularity)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["buffer", "parameter"])
def layer(request, kind):
    """A layer of each kind, whose weight is a buffer or a parameter."""
    made = kind.from_linear(torch.nn.Linear(300, 200).bfloat16())
    for _ in range(2 * request.param):
        made.keep_as_parameter()
    return made


def is_held_like(other, layer):
    """The weight is a frozen parameter as in that layer, or a buffer; it has the same codes."""
    as_parameter = "weight" in dict(layer.named_parameters())
    assert ("weight" in dict(other.named_buffers())) != as_parameter
    assert type(other.weight) is (StoredWeight if as_parameter else torch.Tensor)
    assert not other.weight.requires_grad
    return other.scaled_weight.equals(layer.scaled_weight)


def same_outputs(one, other):
    x = random(5, 300, dtype=BF16)
    with torch.no_grad():
        return torch.equal(one(x), other(x))


def test_moves_but_does_not_convert(layer):
    before, address = copy.deepcopy(layer), layer.weight.data_ptr()
    for convert in (
        lambda layer: layer.half(),
        lambda layer: layer.float(),
        lambda layer: layer.to(torch.float64),
        lambda layer: layer.type(BF16),
    ):
        dtype = convert(layer).bias.dtype
        assert is_held_like(layer, before)
        assert layer.weight.data_ptr() == address
        if dtype != torch.float64:
            assert layer(random(3, 300, dtype=dtype)).dtype == dtype
    assert dtype == BF16
    assert same_outputs(layer, before)
    layer.to("meta")
    assert type(layer.weight) is type(before.weight)
    assert layer.weight.is_meta
    assert layer.weight_scale_inv.is_meta
    assert layer(random(5, 300).to("meta")).shape == (5, 200)


@pytest.mark.parametrize("assign", [False, True])
def test_takes_states(layer, assign):
    other = type(layer).from_linear(torch.nn.Linear(300, 200).bfloat16())
    assert set(other.state_dict()) == set(layer.state_dict())
    layer.load_state_dict(other.state_dict(), assign=assign)
    assert is_held_like(layer, copy.deepcopy(layer))
    assert same_outputs(layer, other)


def test_copies_and_files(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for again in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert is_held_like(again, layer)
        assert same_outputs(layer, again)


def test_takes_another_weight(layer):
    weight, before = random(200, 300), copy.deepcopy(layer)
    layer.recast(weight)
    assert not is_held_like(layer, before)
    assert 1e-3 < relative_error(layer.scaled_weight.dequantize("float32"), weight) < 0.05


def test_gradients_are_the_same_through_a_parameter(kind):
    one = kind.from_linear(torch.nn.Linear(300, 200).bfloat16())
    other, x = copy.deepcopy(one), random(5, 300, dtype=BF16)
    other.keep_as_parameter()
    for left, right in zip(step(one, x), step(other, x), strict=True):
        assert torch.equal(left, right)
    assert other.weight.grad is None


def test_autocast(kind):
    layer, x = kind.from_linear(torch.nn.Linear(300, 200)), random(5, 300).requires_grad_()
    with torch.autocast("cpu", BF16):
        y = layer(x)
    assert y.dtype == BF16
    y.sum().backward()
    assert x.grad.dtype == FP32


@pytest.mark.parametrize(
    ("kind", "how", "name", "shape"),
    [
        (nn.InferenceLinear, {"recipe": "blockwise"}, "weight_scale_inv", (2, 3)),
        (nn.InferenceLinear, {"recipe": "rowwise"}, "weight_scale", (200,)),
        (nn.InferenceLinear, {"recipe": "tensorwise"}, "weight_scale", (1,)),
        (nn.WeightOnlyLinear, {"format": "e5m2 128x128"}, "weight_scale_inv", (2, 3)),
        (nn.WeightOnlyLinear, {"format": "e5m2 channel"}, "weight_scale", (200,)),
    ],
)
def test_state_is_that_of_checkpoints(kind, how, name, shape):
    layer = kind.from_linear(torch.nn.Linear(300, 200), **how)
    state = layer.state_dict()
    assert set(state) == {"weight", name, "bias"}
    dtype = torch.float8_e5m2 if "format" in how else torch.float8_e4m3fn
    assert state["weight"].dtype == dtype
    assert tuple(state[name].shape) == shape
    other = kind(300, 200, **how)
    of_parameters = ["bias"] if kind is nn.WeightOnlyLinear else []
    assert [key for key, _ in other.named_parameters()] == of_parameters
    other.load_state_dict(state)
    assert same_outputs(other, layer)
    if shape != (2, 3):  # as files of others have it
        state[name] = state[name].reshape([200, 1] if shape == (200,) else [])
        other.load_state_dict(state)
        assert same_outputs(other, layer)


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


def test_takes_the_state_of_inference_linear():
    linear = torch.nn.Linear(300, 200)
    served = nn.InferenceLinear.from_linear(linear)
    layer = nn.WeightOnlyLinear(300, 200)
    layer.load_state_dict(served.state_dict())
    assert layer.scaled_weight.equals(served.scaled_weight)
    x = random(4, 300, dtype=torch.float16)
    assert 1e-3 < relative_error(layer(x), linear(x.float())) < 0.05


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


@pytest.mark.parametrize("shape", [(300,), (5, 300), (2, 65, 300)])
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("recipe", [*NAMES, EXACT])
def test_inference_has_the_bits_of_the_layer(recipe, dtype, shape):
    """The gradient by x is that of a layer which casts its weight both ways, where squares share a
    scale; else that of the codes' values, up to casts."""
    layer = nn.Linear(300, 200, dtype=dtype, recipe=recipe)
    served = nn.InferenceLinear.from_linear(layer, recipe)
    x, dy = random(*shape, dtype=dtype), random(*shape[:-1], 200, dtype=dtype)
    y, dx = step(served, x, dy=dy)
    expected, of_layer, *_ = step(layer, x, dy=dy)
    with torch.no_grad():
        assert torch.equal(served(x), y)
        if recipe != "tensorwise":  # whose scale is that of all x
            first = (0,) * (len(shape) - 1)
            assert relative_error(y[first], served(x[first])) < 2**-8
    assert torch.equal(y, expected)
    assert (y.dtype, dx.shape, dx.dtype) == (dtype, x.shape, dtype)
    exact = dy.double() @ served.scaled_weight.dequantize("float32").double()
    assert relative_error(dx, exact) < (0.01 if recipe is EXACT else 0.06)
    if recipe in ("blockwise", "tensorwise"):
        assert torch.equal(dx, of_layer)
    assert not list(served.parameters())


@pytest.mark.parametrize("recipe", [EXACT, dataclasses.replace(nn.recipes.rowwise)])
def test_is_its_dequantized_weight(recipe):
    """Bit by bit: scales that are powers of two cast unit vectors without an error."""
    linear = torch.nn.Linear(300, 200, bias=False)
    served = nn.InferenceLinear.from_linear(linear, recipe)
    dequantized = served.scaled_weight.dequantize()
    assert torch.equal(served(torch.eye(300)), dequantized.t())
    assert 0.01 < relative_error(dequantized, linear.weight) < 0.03


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


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", [(300,), (5, 300), (2, 65, 300)])
def test_weight_only_is_a_product_with_its_weight(shape, granularity, dtype):
    linear, layer = weight_only(granularity, dtype)
    assert layer.bias is linear.bias
    x, dy = random(*shape, dtype=dtype), random(*shape[:-1], 200, dtype=dtype)
    y, dx, db = step(layer, x, dy=dy)
    assert (y.dtype, y.shape, dx.dtype) == (dtype, dy.shape, dtype)
    weight = layer.scaled_weight.dequantize("float32").double()
    expected = x.double() @ weight.T + linear.bias.double()
    assert relative_error(y, expected) < {4: 1e-6, 2: 2.5e-3}[dtype.itemsize]
    assert relative_error(dx, dy.double() @ weight) < 4e-3
    assert relative_error(db, dy.double().view(-1, 200).sum(0)) < 4e-3
    assert 1e-3 < relative_error(weight, linear.weight) < 0.05


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
    assert type(exact) is nn.WeightOnlyLinear
    assert type(layer) is nn.InferenceLinear
    assert f"octofold.nn.InferenceLinear, {granularity}" in str(report)
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
    assert isinstance(model[0], nn.WeightOnlyLinear)
    assert type(model[2]) is torch.nn.Linear
    nn.convert_weight_only(model, "e5m2 channel")
    assert "granularity=channel" in repr(model[2])
    assert 1e-3 < relative_error(model(x), expected) < 0.1


def test_old_weights_are_let_go_one_by_one(monkeypatch):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    weights = [weakref.ref(layer.weight) for layer in model]
    from_linear, alive = nn.WeightOnlyLinear.from_linear, []

    def counting(*arguments, **options):
        alive.append(sum(weight() is not None for weight in weights))
        return from_linear(*arguments, **options)

    monkeypatch.setattr(nn.WeightOnlyLinear, "from_linear", counting)
    nn.convert_weight_only(model)
    assert alive == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda kind: kind(0, 3), "'in_features': expected a whole number"),
        (
            lambda kind: kind.from_linear(torch.nn.ReLU()),
            "'linear': expected a torch.nn.Linear, got",
        ),
        (lambda kind: kind(3, 5)(random(2, 4).half()), r"'x': expected \[..., 3\]"),
        (lambda kind: kind(3, 5)(random(2, 3).int()), "'x': expected a torch tensor of"),
    ],
)
def test_bad_arguments(kind, call, message):
    operation = f"octofold.nn.{kind.__name__}.*"
    with pytest.raises(octofold.InvalidArgumentError, match=operation + message):
        call(kind)


NO_OUTPUT = dataclasses.replace(nn.recipes.blockwise, output=None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.InferenceLinear(3, 3, recipe="fp8"), "'recipe': expected a Recipe or one of"),
        (
            lambda: nn.InferenceLinear(3, 3, recipe=NO_OUTPUT),
            "'recipe': expected one whose product 'output' is in FP8",
        ),
        (lambda: nn.InferenceLinear(3, 3, few_tokens=-1), "'few_tokens': expected a number"),
        (lambda: nn.WeightOnlyLinear(3, 3, format="1x64"), "'format': expected .*got '1x64'"),
        (lambda: nn.WeightOnlyLinear(3, 3, format="int8"), "'format': expected .*got 'int8'"),
        (
            lambda: nn.convert_weight_only(torch.nn.Linear(3, 3), activations="fp8"),
            "'activations': expected 'exact' or 'auto', got fp8",
        ),
    ],
)
def test_bad_options(call, message):
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        call()
