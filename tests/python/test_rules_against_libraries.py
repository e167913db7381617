"""Casts on a CPU against the libraries whose names the rules carry, where they are installed. What
runs on GPUs alone is in tests/gpu/test_rules_on_cuda.py.

Scales to the bit; codes to the bit but for the sign of a NaN, which libraries leave to chance.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import octofold
import pytest

from tests.python import reference
from tests.python.casting import GRANULARITIES

torch = pytest.importorskip("torch")

SOURCES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
EXPONENTS = {"float32": (-149, 127), "float16": (-24, 15), "bfloat16": (-133, 127)}


def matrices(rng, source):
    """Matrices of whole blocks of 128 × 128, as one of the libraries takes no others."""

    def of_source(values):
        with np.errstate(over="ignore"):
            return torch.from_numpy(values.astype(np.float32)).to(SOURCES[source])

    yield of_source(rng.normal(0, 1, (256, 384)))
    # Rows of every magnitude; in a last column of units, elements of every magnitude.
    lowest, highest = EXPONENTS[source]
    wide = rng.normal(0, 1, (128, 256)) * np.exp2(rng.uniform(lowest, highest - 3, (128, 1)))
    wide[:, 128:] = np.exp2(rng.uniform(lowest - 2, highest, (128, 128))) * rng.choice([-1, 1], 128)
    yield of_source(wide)
    yield of_source(wide[:, :128] * 2.0**-20)
    # One matrix for each special value, as it may drown the rest of a unit.
    for special in (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -(2.0**-24), 464.0):
        x = rng.normal(0, 1, (128, 256))
        x[rng.random(x.shape) < 0.01] = special
        x[3] = x[:, 128:] = special
        yield of_source(x)


def bits(values, nan):
    """The values as integers, so that zeros have signs; with every NaN the same."""
    integers = values.view(torch.uint8 if values.itemsize == 1 else torch.int32)
    return torch.where(torch.isnan(values.float()), nan, integers).numpy()


def assert_same_cast(actual, codes, scale):
    nan = reference.NAN_CODE
    np.testing.assert_array_equal(bits(actual.data, nan), bits(codes, nan))
    scale = scale.reshape(actual.scale.shape).float()
    np.testing.assert_array_equal(bits(actual.scale, nan), bits(scale, nan))


def units(x, granularity):
    """x as [rows of units, rows in one, columns of units, columns in one]."""
    height, width = reference.unit_sizes(granularity, *x.shape)
    return x.unflatten(1, (-1, width)).unflatten(0, (-1, height))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_compressed_tensors(granularity, source, rng):
    package = pytest.importorskip("compressed_tensors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    helpers = pytest.importorskip("compressed_tensors.quantization.utils.helpers")
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    version = tuple(map(int, package.__version__.split(".")[:2]))
    rule = "compressed-tensors" if version >= (0, 13) else "compressed-tensors-0.12"
    strategy = {
        "tensor": {"strategy": "tensor"},
        "channel": {"strategy": "channel"},
        "1x128": {"strategy": "group", "group_size": 128},
        "128x128": {"strategy": "block", "block_structure": [128, 128]},
    }[granularity]
    args = quantization.QuantizationArgs(num_bits=8, type="float", symmetric=True, **strategy)
    for x in matrices(rng, source):
        low, high = (f(units(x, granularity), dim=(1, 3)) for f in (torch.amin, torch.amax))
        if granularity == "tensor":
            low, high = low.reshape(1), high.reshape(1)
        scale, zero_point = helpers.calculate_qparams(low, high, args)
        codes = forward.quantize(x, scale, zero_point, args, dtype=torch.float8_e4m3fn)
        actual = octofold.quantize(x, octofold.Format(granularity=granularity, rule=rule))
        assert_same_cast(actual, codes, scale)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_torchao_tensors(granularity, dtype, source, rng):
    torchao = pytest.importorskip("torchao.quantization")
    for x in matrices(rng, source):
        unit = {
            "tensor": torchao.PerTensor(),
            "channel": torchao.PerRow(),
            "1x128": torchao.PerBlock([1, 128]),
            "128x128": torchao.PerBlock([128, 128]),
        }[granularity]
        expected = torchao.Float8Tensor.from_hp(x, FORMATS[dtype], unit)
        actual = octofold.quantize(x, octofold.Format(dtype, granularity, rule="torchao-tensor"))
        assert_same_cast(actual, expected.qdata, expected.scale)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_torchao_training(dtype, source, rng):
    config = pytest.importorskip("torchao.float8.config")
    casts = pytest.importorskip("torchao.float8.float8_scaling_utils")
    granularities = {
        "tensor": (config.ScalingGranularity.TENSORWISE, None),
        "channel": (config.ScalingGranularity.AXISWISE, -1),
    }
    for (granularity, (scaling, axis)), power_of_two in itertools.product(
        granularities.items(), (False, True)
    ):
        for x in matrices(rng, source):
            expected = casts.hp_tensor_to_float8_dynamic(
                x,
                FORMATS[dtype],
                None,
                scaling_granularity=scaling,
                axiswise_dim=axis,
                round_scales_to_power_of_2=power_of_two,
            )
            actual = octofold.quantize(
                x, octofold.Format(dtype, granularity, rule="torchao", power_of_two=power_of_two)
            )
            # torchao keeps the factor.
            assert_same_cast(actual, expected._data, expected._scale.reciprocal())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_deepgemm(granularity, source, rng):
    """It is on no index: the operations of torch that per_token_cast_to_fp8 consists of."""
    for x in matrices(rng, source):
        view = units(x, granularity)
        scale = view.abs().float().amax((1, 3), keepdim=True).clamp(1e-4) / 448.0
        codes = (view * (1.0 / scale)).to(torch.float8_e4m3fn).view(x.shape)
        assert_same_cast(octofold.quantize(x, granularity), codes, scale)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_transformers(granularity, source, rng):
    library = pytest.importorskip("transformers.integrations.finegrained_fp8")
    for x, power_of_two in itertools.product(matrices(rng, source), (False, True)):
        config = SimpleNamespace(
            weight_block_size=reference.unit_sizes(granularity, *x.shape),
            scale_fmt="ue8m0" if power_of_two else "float",
        )
        quantizer = SimpleNamespace(quantization_config=config)
        expected = library.Fp8Quantize(quantizer).convert({"weight": x})
        options = {"rule": "transformers", "power_of_two": power_of_two}
        actual = octofold.quantize(x, octofold.Format("e4m3", granularity, **options))
        if not (power_of_two and torch.isinf(actual.scale).any()):  # which e8m0 has not
            assert_same_cast(actual, expected["weight"], expected["weight_scale_inv"])
