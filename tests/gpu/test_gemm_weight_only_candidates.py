"""Every kernel that gemm_weight_only and its gradient may take on Hopper, and scales of blocks that
differ by more than a sum can hold."""

import octofold
import pytest
from octofold import tuning

from tests.gpu.gpu_support import (
    DTYPES,
    GRANULARITIES,
    assert_same_bits,
    needs_gpu,
    operand,
    torch,
)
from tests.gpu.product_support import assert_product, rows_of, values_of
from tests.gpu.targets import is_hopper

pytestmark = pytest.mark.skipif(not is_hopper(), reason="Hopper's own kernels")


def names(operation, m, n, k, w):
    problem = f"{operation}: m {m}, n {n}, k {k}, w {w}"
    return [name for name in tuning.candidates(problem) if name.startswith("sm90.")]


@needs_gpu
@pytest.mark.parametrize("granularity", ["channel", "128x128", "1x128"])
@pytest.mark.parametrize("size", [(40, 200, 1040), (200, 392, 2064)])
def test_every_candidate(size, granularity, generator):
    m, n, k = size
    x, w = rows_of(generator, m, k, "bfloat16"), operand(generator, n, k, "e4m3", granularity)
    candidates = names("gemm_weight_only", m, n, k, f"e4m3 {granularity}")
    assert candidates
    for candidate in candidates:
        with tuning.using(candidate):
            out = octofold.gemm_weight_only(x, w)
            assert_same_bits(out, octofold.gemm_weight_only(x, w))
        assert_product(out, x.double(), values_of(w))


# Scales from none to more than others times 2^64: few rows have sums for each block, many have
# units.
@needs_gpu
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


@needs_gpu
@pytest.mark.parametrize("rows", [24, 1024])
def test_a_scale_that_is_nan(rows, generator):
    w = operand(generator, 256, 640, "e4m3", "1x128")
    w.scale[37, 2] = torch.nan
    out = octofold.gemm_weight_only(rows_of(generator, rows, 640, "bfloat16"), w)
    assert out.isnan().any(dim=0).nonzero().flatten().tolist() == [37]
    assert bool(out[:, 37].isnan().all())


@needs_gpu
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_gradient_candidates(granularity, generator):
    m, n, k = 150, 272, 400
    gradient = rows_of(generator, m, n, "bfloat16")
    w = operand(generator, n, k, "e5m2", granularity)
    assert names("gemm_weight_only_gradient", m, k, n, f"e5m2 {granularity}")
    out = octofold.ops.gemm_weight_only_gradient(gradient, w, out_dtype=torch.float32)
    rounds = granularity in ("channel", "1x128")
    assert_product(out, gradient.double(), values_of(w).T, weight_rounding=2.0**-8 if rounds else 0)
    assert out.dtype is DTYPES["float32"]
