"""Sums and largest magnitudes of columns on the GPU: sums against FP64, and the same bits whatever
is cast beside them; magnitudes exactly."""

import itertools

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    bits,
    needs_gpu,
    normal,
    surrounded_copy,
    torch,
)
from tests.python.casting import cast_side, cast_with, only, with_columns

SOURCES = ("bfloat16", "float16", "float32")
TARGETS = ("rows", "transposed", "both")
# Whole tiles and ragged ones, in vectors and not; more rows than groups of threads that add them;
# rows that no block holds.
SHAPES = ((256, 512), (131, 264), (129, 77), (1, 128), (3000, 392), (20_000, 40), (70, 40_000))


def uneven(generator, rows, cols, dtype):
    """Columns of very different magnitude and mean."""
    exponents = 16 * torch.rand(cols, generator=generator, device=DEVICE) - 8
    means = normal(generator, cols)
    return ((normal(generator, rows, cols) + means) * torch.exp2(exponents)).to(DTYPES[dtype])


def assert_columns_of(columns, x):
    """FP32 sums of so many numbers are off by some hundred half steps of all that is added."""
    wide = x.double()
    assert columns.sums.dtype is columns.amax.dtype is torch.float32
    error = (columns.sums.double() - wide.sum(0)).abs()
    assert bool((error <= 1e-5 * wide.abs().sum(0)).all())
    assert torch.equal(columns.amax.double(), wide.abs().amax(0))


def assert_same_columns(actual, expected):
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(bits(left), bits(right))


def assert_same_casts(actual, expected):
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(bits(left.data), bits(right.data))
        assert torch.equal(bits(left.scale.contiguous()), bits(right.scale.contiguous()))


def plain_casts(x, targets, granularity):
    return [
        cast_side(x, granularity, transpose)
        for transpose in (False, True)
        if targets in ("both", "transposed" if transpose else "rows")
    ]


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("source", SOURCES)
def test_beside_every_cast(source, granularity, generator):
    is_usual = source == "bfloat16"  # each type is another kernel to compile
    for shape in SHAPES if is_usual else SHAPES[:4]:
        x = uneven(generator, *shape, source)
        first = None
        for targets in TARGETS if is_usual else ("both",):
            *casts, columns = with_columns(
                cast_with(x, columns="both", targets=targets, granularity=granularity)
            )
            assert_columns_of(columns, x)
            assert_same_casts(casts, plain_casts(x, targets, granularity))
            first = first or columns
            assert_same_columns(columns, first)


def test_the_same_bits_whatever_is_cast(generator):
    for shape in SHAPES:
        x = uneven(generator, *shape, "bfloat16")
        *_, expected = with_columns(cast_with(x, columns="both", targets="both"))
        for granularity in GRANULARITIES:
            *_, columns = with_columns(
                cast_with(x, columns="both", targets="both", granularity=granularity)
            )
            assert_same_columns(columns, expected)
        *casts, columns = with_columns(
            cast_with(x, columns="both", targets="both", transposed_granularity="channel")
        )
        assert_same_columns(columns, expected)
        assert_same_casts(
            casts, only(cast_with(x, targets="both", transposed_granularity="channel"))
        )
        *_, sums = with_columns(cast_with(x, columns="sums", targets="both"))
        *_, amax = with_columns(cast_with(x, columns="amax", targets="both"))
        assert_same_columns((sums.sums, amax.amax), expected)


def test_same_input_same_bits(generator):
    x = uneven(generator, 8192, 4096, "bfloat16")
    *_, first = with_columns(cast_with(x, columns="both", targets="both"))
    assert_columns_of(first, x)
    for _ in range(20):
        *_, again = with_columns(cast_with(x, columns="both", targets="both"))
        assert_same_columns(again, first)


