"""Norms with their casts, and their gradients, against torch in FP64; and bit for bit against the
cast of a norm that is worked out from the same statistics."""

import octofold
import pytest
from octofold._core.library import library
from octofold._ops.norms import _workspace_rows
from octofold.ops import Normed

from tests.python.casting import GRANULARITIES, cast_side, formats, sides_of
from tests.python.devices import (
    cast,
    cpu_only,
    device,
    gpu_only,
    norm,
    norm_gradient,
    on_gpu,
)

torch = pytest.importorskip("torch")
from tests.python import reference_norms as reference  # noqa: E402

pytestmark = pytest.mark.usefixtures("each_device")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
every_form = pytest.mark.parametrize("form", reference.FORMS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


# A mean in FP32 is off by some half steps, which count where it is large beside the deviation.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}


@pytest.fixture
def normal(rng):
    """Normal numbers of a shape, on the device."""
    there = torch.Generator(device()).manual_seed(int(rng.integers(2**63)))
    return lambda *shape: torch.randn(shape, generator=there, device=device())


def problem(normal, form, rows, cols, dtype):
    batches = next(count for count in (4, 3, 2, 1) if rows % count == 0)
    return reference.problem(normal, form, rows, cols, dtype, batches)


def check(x, operands, kind, residual=None, epsilon=1e-6, **targets):
    """The norm by its statistics, as torch works it out, and its casts; statistics against FP64."""
    source = Normed(x, residual=residual, **operands, kind=kind, epsilon=epsilon)
    casts, numbers = cast(source, **targets), norm(source)
    if residual is None:
        assert casts.norm.sum is numbers.norm.sum is None
    else:
        x = (x.float() + residual.float()).to(x.dtype)
        assert torch.equal(casts.norm.sum, x)
        assert torch.equal(numbers.norm.sum, x)
    mean, rstd = reference.statistics(x, kind, epsilon)
    rtol = 1e-5 if on_gpu() else 1e-6
    torch.testing.assert_close(casts.norm.rstd.double(), rstd, rtol=rtol, atol=0)
    assert torch.equal(numbers.norm.rstd, casts.norm.rstd)
    assert (casts.norm.mean is None) == (kind == "rms")
    if kind == "layer":
        size = x.double().abs().mean(-1)
        assert bool(((casts.norm.mean.double() - mean).abs() <= 2e-6 * size + 1e-30).all())
    y = reference.apply(x, casts.norm.mean, casts.norm.rstd, operands).to(x.dtype)
    assert torch.equal(numbers.y, y)
    assert len(sides_of(casts)) == len(targets)
    for one, transpose in sides_of(casts):
        assert one.equals(cast_side(y, targets["transposed" if transpose else "rows"], transpose))


@every_dtype
@every_form
def test_is_the_cast_of_the_norm(form, dtype, normal):
    for format, targets in reference.options():
        for rows, cols in ((6, 300), (130, 136)):
            kind, x, operands = problem(normal, form, rows, cols, dtype)
            check(x, operands, kind, epsilon=1e-3, **formats(format, targets))


@every_dtype
@pytest.mark.parametrize(
    ("rule", "power_of_two", "of_codes", "overflow"),
    [
        ("vllm", False, "e4m3", "nan"),
        ("vllm", True, "e5m2", "saturate"),
        ("te", True, "e4m3", "saturate"),
        ("torchao", False, "e5m2", "nan"),
        ("compressed-tensors", False, "e4m3", "saturate"),
    ],
)
def test_by_other_rules(rule, power_of_two, of_codes, overflow, dtype, normal):
    options = {"rule": rule, "power_of_two": power_of_two, "overflow": overflow}
    for granularity in ("1x128", "channel"):
        kind, x, operands = problem(normal, "rms", 40, 2304, dtype)
        x[3], x[5, :200] = 0, 0
        check(x, operands, kind, rows=octofold.Format(of_codes, granularity, **options))


# Rows that a warp holds, several, 256 threads, 512, and none; ragged ones.
LENGTHS = ((8, 128), (6, 512), (132, 1000), (4, 77), (1, 1), (64, 4096), (30, 7168), (16, 20_000))
# Rows that no block holds.
WIDE = ((6, 28_672), (4, 40_000), (3, 70_001), (2, 131_072))
# Far more rows than a GPU has room for at one time, by blocks that stay: groups of threads that
# share a block, or have one; rows that fill them, and that do not; the last turn not for all.
MANY = ((20_003, 128), (9001, 520), (7002, 1000), (6001, 4096), (4001, 5112), (3001, 7168))
LONG = ((1001, 16_384), (701, 28_672))


@gpu_only
@every_dtype
@every_form
def test_rows_of_any_length(form, dtype, normal):
    for shape in LENGTHS + (WIDE if form in ("rms", "everything") else ()):
        kind, x, operands = problem(normal, form, *shape, dtype)
        residual = normal(*shape).to(dtype)
        check(x, operands, kind, rows="1x128")
        check(x, operands, kind, residual, rows="channel")
        if shape in WIDE:
            check(x, operands, kind, residual, rows="1x128")
            check(x, operands, kind, residual, rows="128x128")


@gpu_only
@every_dtype
@pytest.mark.parametrize("targets", ["rows", "transposed", "both"])
@pytest.mark.parametrize("form", ["rms", "layer", "adaptive-rms"])
def test_blocks_that_go_through_many_rows(form, targets, dtype, normal):
    for shape in MANY + LONG if targets == "rows" else MANY[2:4]:
        kind, x, operands = problem(normal, form, *shape, dtype)
        for granularity in ("1x128", "channel") if targets == "rows" else ("1x128",):
            for residual in (None, normal(*shape).to(dtype)):
                check(x, operands, kind, residual, **formats(granularity, targets))


def test_a_row_has_the_same_bits_among_others(normal):
    """More rows than blocks of a GPU, and fewer."""
    kind, x, operands = problem(normal, "layer", 5003, 2048, torch.bfloat16)
    residual = normal(*x.shape).to(x.dtype)

    def normed(rows):
        source = Normed(x[rows], residual=residual[rows], **operands, kind=kind)
        casts = cast(source, rows="channel")
        return casts.rows.data.view(torch.uint8), casts.rows.scale, *casts.norm

    whole = normed(slice(None))
    for start, rows in ((0, 1), (17, 5), (1000, 131), (3000, 2003)):
        some = slice(start, start + rows)
        for part, of_all in zip(normed(some), whole, strict=True):
            assert torch.equal(part, of_all[some])


@every_dtype
@pytest.mark.parametrize("form", ["rms", "everything"])
def test_residual_is_added_first(form, dtype, normal):
    kind, x, operands = problem(normal, form, 34, 200, dtype)
    residual = normal(34, 200).to(dtype)
    pairs = [formats(format, targets) for format, targets in reference.options()]
    for targets in (*pairs, {"rows": "1x128", "transposed": "channel"}):
        check(x, operands, kind, residual, **targets)


def test_leading_dimensions_and_strides(normal):
    x, weight = normal(4, 6, 300), normal(300)
    flat = cast(Normed(x.view(24, 300), weight), rows="1x128")
    result = cast(Normed(x, weight), rows="1x128")
    assert result.rows.shape == (4, 6, 300)
    assert result.rows.scale.shape == (4, 6, 3)
    assert torch.equal(
        result.rows.data.view(24, 300).view(torch.uint8), flat.rows.data.view(torch.uint8)
    )
    rstd = result.norm.rstd
    assert torch.equal(rstd, flat.norm.rstd)
    y = norm(Normed(x, weight)).y
    assert y.shape == x.shape
    assert torch.equal(y.view(24, 300), norm(Normed(x.view(24, 300), weight)).y)
    wide = normal(24, 400)
    wide[:, 50:350] = x.view(24, 300)
    assert cast_side(Normed(wide[:, 50:350], weight), "1x128").equals(flat.rows)
    assert torch.equal(norm(Normed(wide[:, 50:350], weight)).y, y.view(24, 300))
    row = normal(1, 300)
    expected = cast_side(Normed(row.expand(3, 300).contiguous()), "1x128")
    assert cast_side(Normed(row.expand(3, 300)), "1x128").equals(expected)
    gradients = norm_gradient(x, x, rstd, weight=weight)
    expected = norm_gradient(x.view(24, 300), x.view(24, 300), rstd, weight=weight)
    assert torch.equal(gradients.dx.view(24, 300), expected.dx)
    assert torch.equal(gradients.d_weight, expected.d_weight)


def placed(matrix, padding, offset):
    """The same numbers in memory of longer rows that begins elsewhere."""
    rows, cols = matrix.shape
    memory = matrix.new_full((rows * (cols + padding) + offset,), torch.nan)
    view = memory[offset:].view(rows, -1)[:, :cols]
    return view.copy_(matrix)


@every_dtype
def test_memory_anywhere(dtype, normal):
    kind, x, operands = problem(normal, "everything", 36, 272, dtype)
    residual, dy = (normal(36, 272).to(dtype) for _ in range(2))
    _, rstd, mean = cast(Normed(x, residual=residual, **operands, kind=kind), rows="1x128").norm
    plain = norm_gradient(dy, x, rstd, mean, **operands, kind=kind, residual_gradient=residual)
    for padding, offset in ((16, 0), (1, 0), (0, 1), (5, 3)):
        view, other, moved = (placed(m, padding, offset) for m in (x, residual, dy))
        check(view, operands, kind, other, rows="1x128")
        options = {**operands, "kind": kind, "residual_gradient": other}
        gradients = norm_gradient(moved, view, rstd, mean, **options)
        for left, right in zip(gradients, plain, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-2, atol=1e-2)
        shifted = {
            name: torch.cat([value.new_zeros(offset), value.flatten()])[offset:].view(value.shape)
            for name, value in operands.items()
        }
        check(x, shifted, kind, rows="1x128")
    one = {name: value[:1] if value.dim() == 2 else value for name, value in operands.items()}
    for rows in (x[::2], x.flip(0)[3:], x[:1].expand(8, 272)):
        check(rows, one, kind, rows="1x128", transposed="1x128")


@pytest.mark.parametrize("shape", [(0, 256), (5, 0), (0, 0)])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_empty(kind, shape):
    x = torch.zeros(shape)
    operands = {name: torch.zeros(shape[1]) for name in ("weight", "bias")}
    operands |= {name: torch.zeros(1, shape[1]) for name in ("ada_scale", "ada_shift")}
    for granularity in GRANULARITIES:
        result = cast(Normed(x, **operands, kind=kind), **formats(granularity, "both"))
        assert result.rows.equals(octofold.quantize(x, granularity))
        torch.testing.assert_close(
            result.norm.rstd, torch.full((shape[0],), 1e3), rtol=1e-5 * on_gpu(), atol=0
        )
    _, rstd, mean = result.norm
    gradients = norm_gradient(x, x, rstd, mean, **operands, kind=kind)
    assert gradients.dx.shape == shape
    assert all(not gradient.any() for gradient in gradients)


def test_nan_and_infinity_stay_in_their_rows(normal):
    x = normal(4, 256)
    x[0, 3], x[1, 5] = torch.nan, torch.inf
    for kind in ("rms", "layer"):
        result = cast(Normed(x, kind=kind), rows="1x128")
        values = result.rows.dequantize()
        assert bool(values[0].isnan().all())
        assert bool(values[1].isnan().any())
        assert bool(values[2:].isfinite().all())
        gradients = norm_gradient(x, x, result.norm.rstd, result.norm.mean, kind=kind)
        assert bool(gradients.dx[0].isnan().any())
        assert bool(gradients.dx[2:].isfinite().all())


@every_dtype
@every_form
@pytest.mark.parametrize("with_residual", [False, True])
def test_gradients(with_residual, form, dtype, normal):
    shapes = [(6, 300), (130, 77), (64, 128)]
    if on_gpu():
        shapes += [(1, 1000), (1000, 512), (600, 4096), (300, 7168)]
    if on_gpu() and with_residual and form in ("rms", "everything"):
        shapes += [(5, 9000), (700, 16_384), (4, 40_001)]
    for rows, cols in shapes:
        kind, x, operands = problem(normal, form, rows, cols, dtype)
        dy = normal(rows, cols).to(dtype)
        addend = normal(rows, cols).to(dtype) if with_residual else None
        _, rstd, mean = cast(Normed(x, **operands, kind=kind), rows="1x128").norm
        actual = norm_gradient(dy, x, rstd, mean, **operands, residual_gradient=addend, kind=kind)
        expected = reference.gradients(dy, x, kind, 1e-6, operands, addend)
        assert actual.dx.dtype is dtype
        for name, gradient in zip(("x", *reference.OPERANDS), actual, strict=True):
            assert (gradient is None) == (name not in expected)
            if gradient is None:
                continue
            error = torch.linalg.norm(gradient.double() - expected[name])
            limit = max(TOLERANCE[dtype] if name == "x" else 1e-5, 5e-5 * on_gpu())
            # A LayerNorm of one column gives 0, whatever it is given.
            size = torch.linalg.norm(expected[name])
            size += 1e-4 * torch.linalg.norm(dy.double()) * on_gpu()
            assert float(error) <= limit * float(size), name


@cpu_only
def test_workspace_is_the_librarys():
    """Python works it out again, as torch's symbolic sizes cannot go to the library."""
    for cols in (0, 1, 511, 512, 513, 1024, 1365, 4096, 4097, 50_000):
        for batches in (0, 1, 263, 264, 265, 5000):
            assert _workspace_rows(cols, batches) == library.norm_workspace_rows(cols, batches)
