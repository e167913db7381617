"""octofold.nn.WeightOnlyLinear and convert_weight_only: FP8 weights, all else in 16 bits."""

import copy
import importlib
import weakref

import octofold
import pytest

from tests.python.casting import GRANULARITIES
from tests.python.nn.layer_support import random, relative_error

torch = pytest.importorskip("torch")

nn = octofold.nn
DTYPES = [torch.float16, torch.bfloat16]


def layer_of(granularity="128x128", dtype=torch.float16, bias=True, weight_dtype="e4m3"):
    linear = torch.nn.Linear(300, 200, bias=bias, dtype=dtype)
    return linear, nn.WeightOnlyLinear.from_linear(linear, f"{weight_dtype} {granularity}")


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", [(300,), (5, 300), (2, 65, 300), (0, 300)])
def test_is_a_product_with_its_weight(shape, granularity, dtype):
    linear, layer = layer_of(granularity, dtype)
    assert layer.bias is linear.bias
    x = random(*shape, dtype=dtype)
    y = layer(x)
    assert y.dtype == dtype
    assert y.shape == (*shape[:-1], 200)
    if x.numel() > 0:
        weight = layer.scaled_weight.dequantize("float32").double()
        expected = x.double() @ weight.T + linear.bias.double()
        assert relative_error(y, expected) < {4: 1e-6, 2: 2.5e-3}[dtype.itemsize]
        assert 1e-3 < relative_error(weight, linear.weight) < 0.05


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_gradients(granularity, dtype):
    _, layer = layer_of(granularity, dtype)
    x, dy = random(2, 65, 300, dtype=dtype).requires_grad_(), random(2, 65, 200, dtype=dtype)
    layer(x).backward(dy)
    weight = layer.scaled_weight.dequantize("float32").double()
    assert x.grad.dtype == dtype
    assert relative_error(x.grad, dy.double() @ weight) < 4e-3
    assert relative_error(layer.bias.grad, dy.double().sum((0, 1))) < 4e-3
    (expanded,) = torch.autograd.grad(layer(x).sum(), x)
    assert relative_error(expanded, torch.ones_like(dy).double() @ weight) < 4e-3
    with pytest.raises(octofold.UnsupportedError, match="create_graph"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(300,), (2, 70, 300)])
def test_many_tokens_take_a_copy_of_the_weight(shape, granularity, dtype, monkeypatch):
    """A GPU takes a copy for many tokens, where torch's product is quicker for them."""
    _, layer = layer_of(granularity, dtype)
    x, dy = random(*shape, dtype=dtype), random(*shape[:-1], 200, dtype=dtype)

    def outcome():
        layer.bias.grad = None
        leaf = x.detach().clone().requires_grad_()
        y = layer(leaf)
        y.backward(dy)
        with torch.no_grad():
            assert torch.equal(layer(x), y)
        return y.detach(), leaf.grad, layer.bias.grad

    expected = outcome()
    monkeypatch.setattr("octofold.nn.layers.weight_only._is_by_copy", lambda *_: True)
    monkeypatch.setattr("octofold.nn.layers.weight_only.gemm_weight_only", None)
    monkeypatch.setattr("octofold.nn.layers.weight_only.gemm_weight_only_gradient", None)
    for found, other in zip(outcome(), expected, strict=True):
        assert (found.shape, found.dtype) == (other.shape, other.dtype)
        assert relative_error(found, other) < 2**-7


@pytest.mark.parametrize("hopper", [False, True])
def test_how_many_rows_are_decoded(hopper, monkeypatch):
    """Up to 128 on any GPU, on Hopper more; on the CPU, and where they may not matter, all. None
    where there are no kernels."""
    module = "octofold.nn.layers.weight_only"
    monkeypatch.setattr(f"{module}.has_warpgroups", lambda device: hopper)
    has_kernels = True
    monkeypatch.setattr(f"{module}.has_weight_only", lambda device, dtype: has_kernels)
    by_copy = importlib.import_module(module)._is_by_copy

    class OnGpu:
        device = torch.device("cuda", 0)

        def __init__(self, rows):
            self.shape, self.dtype = (rows, 64), torch.float16

    assert not by_copy(OnGpu(128), 1024, False)
    assert by_copy(OnGpu(129), 1024, False) is not hopper
    assert by_copy(OnGpu(1025), 1024, False)
    assert not by_copy(random(4096, 64), 1024, False)
    assert not by_copy(OnGpu(1025), 1024, True)
    monkeypatch.setattr(f"{module}.is_batch_invariant", lambda: True)
    assert not by_copy(OnGpu(1025), 1024, False)
    has_kernels = False
    assert by_copy(OnGpu(1), 1024, True)