@pytest.mark.parametrize("source", SOURCES)
def test_strides_and_unaligned_addresses(source, generator):
    x = uneven(generator, 136, 272, source)
    for padding, offset in ((16, 0), (1, 0), (0, 1), (5, 3)):
        view = surrounded_copy(x, padding, offset)
        assert_columns_of(with_columns(cast_with(view, columns="both", targets="both"))[-1], x)
    for view in (x[::2, 16:], x[5:6].expand(150, 272), x.as_strided((100, 256), (16, 1))):
        assert_columns_of(with_columns(cast_with(view, columns="both", targets="both"))[-1], view)
    leading = x.view(2, 68, 272)
    assert_columns_of(with_columns(cast_with(leading, columns="both", targets="both"))[-1], x)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_of_no_rows(granularity):
    for shape, targets in itertools.product(((0, 300), (0, 16), (5, 0), (0, 0)), TARGETS):
        x = torch.ones(shape, dtype=torch.bfloat16, device=DEVICE)
        *_, columns = with_columns(
            cast_with(x, columns="both", targets=targets, granularity=granularity)
        )
        for result in columns:
            assert result.shape == shape[1:]
            assert not result.any()


@pytest.mark.parametrize("source", SOURCES)
def test_special_values_stay_in_their_columns(source):
    x = torch.ones((300, 256), device=DEVICE)
    x[3, 1], x[140, 2], x[5, 3], x[290, 3] = torch.nan, -torch.inf, torch.inf, -torch.inf
    x[:, 4] = -0.0
    x = x.to(DTYPES[source])
    for targets in TARGETS:
        *_, columns = with_columns(cast_with(x, columns="both", targets=targets))
        sums, amax = (result.cpu() for result in columns)
        torch.testing.assert_close(
            sums[:6], torch.tensor([300, torch.nan, -torch.inf, torch.nan, 0, 300]), equal_nan=True
        )
        torch.testing.assert_close(
            amax[:6], torch.tensor([1, torch.nan, torch.inf, torch.inf, 0, 1]), equal_nan=True
        )
        assert not sums[4].signbit()
        assert bool((sums[5:] == 300).all())
        assert bool((amax[5:] == 1).all())


def results(source, **options):
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
def test_of_activations_and_their_gradients(source, layout, generator):
    # Halves that are whole blocks of columns, which tiles take together, and others.
    for rows, cols in ((300, 256), (131, 72), (130, 75)) if layout == "halves" else ((131, 72),):
        x = normal(generator, rows, 2 * cols, dtype=source)
        gradient = normal(generator, rows, cols, dtype=source)
        wide = x.double().requires_grad_()
        halves = wide.chunk(2, -1) if layout == "halves" else (wide[:, ::2], wide[:, 1::2])
        value = torch.nn.functional.silu(halves[0]) * halves[1]
        (slope,) = torch.autograd.grad(value, wide, gradient.double())
        assert_columns_of_what_is_cast(
            lambda x=x, **o: results(octofold.ops.Activated(x, layout=layout), **o),
            value.detach(),
            source,
        )
        assert_columns_of_what_is_cast(
            lambda g=gradient, x=x, **o: results(
                octofold.ops.ActivationGradient(g, x, layout=layout), **o
            ),
            slope,
            source,
        )


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_of_norms(norm, generator):
    x, weight = uneven(generator, 300, 640, "bfloat16"), normal(generator, 640, dtype="bfloat16")

    def cast(**options):
        return results(octofold.ops.Normed(x, weight, kind=norm, epsilon=1e-5), **options)

    wide = x.double()
    if norm == "rms":
        normed = wide * (wide.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    else:
        normed = torch.nn.functional.layer_norm(wide, (640,), eps=1e-5)
    assert_columns_of_what_is_cast(cast, normed * weight.double(), "bfloat16")


@needs_gpu
def test_in_a_graph(generator):
    x = uneven(generator, 500, 640, "bfloat16")
    *_, expected = with_columns(cast_with(x, columns="both", targets="both"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        *_, captured = with_columns(cast_with(x, columns="both", targets="both"))
    for result in captured:
        result.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert_same_columns(captured, expected)
