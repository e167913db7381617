"""Products whose weights alone are FP8, and their gradients, by each kernel that they may take,
against FP64; scales of blocks that differ by more than a sum can hold; large matrices."""

import itertools

import octofold
import pytest
from octofold import tuning

from tests.gpu.gpu_support import (
    DTYPES,
    GRANULARITIES,
    HALVES,
    ON_GPU,
    assert_same_bits,
    operand,
    refuses_bfloat16,
    torch,
    where_bfloat16_is_refused,
)
from tests.gpu.product_support import ROUNDING, assert_product, rows_of, values_of
from tests.gpu.targets import is_hopper

EXACTLY = {"rtol": 0, "atol": 0, "equal_nan": True}
# A tile that operands are decoded ahead for, and bytes of shared memory that it has.
AHEAD, AHEAD_BYTES = "128x96.w2x2x1.s3.k1.ahead", 64_000
needs_tile_ahead = pytest.mark.skipif(
    not ON_GPU
    or is_hopper()
    or torch.cuda.get_device_properties(0).shared_memory_per_block_optin < AHEAD_BYTES,
    reason="needs a GPU with shared memory for the tile, and without kernels of its own",
)


def assert_forward(x, w, bias=None, **options):
    out = octofold.gemm_weight_only(x, w, bias=bias, **options)
    assert_product(out, x.double(), values_of(w), bias)
    return out


def assert_gradient(gradient, w, **options):
    out = octofold.ops.gemm_weight_only_gradient(gradient, w, **options)
    # Scales of rows of W: weights times these are rounded once more.
    rounds = w.granularity in ("channel", "1x128")
    rounding = 1.01 * ROUNDING[gradient.dtype] if rounds else 0.0
    assert_product(out, gradient.double(), values_of(w).T, weight_rounding=rounding)
    return out


def ahead(call, rows, w):
    with tuning.using(AHEAD):
        return call(rows, w, out_dtype=torch.float32)


@needs_tile_ahead
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("w_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", HALVES)
def test_operands_that_are_decoded_ahead(dtype, w_dtype, granularity, generator):
    for m, n, k in ((131, 264, 656), (70, 300, 301), (300, 392, 1040), (17, 33, 64)):
        x, w = rows_of(generator, m, k, dtype), operand(generator, n, k, w_dtype, granularity)
        out = ahead(octofold.gemm_weight_only, x, w)
        assert_product(out, x.double(), values_of(w))
        assert_same_bits(out, ahead(octofold.gemm_weight_only, x, w))
        if granularity in ("channel", "1x128"):  # as factors of the depth they have another kernel
            continue
        gradient = rows_of(generator, m, n, dtype)
        out = ahead(octofold.ops.gemm_weight_only_gradient, gradient, w)
        assert_product(out, gradient.double(), values_of(w).T)


@needs_tile_ahead
@pytest.mark.parametrize("w_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", HALVES)
def test_codes_that_are_decoded_ahead_are_exact(dtype, w_dtype, generator):
    w = operand(generator, 256, 64, w_dtype, "tensor", power_of_two=True)
    w.data.view(torch.uint8)[:, 21] = torch.arange(256, dtype=torch.uint8, device=w.data.device)
    w.data.view(torch.uint8)[:, :21] = 0
    w.data.view(torch.uint8)[:, 22:] = 0
    x = torch.zeros(100, 64, device=w.data.device, dtype=DTYPES[dtype])
    x[::3, 21] = 1
    out = ahead(octofold.gemm_weight_only, x, w)
    expected = w.data[:, 21].double() * w.scale.double().flatten()[0]
    torch.testing.assert_close(out[::3].double(), expected.expand(34, 256), **EXACTLY)
    is_nan = ~expected.isfinite()  # times 0
    assert out[1::3].isnan().any(dim=0).equal(is_nan)


@where_bfloat16_is_refused
def test_refuses_bfloat16(generator):
    w = operand(generator, 64, 128)
    for rows in (1, 70):
        x, gradient = (rows_of(generator, rows, width, "bfloat16") for width in (128, 64))
        with refuses_bfloat16():
            octofold.gemm_weight_only(x, w)
        with refuses_bfloat16():
            octofold.ops.gemm_weight_only_gradient(gradient, w)


