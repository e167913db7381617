"""Norms with their casts on the GPU, bit for bit against the cast of a norm that torch works out
from the same statistics; statistics and gradients against FP64 and the CPU backend."""

import octofold
import pytest

from tests.gpu.gpu_support import (
    DTYPES,
    assert_same_bits,
    normal,
    surrounded_copy,
    torch,
)
from tests.python import reference_norms as reference
from tests.python.casting import cast_side, cast_with

every_form = pytest.mark.parametrize("form", reference.FORMS)
every_source = pytest.mark.parametrize("source", ["bfloat16", "float16", "float32"])
# Rows that a warp holds, several, 256 threads, 512, and none; ragged ones.
SHAPES = ((8, 128), (6, 512), (132, 1000), (4, 77), (1, 1), (64, 4096), (30, 7168), (16, 20_000))
WIDE_SHAPES = ((6, 28_672), (4, 40_000), (3, 70_001), (2, 131_072))


@pytest.fixture
def draw(generator):
    return lambda *shape: normal(generator, *shape)


def problem(draw, form, rows, cols, source, batches=None):
    batches = batches or next(count for count in (4, 3, 2, 1) if rows % count == 0)
    return reference.problem(draw, form, rows, cols, DTYPES[source], batches)


def normed(x, weight=None, bias=None, norm="rms", epsilon=1e-6, residual=None,
           ada_scale=None, ada_shift=None, **options):  # fmt: skip
    source = octofold.ops.Normed(
        x, weight, bias, kind=norm, epsilon=epsilon, residual=residual,
        ada_scale=ada_scale, ada_shift=ada_shift,
    )  # fmt: skip
    return cast_with(source, **options)


