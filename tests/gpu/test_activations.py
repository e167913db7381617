"""Casts of activations and of their gradients on the GPU, against FP64 and the CPU backend."""

import itertools

import octofold
import pytest
from gpu_support import DEVICE, DTYPES, GRANULARITIES, bits, needs_gpu, normal, torch

GATED = ("swiglu", "geglu-tanh", "geglu")
ACTIVATIONS = (*GATED, "silu", "gelu", "gelu-tanh", "relu-squared")
CASES = [
    (name, layout)
    for name, layout in itertools.product(ACTIVATIONS, ("halves", "interleaved"))
    if layout == "halves" or name in GATED
]
every_case = pytest.mark.parametrize(("activation", "layout"), CASES)
# Whole tiles; ragged ones, in vectors and not; one row; rows that no block holds.
SHAPES = ((256, 512), (131, 264), (130, 75), (1, 128), (70, 40_000))
HALF_STEP = {"e4m3": (1 / 16, 2.0**-10), "e5m2": (1 / 8, 2.0**-17)}  # relative, of subnormals
LARGEST = {"e4m3": 448, "e5m2": 57344}


def inputs(generator, activation, rows, cols, dtype):
    """A gradient and x."""
    width = 2 * cols if activation in GATED else cols
    magnitude = torch.exp2(6 * torch.rand((rows, 1), generator=generator, device=DEVICE) - 3)
    x = (magnitude * normal(generator, rows, width)).to(DTYPES[dtype])
    return normal(generator, rows, cols, dtype=dtype), x


def expected_values(gradient, x, activation, layout):
    """The activation in FP64, and its gradient as torch differentiates it."""
    x = x.double().requires_grad_()
    gate, up = x, None
    if activation in GATED:
        gate, up = x.chunk(2, -1) if layout == "halves" else (x[:, ::2], x[:, 1::2])
    functions = {
        "swiglu": torch.nn.functional.silu,
        "silu": torch.nn.functional.silu,
        "geglu": torch.nn.functional.gelu,
        "gelu": torch.nn.functional.gelu,
        "geglu-tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "gelu-tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "relu-squared": lambda x: torch.relu(x) ** 2,
    }
    value = functions[activation](gate)
    value = value if up is None else value * up
    (slope,) = torch.autograd.grad(value, x, gradient.double())
    return value.detach(), slope


def assert_cast(cast, values, source, dtype, granularity):
    """Each value is half a step of FP8 from what it stands for, and half a step of the type it is
    rounded to first; each scale belongs to the largest of them."""
    relative, absolute = HALF_STEP[dtype]
    of_source = torch.finfo(DTYPES[source])
    rounding = max(2 * of_source.eps, 1e-5)  # the GPU approximates to some 1e-6
    scales = octofold.ScaledTensor(
        torch.ones_like(cast.data.float()).to(cast.data.dtype), cast.scale, granularity
    ).dequantize()
    bound = torch.maximum(relative * values.abs(), absolute * scales.double())
    error = (cast.dequantize().double() - values).abs()
    rounded = rounding * values.abs() + of_source.smallest_normal * of_source.eps
    rounded += 1e-6 * values.abs().max()  # of terms that cancel, as where a slope is 0
    assert bool((error <= (1 + rounding) * bound + rounded).all())
    whole = octofold.quantize(values.to(DTYPES[source]), dtype, granularity)
    assert torch.allclose(cast.scale, whole.scale, rtol=2 * rounding, atol=0)


def check(generator, activation, layout, shape, source, dtype, granularity):
    gradient, x = inputs(generator, activation, *shape, source)
    value, slope = expected_values(gradient, x, activation, layout)
    for values, cast in (
        (value, lambda **o: octofold.quantize_activation(x, activation, layout, **o)),
        (
            slope,
            lambda **o: octofold.quantize_activation_gradient(gradient, x, activation, layout, **o),
        ),
    ):
        options = {"dtype": dtype, "granularity": granularity}
        rows, transposed = cast(**options, targets="both")
        assert_cast(rows, values, source, dtype, granularity)
        assert_cast(transposed, values.t().contiguous(), source, dtype, granularity)
        # Each target alone, by other kernels: the same bits.
        for alone, other in (
            (cast(**options, targets="rows"), rows),
            (cast(**options, targets="transposed"), transposed),
        ):
            assert torch.equal(bits(alone.data), bits(other.data))
            assert torch.equal(alone.scale, other.scale)


@every_case
def test_every_activation(generator, activation, layout):
    for shape in SHAPES[:3]:
        check(generator, activation, layout, shape, "bfloat16", "e4m3", "1x128")


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("source", ["bfloat16", "float16", "float32"])
def test_every_granularity(generator, granularity, source):
    for shape, layout, dtype in zip(
        SHAPES, itertools.cycle(("halves", "interleaved")), itertools.cycle(("e5m2", "e4m3"))
    ):
        check(generator, "swiglu", layout, shape, source, dtype, granularity)


def test_values_are_nearly_those_of_the_cpu(generator):
    """Of activations rounded to BF16, few differ, and by one step."""
    gradient, x = inputs(generator, "swiglu", 256, 1024, "bfloat16")
    for actual, expected in (
        (octofold.quantize_activation(x), octofold.quantize_activation(x.cpu())),
        (
            octofold.quantize_activation_gradient(gradient, x),
            octofold.quantize_activation_gradient(gradient.cpu(), x.cpu()),
        ),
    ):
        differ = (bits(actual.data.cpu()) != bits(expected.data)).float().mean()
        assert float(differ) < 5e-3


def test_rows_of_any_stride(generator):
    _, x = inputs(generator, "swiglu", 200, 384, "bfloat16")
    wide = torch.zeros((200, 900), dtype=x.dtype, device=DEVICE)
    wide[:, 16 : 16 + x.shape[1]] = x
    assert octofold.quantize_activation(wide[:, 16 : 16 + x.shape[1]]).equals(
        octofold.quantize_activation(x)
    )


@needs_gpu
def test_in_a_graph(generator):
    gradient, x = inputs(generator, "swiglu", 256, 512, "bfloat16")
    expected = octofold.quantize_activation_gradient(gradient, x, targets="both")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = octofold.quantize_activation_gradient(gradient, x, targets="both")
    graph.replay()
    torch.cuda.synchronize()
    for actual, value in zip(captured, expected, strict=True):
        assert actual.equals(value)
