"""Each bad argument gets its own clear error, and nothing is copied or converted silently."""

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


def unaligned():
    return np.frombuffer(bytes(4 * 6 + 1), np.float32, count=6, offset=1).reshape(2, 3)


def read_only(array):
    array.flags.writeable = False
    return array


# Functions that make x, and what the message says.
QUANTIZE = {
    "list": (lambda: [[1.0]], "argument 'x': expected a NumPy array, .*, got builtins.list"),
    "scalar": (lambda: np.float32(1), "argument 'x': expected a NumPy array"),
    "0 dimensions": (lambda: np.array(1, np.float32), "'x': expected a matrix"),
    "1 dimension": (lambda: values(3), "'x': expected a matrix"),
    "9 dimensions": (lambda: values(*[1] * 9), "'x': expected at most 8 dimensions, got 9"),
    "leading dimensions that no stride walks": (
        lambda: values(4, 3, 2, 8)[:, ::2].transpose(1, 0, 2, 3),
        "'x': expected leading dimensions",
    ),
    "float64": (
        lambda: values(3, 3).astype(float),
        "'x': expected dtype float32, float16 or bfloat16, got float64",
    ),
    "int32": (lambda: values(3, 3).astype(np.int32), "'x': expected dtype .*, got int32"),
    "complex": (
        lambda: values(3, 3).astype(complex),
        "'x': expected dtype .*, got DLPack type code 5",
    ),
    "bool": (lambda: values(3, 3) > 0, "'x': expected dtype .*, got bool"),
    "object": (lambda: values(3, 3).astype(object), "'x': expected a tensor that DLPack can"),
    "text": (lambda: values(3, 3).astype(str), "'x': expected a tensor that DLPack can"),
    "e4m3": (lambda: scaled(3, 3).data, "'x': expected dtype .*, got e4m3"),
    "big-endian": (lambda: values(3, 3).astype(">f4"), "'x': .*native byte order"),
    "transposed": (lambda: values(3, 4).T, "'x': expected contiguous columns .*\\[1, 4\\]"),
    "column step": (lambda: values(3, 8)[:, ::2], "'x': expected contiguous columns"),
    "reversed columns": (lambda: values(3, 4)[:, ::-1], "'x': expected contiguous columns"),
    "unaligned": (unaligned, "'x': expected data aligned to its element size"),
}


