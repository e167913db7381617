"""Casts of activations and of their gradients on the GPU, which approximates them, against FP64 and
the CPU backend; reductions of their columns, and given magnitudes of units."""

import itertools

import octofold
import pytest
from octofold import ops
from octofold.ops import Activated, ActivationGradient, Target

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    ON_GPU,
    bits,
    needs_gpu,
    normal,
    torch,
)
from tests.python.casting import cast_with, only, with_columns

GATED = ("swiglu", "geglu-tanh", "geglu", "swiglu-oss")
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
        "swiglu-oss": lambda x: x.clamp(max=7) * torch.sigmoid(1.702 * x.clamp(max=7)),
    }
    value = functions[activation](gate)
    if activation == "swiglu-oss":
        up = up.clamp(-7, 7) + 1
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
    whole = octofold.quantize(values.to(DTYPES[source]), octofold.Format(dtype, granularity))
    assert torch.allclose(cast.scale, whole.scale, rtol=2 * rounding, atol=0)


def activated(x, activation="swiglu", layout="halves", x_dtype=None, **options):
    source = octofold.ops.Activated(x, activation, layout=layout, dtype=x_dtype)
    return only(cast_with(source, **options))


def activation_gradient(gradient, x, activation="swiglu", layout="halves", **options):
    source = octofold.ops.ActivationGradient(gradient, x, activation, layout=layout)
    return only(cast_with(source, **options))


