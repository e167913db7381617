"""Arguments may be read-only and empty arrays, scalars of NumPy, dtypes in several spellings;
errors are builtin ones too. Refusals are in test_refused_casts.py and test_refused_products.py."""

import dataclasses
import mmap
import pickle

import numpy as np
import octofold
import pytest
from octofold import (
    BadFormatError,
    Format,
    InvalidArgumentError,
    ScaledTensor,
    UnsupportedError,
    gemm,
    ops,
    quantize,
)

from tests.python import reference

M, N, K = 5, 7, 300


def values(*shape):
    return np.ones(shape, np.float32)


def scaled(rows, cols, granularity="1x128", dtype="e4m3"):
    return quantize(values(rows, cols), Format(dtype, granularity))


def replaced(tensor, **fields):
    parts = {"data": tensor.data, "scale": tensor.scale, "granularity": tensor.granularity}
    return ScaledTensor(**{**parts, **fields})


def test_read_only_arrays_are_inputs(tmp_path, rng):
    x = rng.normal(0, 1, (4, 300)).astype(np.float32)
    path = tmp_path / "weights"
    path.write_bytes(x.tobytes())
    expected = quantize(x)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for buffer in (x.tobytes(), mapped):
        view = np.frombuffer(buffer, np.float32).reshape(x.shape)
        assert not view.flags.writeable
        np.testing.assert_array_equal(quantize(view).data, expected.data)
        codes = np.frombuffer(expected.data.tobytes(), reference.DTYPES["e4m3"]).reshape(x.shape)
        gemm(replaced(expected, data=codes), expected)


def test_numpys_scalars_are_pythons():
    x = values(3, 300)
    epsilon = np.float32(1e-6)
    ops.cast(ops.Normed(x, epsilon=epsilon), rows="1x128")
    a = scaled(3, 300, "tensor")
    gemm(a, a, fast_accumulation=np.True_)


def test_empty_arrays_are_inputs():
    empty = scaled(0, K)
    assert empty.shape == (0, K)
    assert gemm(empty, scaled(N, K, "128x128")).shape == (0, N)
    nothing = gemm(scaled(M, 0), scaled(N, 0, "128x128"), bias=values(N))
    np.testing.assert_array_equal(nothing.astype(np.float32), values(M, N))
    assert ops.convert_dtype(values(0), "e4m3").shape == (0,)


def test_exceptions_are_builtins_too():
    for error, builtin in {
        InvalidArgumentError: ValueError,
        UnsupportedError: NotImplementedError,
        octofold.UnavailableError: RuntimeError,
        octofold.OutOfMemoryError: MemoryError,
        octofold.IoError: OSError,
        BadFormatError: ValueError,
        octofold.InternalError: RuntimeError,
    }.items():
        assert issubclass(error, builtin)
        assert issubclass(error, octofold.Error)
        assert str(pickle.loads(pickle.dumps(error("why")))) == "why"


DTYPE = reference.DTYPES["e5m2"]


@pytest.mark.parametrize("spelling", ["e5m2", "float8_e5m2", DTYPE, DTYPE.type])
def test_dtype_spellings(spelling):
    format = Format(spelling)
    assert format == Format("e5m2")
    assert quantize(values(2, 2), format).dtype == DTYPE


def test_a_format_is_made_again_of_its_fields():
    format = Format("e5m2", "channel", rule="te", power_of_two=False, overflow="nan")
    again = dataclasses.replace(format, power_of_two=True)
    assert Format(**dataclasses.asdict(format)) == pickle.loads(pickle.dumps(format)) == format
    assert again != format
    assert again.options == (True, "nan", "te")
