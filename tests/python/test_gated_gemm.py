"""Gated products: against FP64 and against the operations one after another."""

import ml_dtypes
import numpy as np
import octofold
import pytest

from tests.python import judge
from tests.python import reference_activations as reference
from tests.python.devices import cpu_only, gated_gemm, on_gpu

pytestmark = pytest.mark.usefixtures("each_device")

SIZES = ((1, 1, 1), (1, 128, 128), (130, 200, 300), (5, 1, 17), (0, 128, 128), (3, 128, 0))
every_activation = pytest.mark.parametrize("activation", reference.GATED)


def operands(rng, m, n, k, dtypes=("e4m3", "e4m3")):
    """a and b of gates and ups about 1, of rows of different magnitude."""
    x = np.exp2(rng.uniform(-2, 2, (m, 1))) * rng.normal(0, 1, (m, k))
    w = rng.normal(0, k**-0.5 if k else 1, (2 * n, k))
    return (
        octofold.quantize(x.astype(np.float32), octofold.Format(dtypes[0])),
        octofold.quantize(w.astype(np.float32), octofold.Format(dtypes[1], "128x128")),
    )


def bfloat16(x):
    return x.astype(np.float32).astype(ml_dtypes.bfloat16)


@every_activation
@pytest.mark.parametrize("dtypes", [("e4m3", "e4m3"), ("e4m3", "e5m2")])
def test_is_as_it_is_defined(dtypes, activation, rng):
    for m, n, k in ((70, 384, 400), (513, 1408, 1040)) if on_gpu() else ((70, 200, 300),):
        a, b = operands(rng, m, n, k, dtypes)
        h = gated_gemm(a, b, activation=activation)
        assert h.shape == (m, n)
        assert h.scale.shape == (m, -(-n // 128))
        assert_gated(h, a, b, activation)


def assert_gated(h, a, b, activation):
    """Half a step of FP8 away; gate, up and the result half a step of BF16, and on a GPU what its
    sums lose. The steepest slope is 1.2."""
    n = h.shape[1]
    left, right = (x.dequantize("float32").astype(float) for x in (a, b))
    product, terms = left @ right.T, abs(left) @ abs(right).T
    gate, up = product[:, :n], product[:, n:]
    value = reference.activation(product, activation, "halves")
    scale = np.repeat(h.scale, 128, axis=1)[:, :n]
    step = np.maximum(np.abs(value) / 16, scale / 1024)
    curve, (factor, _) = reference.curve(activation, gate)[0], reference.factor(activation, up)
    of_up = np.abs(curve * up)  # near a factor of 0 more than the value
    rounded = 1.1 * 2.0**-8 * (1.2 * np.abs(gate * factor) + of_up + np.abs(value))
    if on_gpu():
        lost = judge.TENSOR_CORE_ACCUMULATION * terms
        rounded += 1.2 * lost[:, :n] * (np.abs(factor) + lost[:, n:]) + np.abs(curve) * lost[:, n:]
    assert (np.abs(h.dequantize("float32") - value) <= step + rounded).all()


@cpu_only  # of a GPU's kernels only some round their sums alike: tests/gpu/test_gated_gemm.py
@every_activation
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_is_the_product_and_the_cast_of_its_activation(activation, dtype, rng):
    # (The library goes through the rows in bands.)
    for m, n, k in (*SIZES, (1025, 64, 130)):
        a, b = operands(rng, m, n, k, ("e5m2", "e4m3"))
        both = octofold.gemm(a, b)
        for options in (
            {},
            {"power_of_two": True, "overflow": "nan", "rule": "vllm"},
            {"rule": "te"},
        ):
            format = octofold.Format(dtype, **options)
            fused = gated_gemm(a, b, activation=activation, format=format)
            source = octofold.ops.Activated(both, activation)
            expected = octofold.ops.cast(source, rows=format).rows
            assert fused.equals(expected)
            data, scale = np.ones_like(fused.data), np.full_like(fused.scale, np.nan)
            out = octofold.ScaledTensor(data, scale, "1x128")
            result = gated_gemm(a, b, activation=activation, format=format, out=out)
            assert result is out
            assert out.equals(expected)


def test_nan_and_infinity_are_handed_on():
    a, b = (
        octofold.quantize(np.ones((n, 128), np.float32), u)
        for n, u in ((3, "1x128"), (256, "128x128"))
    )
    a.scale[1:] = [[np.nan], [np.inf]]
    h = gated_gemm(a, b)
    assert h.scale[0, 0] * 448 == pytest.approx(128 * 128, abs=1)
    # NaN, and infinity over the infinite scale that it makes.
    assert h.data.view("u1")[:, 0].tolist() == [0x7E, 0x7F, 0x7F]


def test_leading_dimensions(rng):
    a, b = operands(rng, 12, 128, 256)
    flat = gated_gemm(a, b)
    leading = octofold.ScaledTensor(
        a.data.reshape(3, 4, 256), a.scale.reshape(3, 4, 2), a.granularity
    )
    h = gated_gemm(leading, b)
    assert h.shape == (3, 4, 128)
    assert h.scale.shape == (3, 4, 1)
    np.testing.assert_array_equal(h.data.reshape(12, 128).view("u1"), flat.data.view("u1"))
