"""The torch ops of octofold.integrations.serving, without a server."""

from types import SimpleNamespace

import octofold
import pytest

from tests.python.judge import assert_close

torch = pytest.importorskip("torch")

from octofold.integrations import serving  # noqa: E402

PAIRS = [("1x128", "128x128"), ("channel", "channel"), ("channel", "tensor"), ("tensor", "channel")]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def weight_of(granularity, outputs=72, inputs=200):
    return octofold.quantize(torch.randn(outputs, inputs) / 16, granularity)


def assert_product(y, x, weight):
    """x: float64 [rows, in]."""
    values = weight.dequantize().double()
    name = str(y.dtype).removeprefix("torch.")
    assert_close(y.double(), x @ values.T, abs(x) @ abs(values).T, name)


@pytest.mark.parametrize(("of_x", "of_weight"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_linear(of_x, of_weight, dtype):
    x, weight = torch.randn(9, 200).to(dtype), weight_of(of_weight)
    cast = octofold.quantize(x, f"{of_x} torchao")
    y = serving.linear(x, weight, None, of_x)
    assert y.dtype == dtype
    assert_product(y, cast.dequantize().double(), weight)
    of_codes = serving.linear(cast.data, weight, None, of_x, cast.scale, dtype)
    assert torch.equal(y, of_codes)


def test_linear_with_powers_of_two():
    x, weight = torch.randn(9, 200).bfloat16(), weight_of("128x128")
    format = octofold.Format("e4m3", "1x128", rule="torchao", power_of_two=True)
    y = serving.linear(x, weight, None, "1x128", power_of_two=True)
    assert_product(y, octofold.quantize(x, format).dequantize().double(), weight)


def test_linear_is_that_of_inference_linear():
    """The same casts and products, and what decides about them."""
    linear = torch.nn.Linear(200, 72).bfloat16()
    layer = octofold.nn.inference_linear(linear)
    x = torch.randn(9, 200).bfloat16()
    with torch.no_grad():
        y = serving.linear(x, layer.weight.scaled, layer.bias, "1x128")
        assert torch.equal(y, layer(x))


def problems():
    x, bias = torch.randn(5, 256).bfloat16(), torch.randn(72).bfloat16()
    blocks, channels = weight_of("128x128", 72, 256), weight_of("channel", 72, 256)
    codes = octofold.quantize(x, "channel")
    ids, factors = torch.tensor([[0, 1], [1, -1], [0, 1], [1, 0], [0, 1]]), torch.rand(5, 2)
    w13, w2 = (
        octofold.ops.cast(torch.randn(2 * rows, cols) / 16, rows="128x128", matrices=2).rows
        for rows, cols in ((256, 256), (256, 128))
    )
    w13, w2 = (
        octofold.ScaledTensor(w.data.view(2, -1, w.shape[-1]), w.scale, "128x128")
        for w in (w13, w2)
    )
    ops = torch.ops.octofold
    of_blocks, of_channels = (blocks.data, blocks.scale), (channels.data, channels.scale)
    sixteen = torch.bfloat16
    return {
        "linear": (
            ops.serving_linear,
            (x, None, *of_blocks, bias, "1x128", "128x128", sixteen, False),
        ),
        "linear of codes": (
            ops.serving_linear,
            (codes.data, codes.scale, *of_channels, None, "channel", "channel", sixteen, False),
        ),
        "weight only": (ops.serving_weight_only, (x, *of_blocks, bias, "128x128")),
        "experts": (
            ops.serving_experts,
            (x, ids, factors, w13.data, w13.scale, w2.data, w2.scale, "128x128", "swiglu"),
        ),
    }


@pytest.mark.parametrize("name", ["linear", "linear of codes", "weight only", "experts"])
def test_opcheck(name):
    """Fakes say what the ops do. (test_schema multiplies its inputs, which FP8 does not do.)"""
    op, arguments = problems()[name]
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    with torch.no_grad():
        torch.library.opcheck(op.default, arguments, test_utils=tests)


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        ((9, 0), ""),
        ((8, 9), "is for GPUs of compute capability 9.0 (H100, H200), found 8.9"),
        ((12, 0), "is for GPUs of compute capability 9.0 (H100, H200), found 12.0"),
    ],
)
def test_why_not_first(capability, reason):
    assert serving.why_not_first(capability, "gemm", a="1x128", b="128x128") == reason


@pytest.mark.parametrize(
    ("capability", "dtype", "reason"),
    [
        ((8, 6), torch.bfloat16, ""),
        ((8, 7), torch.bfloat16, ""),  # as 8.6
        ((7, 5), torch.float16, ""),
        ((7, 5), torch.bfloat16, "expected a GPU of compute capability 8.0 or later"),
        ((7, 0), torch.float16, "has no kernels for GPUs of compute capability 7.0"),
        ((8, 0), torch.float32, "takes activations of float16 or bfloat16, not torch.float32"),
        ((8, 9), torch.float16, "is for GPUs without FP8 units"),
    ],
)
def test_why_not_weight_only(capability, dtype, reason):
    why_not = serving.why_not_weight_only(capability, dtype, "128x128")
    assert why_not.startswith(reason)
    assert bool(why_not) == bool(reason)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(("of_x", "of_weight"), [("1x128", "128x128"), ("channel", "tensor")])
def test_products_are_compiled_before_requests(of_x, of_weight, invariant, monkeypatch):
    """The products of calls, which recording() tells. Where none can be compiled is no error."""
    compiled = []

    def warm(problems, multiprocessors):
        compiled.extend(problems)
        raise octofold.UnavailableError("no NVRTC")

    gpus = [SimpleNamespace(multiprocessors=132)]
    monkeypatch.setattr(serving, "info", lambda: SimpleNamespace(gpus=gpus))
    monkeypatch.setattr(octofold.kernel_cache, "warm", warm)
    weight, bias = weight_of(of_weight, 256, 384), torch.zeros(256, dtype=torch.bfloat16)
    octofold.set_batch_invariant(invariant)
    try:
        layer = 256, 384, of_x, of_weight, torch.bfloat16, True
        serving.compile_products.__wrapped__(*layer, 0)
        with octofold.tuning.recording() as problems:
            for tokens in (9, 31, 100, 2112):
                x = torch.zeros(tokens, 384, dtype=torch.bfloat16)
                serving.linear(x, weight, bias, of_x)
    finally:
        octofold.set_batch_invariant(False)
    assert len(problems) == 4
    assert set(problems) <= set(compiled)
