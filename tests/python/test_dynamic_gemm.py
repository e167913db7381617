"""Products that cast their activations: against the operations one after another; bad input."""

import ml_dtypes
import numpy as np
import octofold
import pytest

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def operands(rng, m, n, k, dtype="bfloat16", granularity="128x128"):
    """x of rows of different magnitude, and a weight."""
    x = np.exp2(rng.uniform(-2, 2, (m, 1))) * rng.normal(0, 1, (m, k))
    w = rng.normal(0, 1, (n, k)).astype(np.float32)
    return x.astype(DTYPES[dtype]), octofold.quantize(w, granularity=granularity)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("granularity", ["tensor", "channel", "1x128", "128x128"])
def test_is_the_cast_and_the_product(dtype, granularity, rng):
    for m, n, k in ((1, 128, 128), (130, 200, 300), (5, 1, 17), (0, 128, 128), (3, 128, 0)):
        x, b = operands(rng, m, n, k, dtype, granularity)
        bias = rng.normal(0, 1, n).astype(np.float32)
        for out_dtype in DTYPES:
            for options in (
                {},
                {"power_of_two": True, "overflow": "nan", "profile": "vllm", "dtype": "e5m2"},
                {"profile": "te"},
            ):
                y = octofold.dynamic_gemm(x, b, bias, out_dtype, **options)
                a = octofold.quantize(x, **options)
                expected = octofold.gemm(a, b, bias=bias, out_dtype=out_dtype)
                assert y.dtype == expected.dtype
                np.testing.assert_array_equal(y.view("u1"), expected.view("u1"))


def test_of_nan_and_infinity(rng):
    x, b = operands(rng, 3, 64, 256)
    x[1, 5], x[2, 130] = np.nan, np.inf
    y = octofold.dynamic_gemm(x, b).astype(np.float32)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1:]).all()


def test_leading_dimensions_and_strided_rows(rng):
    x, b = operands(rng, 12, 72, 256)
    flat = octofold.dynamic_gemm(x, b)
    y = octofold.dynamic_gemm(x.reshape(3, 4, 256), b)
    assert y.shape == (3, 4, 72)
    np.testing.assert_array_equal(y.reshape(12, 72).view("u2"), flat.view("u2"))
    wide = np.concatenate([x, x], axis=1)
    y = octofold.dynamic_gemm(wide[::2, 256:], b)
    np.testing.assert_array_equal(y.view("u2"), flat[::2].view("u2"))


X = np.ones((5, 256), ml_dtypes.bfloat16)
B = octofold.quantize(np.ones((300, 256), np.float32), granularity="128x128")
TWO_LEVEL = octofold.ScaledTensor(B.data, B.scale, "128x128", np.ones(300, np.float32))
SHORT = octofold.quantize(np.ones((300, 128), np.float32), granularity="128x128")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": B.data}, "argument 'x': expected dtype float32 or float16 or bfloat16, got e4m3"),
        ({"x": X[0]}, "argument 'x': expected a matrix"),
        ({"x": X.T}, "argument 'x'"),
        ({"x": None}, "argument 'x'"),
        ({"b": X}, "argument 'b': expected a ScaledTensor, got ndarray"),
        ({"b": SHORT}, "argument 'b': expected K = 256 columns as in 'x', got 128"),
        ({"b": TWO_LEVEL}, "argument 'b.channel_scale': expected None: two-level"),
        ({"bias": np.ones(5, np.float32)}, "argument 'bias': expected shape [300]"),
        ({"bias": np.ones(300, np.float16)}, "argument 'bias': expected dtype bfloat16 or float32"),
        ({"out_dtype": "e4m3"}, "argument 'out_dtype': expected one of float32, float16, bfloat16"),
        ({"dtype": "float16"}, "argument 'dtype': expected one of e4m3, e5m2"),
        ({"power_of_two": "yes"}, "argument 'power_of_two': expected True, False or None"),
        ({"overflow": "wrap"}, "overflow 'wrap' is not one of"),
        ({"profile": "mine"}, "profile 'mine' is not one of"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(octofold.InvalidArgumentError) as error:
        octofold.dynamic_gemm(**{"x": X, "b": B, **arguments})
    assert message in str(error.value)


def test_torch(rng):
    torch = pytest.importorskip("torch")
    x = torch.randn(5, 300, dtype=torch.bfloat16)
    b = octofold.quantize(torch.randn(40, 300), granularity="128x128")
    bias = torch.randn(40, dtype=torch.bfloat16)
    expected = octofold.gemm(octofold.quantize(x), b, bias=bias)
    y = octofold.dynamic_gemm(x, b, bias, torch.bfloat16)
    assert torch.equal(y, expected)
    compiled = torch.compile(
        lambda x, b, bias: octofold.dynamic_gemm(x, b, bias), backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(x, b, bias), expected)


@pytest.mark.slow
def test_opcheck(opcheck):
    torch = pytest.importorskip("torch")
    x, bias = torch.randn(5, 300), torch.randn(400)
    b = octofold.quantize(torch.randn(400, 300), granularity="128x128")
    out = torch.zeros(5, 400, dtype=torch.bfloat16)
    options = ("128x128", "e4m3", None, "saturate", "deepgemm")
    arguments = (x, b.data, b.scale, bias, out, *options)
    opcheck(torch.ops.octofold.dynamic_gemm, arguments)