@pytest.mark.parametrize("granularity", ["128x128", "channel", "tensor"])
def test_activations_may_be_cast(granularity):
    """Few tokens stay exact; many lose what e4m3 does, and no more."""
    torch.manual_seed(5)
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


def test_activations_stay_where_fp8_units_lack(pretend):
    pretend("8.0")
    linear = torch.nn.Linear(64, 64).bfloat16()
    exact = nn.convert_weight_only(copy.deepcopy(linear)).model
    report = nn.convert_weight_only(linear, activations="auto")
    assert "octofold.nn.InferenceLinear, 128x128, weight-only here (expected a" in str(report)
    x = random(200, 64, dtype=torch.bfloat16)
    assert torch.equal(report.model(x), exact(x))


def test_adapters_train_over_it():
    """LoRA: two small matrices beside a frozen weight learn what the cast has rounded."""
    torch.manual_seed(3)
    linear, layer = layer_of(dtype=torch.bfloat16, bias=False)
    down, up = torch.nn.Linear(300, 8), torch.nn.Linear(8, 200)
    torch.nn.init.zeros_(up.weight)
    first = torch.nn.Linear(300, 300)
    optimizer = torch.optim.Adam([*first.parameters(), *down.parameters(), *up.parameters()], 1e-3)
    x = random(256, 300)
    target = torch.nn.functional.linear(x, linear.weight.detach().float())
    losses = []
    for _ in range(30):
        h = first(x)
        y = layer(h.bfloat16()).float() + up(down(h))
        loss = (y - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_autocast():
    _, layer = layer_of(dtype=torch.float32)
    x = random(5, 300).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize(("granularity", "name"), [("128x128", "_inv"), ("channel", "")])
def test_state_is_that_of_checkpoints(granularity, name):
    _, layer = layer_of(granularity, weight_dtype="e5m2")
    state = layer.state_dict()
    assert set(state) == {"weight", f"weight_scale{name}", "bias"}
    assert state["weight"].dtype == torch.float8_e5m2
    other = nn.WeightOnlyLinear(300, 200, dtype=torch.float16, format=f"e5m2 {granularity}")
    assert [key for key, _ in other.named_parameters()] == ["bias"]
    other.load_state_dict(state)
    x = random(5, 300, dtype=torch.float16)
    assert torch.equal(other(x), layer(x))


def test_takes_the_state_of_inference_linear():
    linear = torch.nn.Linear(300, 200)
    served = nn.InferenceLinear.from_linear(linear)
    layer = nn.WeightOnlyLinear(300, 200)
    layer.load_state_dict(served.state_dict())
    assert layer.scaled_weight.equals(served.scaled_weight)
    x = random(4, 300, dtype=torch.float16)
    assert 1e-3 < relative_error(layer(x), linear(x.float())) < 0.05


def test_moves_but_does_not_convert():
    _, layer = layer_of()
    weight = layer.scaled_weight
    other = copy.deepcopy(layer).bfloat16()
    assert other.scaled_weight.equals(weight)
    assert other.bias.dtype == torch.bfloat16
    assert other(random(3, 300, dtype=torch.bfloat16)).dtype == torch.bfloat16


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
        (lambda: nn.WeightOnlyLinear(0, 3), "'in_features': expected a whole number"),
        (lambda: nn.WeightOnlyLinear(3, 3, format="1x64"), "'format': expected .*got '1x64'"),
        (lambda: nn.WeightOnlyLinear(3, 3, format="int8"), "'format': expected .*got 'int8'"),
        (lambda: nn.WeightOnlyLinear.from_linear(3), "'linear': expected a torch.nn.Linear"),
        (lambda: nn.WeightOnlyLinear(3, 5)(random(2, 4).half()), r"'x': expected \[..., 3\]"),
        (
            lambda: nn.convert_weight_only(torch.nn.Linear(3, 3), activations="fp8"),
            "'activations': expected 'exact' or 'auto', got fp8",
        ),
        (lambda: nn.convert_weight_only(3), "'model': expected a torch.nn.Module"),
        (lambda: nn.convert_weight_only(torch.nn.ReLU()), "'model': expected a torch.nn.Linear"),
        (
            lambda: nn.convert_weight_only(torch.nn.Linear(3, 3), module_filter_fn=3),
            "'module_filter_fn': expected a function",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        call()