@pytest.mark.skipif(not ON_GPU, reason="takes the CPU too long")
def test_of_large_matrices(generator):
    for (m, n, k), granularity in itertools.product(
        ((16, 8192, 8192), (64, 8192, 8192), (1024, 4096, 7168), (4096, 4096, 4096)), GRANULARITIES
    ):
        w = operand(generator, n, k, "e4m3", granularity)
        for dtype in HALVES:
            x = rows_of(generator, m, k, dtype)
            out = assert_forward(x, w, out_dtype=torch.float32)
            assert_same_bits(out, octofold.gemm_weight_only(x, w, out_dtype=torch.float32))
            gradient = rows_of(generator, m, n, dtype)
            assert_gradient(gradient, w, out_dtype=torch.float32)


# Hopper's own kernels.
needs_hopper = pytest.mark.skipif(not (ON_GPU and is_hopper()), reason="Hopper's own kernels")


def names(m, n, k, w):
    problem = f"gemm_weight_only: m {m}, n {n}, k {k}, w {w}"
    return [name for name in tuning.candidates(problem) if name.startswith("sm90.")]


@needs_hopper
@pytest.mark.parametrize("granularity", ["channel", "128x128", "1x128"])
@pytest.mark.parametrize("size", [(40, 200, 1040), (200, 392, 2064)])
def test_every_candidate(size, granularity, generator):
    m, n, k = size
    x, w = rows_of(generator, m, k, "bfloat16"), operand(generator, n, k, "e4m3", granularity)
    candidates = names(m, n, k, f"e4m3 {granularity}")
    assert candidates
    for candidate in candidates:
        with tuning.using(candidate):
            out = octofold.gemm_weight_only(x, w)
            assert_same_bits(out, octofold.gemm_weight_only(x, w))
        assert_product(out, x.double(), values_of(w))


# Scales from none to more than others times 2^64: few rows have sums for each block, many have
# units.
@needs_hopper
@pytest.mark.parametrize("rows", [24, 1024])
@pytest.mark.parametrize("granularity", ["128x128", "1x128"])
def test_scales_of_any_size(rows, granularity, generator):
    w = operand(generator, 256, 1152, "e4m3", granularity)
    w.scale[:, 0], w.scale[:, 2], w.scale[:, 3] = 0, 0, 2.0**-90
    w.scale[:, 5], w.scale[:, 6] = 2.0**60, 2.0**-40
    w.scale[-1] = 0
    x = rows_of(generator, rows, 1152, "bfloat16")
    out = octofold.gemm_weight_only(x, w, out_dtype=torch.float32)
    assert_product(out, x.double(), values_of(w))
    # If x has zeros at the large blocks, the small ones are exact, or rounded to 16 bits.
    x[:, 5 * 128 : 6 * 128] = 0
    out = octofold.gemm_weight_only(x, w, out_dtype=torch.float32)
    assert_product(out, x.double(), values_of(w), weight_rounding=2.0**-8)


@needs_hopper
@pytest.mark.parametrize("rows", [24, 1024])
def test_a_scale_that_is_nan(rows, generator):
    w = operand(generator, 256, 640, "e4m3", "1x128")
    w.scale[37, 2] = torch.nan
    out = octofold.gemm_weight_only(rows_of(generator, rows, 640, "bfloat16"), w)
    assert out.isnan().any(dim=0).nonzero().flatten().tolist() == [37]
    assert bool(out[:, 37].isnan().all())


@needs_hopper
@pytest.mark.parametrize("granularity", ["channel", "128x128"])
def test_every_candidate_sums_alike(granularity, generator):
    """A batch-invariant product has the same bits by whichever is chosen, or named."""
    for n, k in ((512, 2048), (264, 7168)):
        w = operand(generator, n, k, "e4m3", granularity)
        x = rows_of(generator, 300, k, "bfloat16")
        x *= torch.exp2(torch.randint_like(x, -6, 7))  # so that the order of a sum shows
        options = {"out_dtype": torch.float32, "batch_invariant": True}
        expected = octofold.gemm_weight_only(x[:1], w, **options).to(x.dtype)
        for rows in (1, 12, 40, 300):
            sizes = f"m {rows}, n {n}, k {k}, w e4m3 {granularity}"
            candidates = tuning.candidates(f"gemm_weight_only: {sizes}, batch_invariant")
            assert candidates
            for candidate in candidates:
                with tuning.using(candidate):
                    out = octofold.gemm_weight_only(x[:rows], w, batch_invariant=True)
                assert torch.equal(out[:1], expected), (rows, candidate)