def check(generator, activation, layout, shape, source, dtype, granularity):
    gradient, x = inputs(generator, activation, *shape, source)
    value, slope = expected_values(gradient, x, activation, layout)
    for values, cast in (
        (value, lambda **o: activated(x, activation, layout, **o)),
        (
            slope,
            lambda **o: activation_gradient(gradient, x, activation, layout, **o),
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
    """Few codes of activations rounded to BF16 differ, and by one step."""
    gradient, x = inputs(generator, "swiglu", 256, 1024, "bfloat16")
    for actual, expected in (
        (activated(x), activated(x.cpu())),
        (
            activation_gradient(gradient, x),
            activation_gradient(gradient.cpu(), x.cpu()),
        ),
    ):
        differ = (bits(actual.data.cpu()) != bits(expected.data)).float().mean()
        assert float(differ) < 5e-3


def test_rows_of_any_stride(generator):
    _, x = inputs(generator, "swiglu", 200, 384, "bfloat16")
    wide = torch.zeros((200, 900), dtype=x.dtype, device=DEVICE)
    wide[:, 16 : 16 + x.shape[1]] = x
    assert activated(wide[:, 16 : 16 + x.shape[1]]).equals(activated(x))


def check_from_fp8(
    generator,
    activation,
    layout,
    shape,
    source="bfloat16",
    of_x="1x128",
    granularity="1x128",
    padding=0,
    every_target=False,
):
    """The bits of dequantize() and of the cast of that."""
    gradient, x = inputs(generator, activation, *shape, source)
    codes = octofold.quantize(x, octofold.Format("e5m2" if source == "float16" else "e4m3", of_x))
    values = codes.dequantize(source)
    if padding:
        wide = torch.zeros((x.shape[0], x.shape[1] + padding), device=DEVICE).to(codes.data.dtype)
        wide[:, : x.shape[1]] = codes.data
        codes = octofold.ScaledTensor(wide[:, : x.shape[1]], codes.scale, of_x)

    def activate(x, **options):
        if isinstance(x, octofold.ScaledTensor):
            options["x_dtype"] = source
        return activated(x, activation, layout, **options)

    def go_back(x, **options):
        return activation_gradient(gradient, x, activation, layout, **options)

    for cast in (activate, go_back):
        expected = cast(values, granularity=granularity, targets="both")
        actual = [cast(codes, granularity=granularity, targets="both")]
        if every_target:
            alone = ("rows", "transposed")
            actual.append([cast(codes, granularity=granularity, targets=one) for one in alone])
        for pair in actual:
            for left, right in zip(pair, expected, strict=True):
                assert left.equals(right), (cast.__name__, shape, of_x, granularity)


@every_case
def test_every_activation_from_fp8(generator, activation, layout):
    for shape in (SHAPES[0], SHAPES[2]):
        check_from_fp8(generator, activation, layout, shape)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_every_target_from_fp8(generator, layout):
    for shape in SHAPES:
        check_from_fp8(generator, "swiglu", layout, shape, every_target=True)


@pytest.mark.parametrize("of_x", GRANULARITIES)
@pytest.mark.parametrize("source", ["bfloat16", "float16", "float32"])
def test_every_granularity_of_fp8(generator, source, of_x):
    for shape, layout in zip(SHAPES, itertools.cycle(("halves", "interleaved"))):
        check_from_fp8(generator, "swiglu", layout, shape, source, of_x)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_every_granularity_from_fp8(generator, granularity):
    for shape in SHAPES:
        check_from_fp8(generator, "swiglu", "halves", shape, granularity=granularity)


@pytest.mark.parametrize("padding", [1, 4, 8, 16])
@pytest.mark.parametrize("source", ["bfloat16", "float32"])
def test_rows_of_fp8_of_any_stride(generator, source, padding):
    """Vectors of 8, of 4, and none; blocks of up that begin inside of a tile."""
    for shape in ((200, 384), (131, 264), (40, 520)):
        for layout in ("halves", "interleaved"):
            check_from_fp8(generator, "swiglu", layout, shape, source, padding=padding)


def test_nan_from_fp8(generator):
    gradient, x = inputs(generator, "swiglu", 256, 512, "bfloat16")
    x[3, 17] = torch.nan
    codes = octofold.quantize(x)
    assert codes.dequantize()[3, :128].isnan().all()
    actual = activation_gradient(gradient, codes).dequantize()
    assert actual[3, :128].isnan().all()
    assert actual[3, 512:640].isnan().all()
    assert actual[3, 128:512].isfinite().all()
    assert actual[torch.arange(256, device=DEVICE) != 3].isfinite().all()


def uneven(generator, rows, cols, dtype):
    """Columns of very different magnitude and mean."""
    exponents = 16 * torch.rand(cols, generator=generator, device=DEVICE) - 8
    means = normal(generator, cols)
    return ((normal(generator, rows, cols) + means) * torch.exp2(exponents)).to(DTYPES[dtype])


def assert_same_columns(actual, expected):
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(bits(left), bits(right))


def assert_same_casts(actual, expected):
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(bits(left.data), bits(right.data))
        assert torch.equal(bits(left.scale.contiguous()), bits(right.scale.contiguous()))


def casts_and_columns(source, **options):
    casts = cast_with(source, **options)
    return only(casts) if options["columns"] is None else with_columns(casts)


def assert_columns_of_what_is_cast(cast, values, source):
    """`cast` takes targets, granularity and columns. That scales of channels are from the same
    magnitudes says that it is the values that are cast; they are FP64's, rounded to the source."""
    options = {"granularity": "channel", "targets": "transposed"}
    by_channel, columns = cast(**options, columns="both")
    largest = torch.full_like(columns.amax, 448)  # by a number torch would multiply
    assert torch.equal(by_channel.scale.flatten(), columns.amax.clamp(min=1e-4) / largest)
    step = torch.finfo(DTYPES[source]).eps
    assert torch.allclose(columns.amax.double(), values.abs().amax(0), rtol=2 * step, atol=1e-6)
    bound = 2 * step * values.abs().sum(0) + 1e-4
    assert bool(((columns.sums.double() - values.sum(0)).abs() <= bound).all())
    for targets, granularity in (("rows", "1x128"), ("rows", "tensor"), ("both", "1x128")):
        plain = {"granularity": granularity, "targets": targets}
        *casts, again = cast(**plain, columns="both")
        assert_same_columns(again, columns)
        alone = cast(**plain, columns=None)
        assert_same_casts(casts, alone if targets == "both" else [alone])


@pytest.mark.parametrize(
    ("source", "layout"),
    [("bfloat16", "halves"), ("float16", "interleaved"), ("float32", "halves")],
)
def test_columns_of_activations_and_their_gradients(source, layout, generator):
    # Halves that are whole blocks of columns, which tiles take together, and others.
    for rows, cols in ((300, 256), (131, 72), (130, 75)) if layout == "halves" else ((131, 72),):
        x = normal(generator, rows, 2 * cols, dtype=source)
        gradient = normal(generator, rows, cols, dtype=source)
        wide = x.double().requires_grad_()
        halves = wide.chunk(2, -1) if layout == "halves" else (wide[:, ::2], wide[:, 1::2])
        value = torch.nn.functional.silu(halves[0]) * halves[1]
        (slope,) = torch.autograd.grad(value, wide, gradient.double())
        assert_columns_of_what_is_cast(
            lambda x=x, **o: casts_and_columns(octofold.ops.Activated(x, layout=layout), **o),
            value.detach(),
            source,
        )
        assert_columns_of_what_is_cast(
            lambda g=gradient, x=x, **o: casts_and_columns(
                octofold.ops.ActivationGradient(g, x, layout=layout), **o
            ),
            slope,
            source,
        )


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_columns_of_norms(norm, generator):
    x, weight = uneven(generator, 300, 640, "bfloat16"), normal(generator, 640, dtype="bfloat16")

    def cast(**options):
        return casts_and_columns(octofold.ops.Normed(x, weight, kind=norm, epsilon=1e-5), **options)

    wide = x.double()
    if norm == "rms":
        normed = wide * (wide.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    else:
        normed = torch.nn.functional.layer_norm(wide, (640,), eps=1e-5)
    assert_columns_of_what_is_cast(cast, normed * weight.double(), "bfloat16")


def assert_part(part, whole):
    assert torch.equal(bits(part.data), bits(whole.data))
    assert torch.equal(bits(part.scale.contiguous()), bits(whole.scale.contiguous()))


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("rule", ["torchao", "vllm-per-token"])
@pytest.mark.parametrize("name", ["activated", "gradient"])
def test_given_amax_of_activations(name, rule, granularity, generator):
    """The cast of the matrix in memory, which its rows of FP32 tell the device's values of."""
    x = normal(generator, 264, 512, dtype="bfloat16")
    both = normal(generator, 264, 1024, dtype="bfloat16")
    source = {
        "activated": Activated(both),
        "gradient": ActivationGradient(x, both),
    }[name]
    found = ops.cast(source, rows=f"{granularity} {rule}", transposed=f"{granularity} {rule}")
    columns = ops.cast(source, rows=rule, columns="amax").amax
    of_columns = columns.amax(0, keepdim=True) if granularity == "tensor" else columns
    target = Target(f"{granularity} {rule}", amax=of_columns)
    assert_part(ops.cast(source, transposed=target).transposed, found.transposed)
    if granularity == "tensor":
        casts = ops.cast(source, rows=target, transposed=target)
        assert_part(casts.rows, found.rows)
    else:
        casts = ops.cast(source, rows=rule, transposed=target)
        plain = ops.cast(source, rows=rule).rows
        assert torch.equal(bits(casts.rows.data), bits(plain.data))
    assert_part(casts.transposed, found.transposed)


@needs_gpu
def test_x_is_read_once_beside_a_given_amax(generator):
    """Beside rows of 1x128: three kernels, one of which is of tiles."""
    x = normal(generator, 256, 512, dtype="bfloat16")
    target = Target("channel torchao", amax=x.float().abs().amax(0))
    ops.cast(x, rows="1x128 torchao", transposed=target)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        ops.cast(x, rows="1x128 torchao", transposed=target)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    tiles, steps = (sum(kernel in name for name in names) for kernel in ("tile_cast", "scale_step"))
    if tiles + steps == 0:
        pytest.skip("the profiler saw no kernels")
    assert (tiles, steps) == (1, 2)


def test_device_of_amax_is_that_of_x(generator):
    if not ON_GPU:
        pytest.skip("needs two devices")
    x = normal(generator, 16, 16)
    with pytest.raises(octofold.InvalidArgumentError, match=r"rows\.amax"):
        ops.cast(x, rows=Target("tensor", amax=torch.ones(1)))
