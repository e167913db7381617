"""Packed words of torch tensors: against the CPU backend, which tests/python/test_words.py holds
against ml_dtypes; views; torch.compile."""

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    ON_GPU,
    assert_same_bits,
    bits,
    normal,
    poison,
    torch,
)

FORMATS = ("e4m3", "e5m2", "float16")
RULES = ("saturate", "nan")
PER_WORD = {"e4m3": 4, "e5m2": 4, "float16": 2}
every_format = pytest.mark.parametrize("format", FORMATS)


def every_16_bit_value(dtype):
    values = torch.arange(65536, device=DEVICE, dtype=torch.int32).to(torch.uint16)
    return values.view(dtype)


def near_every_float16():
    """The FP32 numbers next to each FP16 number and next to the middles between them: next to each
    tie of all three formats, as these are FP16 numbers or lie in such middles."""
    upper = torch.arange(2**19, device=DEVICE, dtype=torch.int64) << 13
    steps = torch.tensor([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], device=DEVICE)
    patterns = (upper[:, None] | steps).flatten()
    return (
        torch.where(patterns >= 2**31, patterns - 2**32, patterns)
        .to(torch.int32)
        .view(torch.float32)
    )


@pytest.mark.parametrize("rule", RULES)
@every_format
def test_packs_as_the_cpu(format, rule):
    inputs = (every_16_bit_value(torch.float16), every_16_bit_value(torch.bfloat16))
    for x in (*inputs, near_every_float16()):
        words = octofold.ops.pack(x, format, overflow=rule)
        assert words.dtype is torch.int32
        expected = octofold.ops.pack(x.cpu(), format, overflow=rule).to(DEVICE)
        if format == "float16":  # whose NaN may be of any payload
            words, expected = (octofold.ops.from_words(w, format) for w in (words, expected))
            assert bool((words.isnan() == expected.isnan()).all())
            pair = (words, expected)
            words, expected = (torch.nan_to_num(w, 0.0, torch.inf, -torch.inf) for w in pair)
        assert_same_bits(words, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("container", [torch.int32, torch.uint32, torch.float32])
@every_format
def test_unpacks_every_code(format, container, dtype):
    codes = torch.arange(65536, device=DEVICE, dtype=torch.int32)  # two of FP8, one of FP16
    words = torch.cat([codes | codes << 16, codes << 16 | codes.flip(0)])
    values = octofold.ops.unpack(words.view(container), format, dtype=dtype)
    assert values.dtype is DTYPES[dtype]
    expected = words.view(DTYPES[format]).float().to(DTYPES[dtype])
    assert bool((values.isnan() == expected.isnan()).all())
    values, expected = (torch.where(v.isnan(), torch.zeros_like(v), v) for v in (values, expected))
    assert_same_bits(values, expected)


@every_format
def test_packs_rows_that_lie_apart(format, generator):
    x = normal(generator, 3, 5, 40)
    expected = octofold.ops.pack(x.contiguous(), format)
    assert expected.shape == (3, 5, 40 // PER_WORD[format])
    wide = torch.cat([x, x], -1)
    assert_same_bits(octofold.ops.pack(wide[..., :40], format), expected)
    words = torch.cat([expected, expected], -1)[..., : expected.shape[-1]]
    assert_same_bits(octofold.ops.unpack(words, format), octofold.ops.unpack(expected, format))


@every_format
def test_views_share_memory(format, generator):
    numbers = octofold.ops.convert_dtype(normal(generator, 4, 24), format)
    words = octofold.ops.as_words(numbers)
    assert words.data_ptr() == numbers.data_ptr()
    words[1, 2] = 0
    each = PER_WORD[format]
    assert not bits(numbers)[1, 2 * each : 3 * each].any()
    for container in (torch.int32, torch.uint32, torch.float32):
        back = octofold.ops.from_words(words.view(container), format)
        assert back.data_ptr() == numbers.data_ptr()
        assert_same_bits(back, numbers)
    rows = octofold.ops.as_words(numbers[1:, each:])
    assert rows.data_ptr() == words.data_ptr() + 4 * (words.shape[1] + 1)
    assert_same_bits(rows, words[1:, 1:])


def test_says_what_has_no_words():
    codes = poison(96, DTYPES["e4m3"]).view(4, 24)
    for bad, message in (
        (codes[:, :22], "multiple of 4"),
        (codes.t(), "a contiguous last dimension"),
        (codes[0, 2:6], "a first element at a multiple of 4 bytes, got 2 bytes behind one"),
        (codes.flatten()[:24].view(4, 6)[:, :4], "strides that are multiples of 4"),
        (codes.float(), "expected one of e4m3, e5m2, float16"),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            octofold.ops.as_words(bad)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(dynamic, backend, generator):
    def there_and_back(x):
        words = octofold.ops.pack(x, "e4m3")
        return words, octofold.ops.unpack(words.view(torch.float32), "e4m3", dtype=x.dtype) - x

    torch.compiler.reset()
    compiled = torch.compile(there_and_back, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (33, 260, 1) if dynamic else (33,):
        x = normal(generator, rows, 64)
        for left, right in zip(compiled(x), there_and_back(x), strict=True):
            assert_same_bits(left, right)


def test_has_no_gradient(generator):
    x = normal(generator, 8).requires_grad_()
    assert not octofold.ops.pack(x, "e4m3").requires_grad
    words = octofold.ops.pack(x.detach(), "float16").view(torch.float32).requires_grad_()
    with pytest.raises(RuntimeError):
        octofold.ops.unpack(words, "float16").sum().backward()


def maps_views():
    """True if this torch (2.13 does, 2.11 does not) maps views of another dtype."""
    try:
        torch.vmap(lambda row: row.view(torch.int32))(torch.zeros((2, 4), dtype=torch.uint8))
    except RuntimeError:
        return False
    return True


@every_format
@pytest.mark.skipif(not maps_views(), reason="this torch maps no views of another dtype")
def test_maps_over_rows(format, generator):
    x = normal(generator, 3, 8)
    mapped = torch.vmap(lambda row: octofold.ops.unpack(octofold.ops.pack(row, format), format))(x)
    assert_same_bits(mapped, octofold.ops.unpack(octofold.ops.pack(x, format), format))