def assert_same_casts(actual, expected):
    for left, right in zip(actual[:2], expected[:2], strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            assert left.equals(right)


def check(x, operands, kind, options, residual=None):
    """Returns the casts and the statistics."""
    result = normed(x, **operands, residual=residual, norm=kind, **options)
    if residual is not None:
        assert_same_bits(result.norm.sum, (x.float() + residual.float()).to(x.dtype))
        x = result.norm.sum
    mean, rstd = reference.statistics(x, kind, 1e-6)
    torch.testing.assert_close(result.norm.rstd.double(), rstd, rtol=1e-5, atol=0)
    if kind == "layer":
        size = x.double().abs().mean(-1)
        assert bool(((result.norm.mean.double() - mean).abs() <= 2e-6 * size + 1e-30).all())
    else:
        assert result.norm.mean is None
    y = reference.apply(x, result.norm.mean, result.norm.rstd, operands).to(x.dtype)
    options = dict(options)
    targets = options.pop("targets", "rows")
    for cast, target in ((result.rows, "rows"), (result.transposed, "transposed")):
        assert (cast is not None) == (targets in (target, "both"))
        if cast is not None:
            assert cast.equals(cast_side(y, octofold.Format(**options), target == "transposed"))
    numbers = octofold.ops.norm(octofold.ops.Normed(x, **operands, kind=kind))
    assert_same_bits(numbers.y, y)
    assert_same_bits(numbers.norm.rstd, result.norm.rstd)
    return result


@every_source
@every_form
def test_every_form(form, source, draw):
    for shape in SHAPES:
        kind, x, operands = problem(draw, form, *shape, source)
        check(x, operands, kind, {})
        check(x, operands, kind, {"granularity": "channel"}, draw(*shape).to(x.dtype))


@pytest.mark.parametrize(
    "options",
    [
        {"rule": rule, "power_of_two": power_of_two, "dtype": dtype, "overflow": overflow}
        for rule, power_of_two, dtype, overflow in (
            ("vllm", False, "e4m3", "nan"),
            ("vllm", True, "e5m2", "saturate"),
            ("te", True, "e4m3", "saturate"),
            ("torchao", False, "e5m2", "nan"),
            ("compressed-tensors", False, "e4m3", "saturate"),
        )
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@every_source
def test_every_rule(source, options, draw):
    for granularity in ("1x128", "channel"):
        kind, x, operands = problem(draw, "rms", 40, 2304, source)
        x[3], x[5, :200] = 0, 0
        check(x, operands, kind, {**options, "granularity": granularity})


# Far more rows than the GPU has room for at one time, by blocks that stay: groups of threads that
# share a block, or have one; rows that fill them, and that do not; the last turn not for all.
MANY_ROWS = ((20_003, 128), (9001, 520), (7002, 1000), (6001, 4096), (4001, 5112), (3001, 7168))
LONG_ROWS = ((1001, 16_384), (701, 28_672))


@every_source
@pytest.mark.parametrize("targets", ["rows", "transposed", "both"])
@pytest.mark.parametrize("form", ["rms", "layer", "adaptive-rms"])
def test_blocks_that_go_through_many_rows(form, targets, source, draw):
    for shape in MANY_ROWS if targets == "rows" else MANY_ROWS[2:4]:
        kind, x, operands = problem(draw, form, *shape, source)
        residual = draw(*shape).to(x.dtype)
        for granularity in ("1x128", "channel") if targets == "rows" else ("1x128",):
            options = {"granularity": granularity, "targets": targets}
            check(x, operands, kind, options)
            check(x, operands, kind, options, residual)


@pytest.mark.parametrize("form", ["rms", "layer"])
def test_blocks_that_go_through_many_long_rows(form, draw):
    for shape in LONG_ROWS:
        kind, x, operands = problem(draw, form, *shape, "bfloat16")
        check(x, operands, kind, {})
        check(x, operands, kind, {"granularity": "channel"}, draw(*shape).to(x.dtype))


# More rows than blocks, and fewer.
def test_a_row_has_the_same_bits_among_others(draw):
    kind, x, operands = problem(draw, "layer", 5003, 2048, "bfloat16")
    residual = draw(*x.shape).to(x.dtype)
    arguments = {**operands, "norm": kind, "granularity": "channel"}
    whole = normed(x, **arguments, residual=residual)
    for start, rows in ((0, 1), (17, 5), (1000, 131), (3000, 2003)):
        some = slice(start, start + rows)
        part = normed(x[some], **arguments, residual=residual[some])
        for name in ("sum", "rstd", "mean"):
            assert_same_bits(getattr(part.norm, name), getattr(whole.norm, name)[some])
        for name in ("data", "scale"):
            assert_same_bits(getattr(part.rows, name), getattr(whole.rows, name)[some])


@every_source
@pytest.mark.parametrize("form", ["rms", "everything"])
def test_rows_that_nobody_holds(form, source, draw):
    for shape in WIDE_SHAPES:
        kind, x, operands = problem(draw, form, *shape, source)
        for granularity in ("1x128", "channel", "128x128"):
            check(x, operands, kind, {"granularity": granularity}, draw(*shape).to(x.dtype))


@every_source
def test_strides_and_unaligned_addresses(source, draw):
    kind, x, operands = problem(draw, "everything", 36, 272, source)
    residual = draw(36, 272).to(x.dtype)
    expected = normed(x, **operands, residual=residual, norm=kind)
    dy = draw(36, 272).to(x.dtype)
    arguments = {**operands, "kind": kind}
    gradients = octofold.ops.norm_gradient(
        dy, x, expected.norm.rstd, expected.norm.mean, **arguments, residual_gradient=residual
    )
    for padding, offset in ((16, 0), (1, 0), (0, 1), (5, 3)):
        view, other, moved = (surrounded_copy(m, padding, offset) for m in (x, residual, dy))
        check(view, operands, kind, {}, other)
        actual = octofold.ops.norm_gradient(
            moved,
            view,
            expected.norm.rstd,
            expected.norm.mean,
            **arguments,
            residual_gradient=other,
        )
        for left, right in zip(actual, gradients, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-2, atol=1e-2)
        shifted = {
            name: torch.cat([value.new_zeros(offset), value.flatten()])[offset:].view(value.shape)
            for name, value in operands.items()
        }
        check(x, shifted, kind, {})
    for rows in (x[::2], x.flip(0)[3:], x[:1].expand(8, 272)):
        one = {name: value[:1] if value.dim() == 2 else value for name, value in operands.items()}
        check(rows, one, kind, {"targets": "both"})


# A mean in FP32 is off by some steps, which count where it is large beside the deviation.
TOLERANCE = {"float32": 5e-5, "float16": 1e-3, "bfloat16": 6e-3}


@every_source
@every_form
@pytest.mark.parametrize("with_residual", [False, True], ids=["", "residual"])
def test_gradients(with_residual, form, source, draw):
    for rows, cols in ((6, 128), (130, 77), (1, 1000), (1000, 512), (600, 4096), (300, 7168)):
        check_gradients(draw, form, source, rows, cols, with_residual)


@every_source
@pytest.mark.parametrize("form", ["rms", "everything"])
def test_gradients_of_wide_rows(form, source, draw):
    for rows, cols in ((5, 9000), (700, 16_384), (4, 40_001)):
        check_gradients(draw, form, source, rows, cols, with_residual=True)


def check_gradients(draw, form, source, rows, cols, with_residual):
    kind, x, operands = problem(draw, form, rows, cols, source)
    dy = draw(rows, cols).to(x.dtype)
    addend = draw(rows, cols).to(x.dtype) if with_residual else None
    norm = normed(x, **operands, norm=kind)
    actual = octofold.ops.norm_gradient(
        dy, x, norm.norm.rstd, norm.norm.mean, **operands, residual_gradient=addend, kind=kind
    )
    expected = reference.gradients(dy, x, kind, 1e-6, operands, addend)
    for name, gradient in zip(("x", *reference.OPERANDS), actual, strict=True):
        assert (gradient is None) == (name not in expected)
        if gradient is None:
            continue
        error = torch.linalg.norm(gradient.double() - expected[name])
        limit = TOLERANCE[source] if name == "x" else 5e-5
        # A LayerNorm of one column gives 0, whatever it is given.
        size = torch.linalg.norm(expected[name]) + 1e-4 * torch.linalg.norm(dy.double())
        assert float(error) <= limit * float(size), name


def test_many_rows(draw):
    """Many more than run at one time."""
    kind, x, operands = problem(draw, "rms", 8192, 7168, "bfloat16")
    check(x, operands, kind, {})
    residual = draw(16_384, 4096).bfloat16()
    kind, x, operands = problem(draw, "rms", 16_384, 4096, "bfloat16")
    check(x, operands, kind, {"granularity": "channel"}, residual)
