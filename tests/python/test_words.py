"""Packed words: against words put together by hand from ml_dtypes' codes; views; what has none."""

import numpy as np
import octofold
import pytest
from octofold.ops import as_words, from_words

from tests.python import reference
from tests.python.devices import cpu_only, pack, unpack

pytestmark = pytest.mark.usefixtures("each_device")

FP8 = ("e4m3", "e5m2")
FORMATS = (*FP8, "float16")
RULES = ("saturate", "nan")
PER_WORD = {"e4m3": 4, "e5m2": 4, "float16": 2}


def words_of(codes):
    """Codes, the first in the lowest bits, by arithmetic."""
    each = 4 // codes.itemsize
    places = np.arange(each, dtype=np.uint32) * (8 * codes.itemsize)
    return (codes.reshape(*codes.shape[:-1], -1, each).astype(np.uint32) << places).sum(
        -1, dtype=np.uint32
    )


def expected_codes(values, format, rule="saturate"):
    if format in FP8:
        return reference.encode(values, format, rule)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float16).view(np.uint16)


def assert_packed(words, codes, format):
    """NaN of float16 may be of any payload."""
    assert words.dtype == np.int32
    actual, expected = words.view(np.uint32), words_of(codes)
    if format in FP8:
        np.testing.assert_array_equal(actual, expected)
        return
    left, right = actual.view(np.uint16), expected.view(np.uint16)
    is_nan = np.isnan(right.view(np.float16))
    np.testing.assert_array_equal(is_nan, np.isnan(left.view(np.float16)))
    np.testing.assert_array_equal(left[~is_nan], right[~is_nan])


def ties(format):
    """Each tie, the numbers beside it, and all below and above, of both signs."""
    codes = np.arange(2 ** (8 * reference.DTYPES[format].itemsize))
    codes = codes.astype(f"u{reference.DTYPES[format].itemsize}").view(reference.DTYPES[format])
    finite = np.unique(np.abs(reference.quietly_cast(codes, np.float32)))
    finite = finite[np.isfinite(finite)].astype(np.float64)
    beyond = {"e4m3": 464, "e5m2": 61440, "float16": 65520}[format]
    middles = np.append((finite[:-1] + finite[1:]) / 2, beyond).astype(np.float32)
    near = np.concatenate([
        middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf)),
        finite.astype(np.float32), np.float32([1e-45, 1e30, np.inf, np.nan]),
    ])  # fmt: skip
    values = np.concatenate([near, -near])
    return np.append(values, np.zeros(-values.size % 4, np.float32))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("format", FORMATS)
def test_packs_float32_around_every_tie(format, rule):
    values = ties(format)
    assert_packed(pack(values, format, overflow=rule), expected_codes(values, format, rule), format)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("format", FORMATS)
def test_packs_every_16_bit_value(format, dtype, rule):
    values = np.arange(65536, dtype=np.uint16).view(reference.DTYPES[dtype])
    codes = expected_codes(reference.quietly_cast(values, np.float32), format, rule)
    assert_packed(pack(values, format, overflow=rule), codes, format)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("format", FP8)
def test_unpacks_every_code_at_every_place(format, dtype):
    codes = np.arange(256, dtype=np.uint8)
    codes = np.stack([np.roll(codes, place) for place in range(4)], -1).reshape(-1)
    expected = codes.view(reference.DTYPES[format]).astype(np.float32)
    for container in (np.int32, np.uint32, np.float32):
        values = unpack(words_of(codes).view(container), format, dtype=dtype)
        assert values.dtype == reference.DTYPES[dtype]
        np.testing.assert_array_equal(values.astype(np.float32), expected)
    signs = np.signbit(values.astype(np.float32))
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(signs[is_number], np.signbit(expected)[is_number])


def test_unpacks_every_float16():
    halves = np.arange(65536, dtype=np.uint16)
    values = unpack(words_of(halves).view(np.float32), "float16")
    np.testing.assert_array_equal(
        values, reference.quietly_cast(halves.view(np.float16), np.float32)
    )