@pytest.mark.parametrize("name", QUANTIZE)
def test_quantize_refuses_input(name):
    make, message = QUANTIZE[name]
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        quantize(make())
    assert str(caught.value).startswith("quantize: argument 'x'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "2x2"}, "'format': expected .* granularities: tensor, channel, .*, got '2x2'"),
        ({"format": "mine"}, "'format': expected .* rules: deepgemm, .*, got 'mine'"),
        ({"format": "float16"}, "'format': expected .*dtypes: e4m3, e5m2; .*, got 'float16'"),
        ({"format": "e4m3 e5m2"}, "'format': expected at most one word of each kind .*'e5m2'"),
        ({"format": None}, "'format': expected a Format or a text, got None"),
        ({"scale": values(3)}, "'scale': expected shape"),
        ({"scale": values(3, 1).astype(float)}, "'scale': expected dtype float32, got float64"),
        ({"out": values(3, 4)}, "'out': expected a ScaledTensor, got ndarray"),
        ({"out": scaled(4, 4)}, r"'out': expected shape \[3, 4\]"),
        (
            {"out": scaled(3, 4), "format": "e5m2"},
            "'out': expected codes and scales of the format: e5m2 1x128, got e4m3 1x128",
        ),
        (
            {"out": scaled(3, 4, "tensor"), "format": "channel"},
            "'out': expected .*: e4m3 channel, got e4m3 tensor",
        ),
    ],
)
def test_quantize_refuses_option(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        quantize(values(3, 4), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.dequantize("e4m3"), "'dtype': expected one of float32, .*, got 'e4m3'"),
        (
            lambda a: replaced(a, scale=None).dequantize(),
            "'x.scale': expected a NumPy .*, got None",
        ),
        (lambda a: replaced(a, granularity=7).dequantize(), "'x.granularity': expected text"),
        (
            lambda a: ops.convert_dtype(np.array(1, np.float32), "e4m3"),
            "'x': expected at least 1 dim",
        ),
        (
            lambda a: ops.convert_dtype(np.array(1, reference.DTYPES["e4m3"]), "float32"),
            "'x': expected at least 1 dim",
        ),
        (
            lambda a: ops.convert_dtype(values(4), "e4m3", overflow=1),
            "'overflow': expected text, got 1",
        ),
        (lambda a: ops.scale_shape(None, 1, 4), "text and whole numbers, got None"),
        (lambda a: ops.convert_dtype(values(4)[::2], "e4m3"), "'x': expected contiguous col"),
        (lambda a: ops.convert_dtype(values(4), "e3m4"), "'dtype': expected one of"),
        (lambda a: ops.scale_shape("tensor", -1, 4), "expected sizes of at least 0, got -1"),
        (lambda a: ops.scale_shape("", 1, 4), "granularity '' is not one of"),
    ],
)
def test_other_casts_refuse(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call(scaled(3, 4))


def replaced(tensor, **fields):
    parts = {"data": tensor.data, "scale": tensor.scale, "granularity": tensor.granularity}
    return ScaledTensor(**{**parts, **fields})


def wide_buffer():
    """Codes and an output in one piece of memory."""
    memory = np.zeros(4096, np.uint8)
    codes = memory[: M * K].view(reference.DTYPES["e4m3"]).reshape(M, K)
    return codes, memory[1000 : 1000 + 4 * M * N].view(np.float32).reshape(M, N)


def aliased_gemm(a, b):
    codes, out = wide_buffer()
    return gemm(replaced(a, data=codes), b, out=out)


def half_aliased_c(a, b):
    memory = values(M + 1, N)
    return gemm(a, b, out=memory[1:], c=memory[:-1])


GEMM = [
    (lambda a, b: gemm(a.data, b), "'a': expected dtype float32 or float16 or bfloat16, got e4m3"),
    (lambda a, b: gemm(a, None), "'b': expected a ScaledTensor, got NoneType"),
    (lambda a, b: gemm(a, scaled(N, K + 1)), "'b': expected K = 300 .*, got 301"),
    (
        lambda a, b: gemm(replaced(a, granularity="128x128"), b),
        "'a.scale': expected shape \\[1, 3\\] for granularity 128x128 of 5×300 codes",
    ),
    (lambda a, b: gemm(replaced(a, scale=a.scale.astype(float)), b), "'a.scale': .*dtype"),
    (lambda a, b: gemm(replaced(a, data=values(M, K)), b), "'a': expected dtype e4m3"),
    (lambda a, b: gemm(a, b, out=values(N, M)), "'out': expected shape \\[5, 7\\]"),
    (lambda a, b: gemm(a, b, out=values(M, N).astype(float)), "'out': expected dtype"),
    (lambda a, b: gemm(a, b, out=values(N, M).T), "'out': expected contiguous columns"),
    (lambda a, b: gemm(a, b, out=read_only(values(M, N))), "'out': expected a writable"),
    (lambda a, b: gemm(a, b, out=[0]), "'out': expected a NumPy array.*, got .*list"),
    (
        lambda a, b: gemm(a, b, out=values(M, N), out_dtype="float16"),
        "'out_dtype': expected float32, as is 'out', got 'float16'",
    ),
    (lambda a, b: gemm(a, b, out_dtype="e4m3"), "'out_dtype': expected one of float32"),
    (lambda a, b: gemm(replaced(a, scale=None), b), "'a.scale': expected .*, got None"),
    (lambda a, b: gemm(a, replaced(b, granularity=None)), "'b.granularity': expected text"),
    (lambda a, b: gemm(a, b, fast_accumulation="no"), "'fast_accumulation': expected True"),
    (lambda a, b: gemm(a, b, c=values(M, N + 1)), "'c': expected shape"),
    (lambda a, b: gemm(a, b, c=values(M, N).astype(np.float16)), "'c': expected dtype"),
    (lambda a, b: gemm(a, b, bias=values(M)), "'bias': expected shape \\[7\\]"),
    (lambda a, b: gemm(a, b, bias=values(1, N)), "'bias': expected a vector"),
    (lambda a, b: gemm(a, b, bias=values(2 * N)[::2]), "'bias': expected a contiguous"),
    (lambda a, b: gemm(a, b, fast_accumulation=True), "'fast_accumulation': expected fal"),
    (aliased_gemm, "'out': expected memory of its own, apart from 'a'"),
    (half_aliased_c, "'out': expected memory of its own, apart from 'c'"),
]


@pytest.mark.parametrize(("call", "message"), GEMM, ids=[message[:24] for _, message in GEMM])
def test_gemm_refuses(call, message):
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        call(scaled(M, K), scaled(N, K, "128x128"))
    assert str(caught.value).startswith("gemm: ")


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


def test_cast_wants_something():
    x = values(3, 4)
    for call, message in (
        (lambda: ops.cast(x), "'rows': expected a format here, or for 'transposed'"),
        (lambda: ops.cast(x, rows=3), "'rows': expected a Format or a text, got 3"),
        (lambda: ops.cast(x, rows=ops.Target("channel", out=scaled(3, 4))), "'rows.out': expected"),
        (
            lambda: ops.cast(x, rows="e4m3", transposed="e5m2"),
            "'transposed': expected the dtype of 'rows', as one cast has both: e4m3, got e5m2",
        ),
        (
            lambda: ops.cast(x, rows="te", transposed="channel vllm"),
            "'transposed': expected the rule of 'rows', .*: te, got vllm",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match="cast: argument " + message):
            call()