@pytest.mark.parametrize("format", FORMATS)
def test_pack_and_unpack_keep_what_the_format_has(format, rng):
    x = rng.normal(size=(3, 5, 24)).astype(np.float32)
    words = pack(x, format)
    assert words.shape == (3, 5, 24 // PER_WORD[format])
    values = unpack(words, format)
    assert values.shape == x.shape
    np.testing.assert_array_equal(pack(values, format), words)
    np.testing.assert_array_equal(pack(x[:, ::2][1], format), words[1, ::2])


@pytest.mark.parametrize("shape", [(3, 5, 0), (0, 8), (3, 0, 4)])
@pytest.mark.parametrize("format", FORMATS)
def test_of_nothing(format, shape):
    """In both frameworks, whose strides differ there."""
    torch = pytest.importorskip("torch")
    *leading, last = shape
    for x in (np.zeros(shape, np.float32), torch.zeros(shape)):
        words = pack(x, format)
        assert words.shape == (*leading, last // PER_WORD[format])
        assert words.dtype in (np.int32, torch.int32)
        assert from_words(words, format).shape == unpack(words, format).shape == shape


@cpu_only
@pytest.mark.parametrize("format", FORMATS)
def test_views_share_memory(format):
    each = PER_WORD[format]
    numbers = np.zeros((4, 6 * each), reference.DTYPES[format])
    words = as_words(numbers)
    assert words.dtype == np.int32
    assert words.shape == (4, 6)
    assert np.shares_memory(words, numbers)
    words[1, 2] = -1
    is_set = np.zeros(numbers.shape, bool)
    is_set[1, 2 * each : 3 * each] = True
    bits = numbers.view(f"u{numbers.itemsize}")
    np.testing.assert_array_equal(bits, np.where(is_set, np.iinfo(bits.dtype).max, 0))
    for container in (np.int32, np.uint32, np.float32):
        back = from_words(words.view(container), format)
        assert back.dtype == numbers.dtype
        assert back.shape == numbers.shape
        assert np.shares_memory(back, numbers)
    rows = as_words(numbers[1:, each : 3 * each])
    assert rows.shape == (3, 2)
    assert np.shares_memory(rows, numbers)
    assert rows[0, 1] == -1


CODES = np.zeros((4, 24), reference.DTYPES["e4m3"])
MEMORY = np.zeros(64, np.uint8)
UNALIGNED = MEMORY[(-MEMORY.ctypes.data) % 4 + 1 :][:16]
WORDS = np.zeros((4, 8), np.int32)
SIXES = CODES.reshape(-1)[:24].reshape(4, 6)
ODD, ZEROS = np.zeros((2, 3), np.float32), np.zeros(4, np.float32)


@cpu_only
@pytest.mark.parametrize("format", FORMATS)
def test_in_torch(format):
    torch = pytest.importorskip("torch")
    x = torch.randn(8).requires_grad_()
    words = octofold.ops.pack(x, format)
    assert not words.requires_grad
    with pytest.raises(RuntimeError):
        octofold.ops.unpack(words.view(torch.float32).requires_grad_(), format).sum().backward()

    def there_and_back(x):
        return octofold.ops.unpack(octofold.ops.pack(x, format), format)

    x = torch.randn(3, 8)
    try:  # torch 2.13 does, 2.11 does not
        torch.vmap(lambda row: row.view(torch.int32))(torch.zeros((2, 4), dtype=torch.uint8))
    except RuntimeError:
        pytest.skip("this torch maps no views of another dtype")
    assert torch.equal(torch.vmap(there_and_back)(x), there_and_back(x))


@cpu_only
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: as_words(CODES[:, :22]),
            "as_words: argument 'tensor': expected whole words of 4 e4m3 numbers, in rows that are "
            "contiguous, got this: When changing to a larger dtype, its size must be a divisor",
        ),
        (lambda: as_words(CODES.T), "got this: To change to a dtype of a different size, the last"),
        (lambda: as_words(SIXES[:, :4]), "got this: strides (6, 1) at address"),
        (
            lambda: as_words(UNALIGNED.view(reference.DTYPES["e4m3"])),
            "as_words: argument 'tensor': expected whole words of 4 e4m3 numbers",
        ),
        (
            lambda: as_words(WORDS),
            "as_words: argument 'tensor': expected one of e4m3, e5m2, float16",
        ),
        (lambda: as_words(CODES[0, 0, ...]), "got this: Changing the dtype of a 0d array"),
        (
            lambda: from_words(UNALIGNED.view(np.int32), "e4m3"),
            "from_words: argument 'words': expected whole words of 4 e4m3 numbers",
        ),
        (
            lambda: from_words(WORDS.astype(np.int64), "e4m3"),
            "from_words: argument 'words': expected words in int32, uint32 or float32, got int64",
        ),
        (lambda: from_words(WORDS[:, ::2], "e4m3"), "got this: To change to a dtype of a diff"),
        (
            lambda: from_words(WORDS, "bfloat16"),
            "from_words: argument 'format': expected one of e4m3, e5m2, float16, got 'bfloat16'",
        ),
        (lambda: unpack(CODES, "e4m3"), "unpack: argument 'words': expected words in int32"),
        (
            lambda: unpack(WORDS, "e4m3", dtype="e5m2"),
            "unpack: argument 'dtype': expected one of float32, float16, bfloat16",
        ),
        (
            lambda: pack(ODD, "float16"),
            "pack: argument 'x': expected whole words of 2 float16 numbers",
        ),
        (
            lambda: pack(CODES, "e4m3"),
            "pack: argument 'x': expected one of float32, float16, bfloat16",
        ),
        (
            lambda: pack([1.0], "e4m3"),
            "pack: argument 'x': expected a NumPy array or a torch tensor, got builtins.list",
        ),
        (lambda: pack(ZEROS, "e4m3", overflow="wrap"), "overflow"),
    ],
)
def test_says_what_is_wrong(call, message):
    with pytest.raises(octofold.InvalidArgumentError) as caught:
        call()
    assert message in str(caught.value)
