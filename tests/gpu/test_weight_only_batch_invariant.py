"""Batch-invariant products with FP8 weights alone: a row has the same bits in any batch."""

import itertools

import octofold
import pytest
from octofold import Masked, Rows, grouped_gemm_weight_only, tuning
from octofold.nn import WeightOnlyLinear
from octofold.ops import Gathered, gemm_weight_only_gradient, grouped_gemm_weight_only_gradient

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    HALVES,
    ON_GPU,
    assert_same_bits,
    normal,
    operand,
    torch,
)
from tests.gpu.product_support import rows_of, weights
from tests.gpu.targets import is_hopper

COUNTS = 1, 2, 7, 16, 17, 40, 64, 100, 129, 300, 1000
MOST = max(COUNTS)
# On Hopper blocks share the tiles of the second, and not of the first; TMA has not the last two, of
# which one row alone would fit.
SHAPES = (512, 2048), (264, 7168), (200, 301), (1, 2047)
PRODUCTS = {"forward": octofold.gemm_weight_only, "gradient": gemm_weight_only_gradient}


def drawn(generator, rows, columns, dtype):
    """Numbers of magnitudes so different that the order of a sum shows."""
    exponents = torch.randint(-6, 7, (rows, columns), generator=generator, device=DEVICE)
    return (normal(generator, rows, columns) * torch.exp2(exponents.float())).to(DTYPES[dtype])


def some_rows(generator, count):
    return torch.randperm(MOST, generator=generator, device=DEVICE)[:count]


def invariant(product, *arguments, **options):
    return product(*arguments, out_dtype=torch.float32, batch_invariant=True, **options)


@pytest.mark.parametrize("direction", PRODUCTS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("types", [(HALVES[-1], "e4m3"), (HALVES[0], "e5m2")], ids="-".join)
def test_rows_in_any_batch(types, granularity, direction, generator):
    product, (dtype, w_dtype) = PRODUCTS[direction], types
    for n, k in SHAPES:
        w = operand(generator, n, k, w_dtype, granularity)
        x = drawn(generator, MOST, k if direction == "forward" else n, dtype)
        whole = invariant(product, x, w)
        for count in COUNTS:
            rows = some_rows(generator, count)
            assert_same_bits(invariant(product, x[rows], w), whole[rows])
        # Numbers in the other rows do not matter.
        x[:5], x[6:40], x[41:] = torch.inf, torch.nan, -torch.inf
        assert_same_bits(invariant(product, x, w)[[5, 40]], whole[[5, 40]])


def test_bias_and_types_of_results(generator):
    w, bias = operand(generator, 512, 2048, "e4m3", "128x128"), normal(generator, 512)
    x = drawn(generator, MOST, 2048, HALVES[-1])
    whole = octofold.gemm_weight_only(x, w, bias=bias, batch_invariant=True)
    for count in COUNTS:
        rows = some_rows(generator, count)
        some = octofold.gemm_weight_only(x[rows], w, bias=bias, batch_invariant=True)
        assert_same_bits(some, whole[rows])


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("of_x", [("float32", None), ("e4m3", None), ("e5m2", "1x128")])
def test_vectors(of_x, granularity, generator):
    (dtype, scales), most = of_x, 16
    for n, k in SHAPES:
        w = operand(generator, n, k, "e4m3", granularity)
        x = rows_of(generator, most, k, dtype, scales)
        whole = invariant(octofold.gemm_weight_only, x, w)
        for count in range(1, most):
            rows = torch.randperm(most, generator=generator, device=DEVICE)[:count]
            some = taken(x, rows)
            assert_same_bits(invariant(octofold.gemm_weight_only, some, w), whole[rows])


def taken(x, rows):
    if not isinstance(x, octofold.ScaledTensor):
        return bytes_of(x)[rows].view(x.dtype)
    return octofold.ScaledTensor(bytes_of(x.data)[rows].view(x.dtype), x.scale[rows], x.granularity)


def bytes_of(x):
    """torch takes no rows of FP8 by an index."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


SIZES_OF_GROUPS = ((1, 0, 1), (0, 16, 3), (17, 1, 40), (300, 0, 129), (129, 300, 7))
"""Rows of each of three groups, of one batch after another."""


@pytest.mark.parametrize("direction", PRODUCTS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("gathered", [False, True])
def test_rows_of_groups(gathered, granularity, direction, generator):
    """The first row of each group that has any is the same in all batches."""
    n, k = 264, 1152
    w, product, columns = of_groups(generator, n, k, granularity, direction)
    firsts, seen = drawn(generator, 3, columns, HALVES[-1]), {}
    if not is_hopper():  # where blocks share the tiles of a product without groups
        for group in range(3):
            own = octofold.ScaledTensor(w.data[group], w.scale[group], granularity)
            seen[group] = invariant(PRODUCTS[direction], firsts[group : group + 1], own)[0]
    for sizes in SIZES_OF_GROUPS:
        offsets = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device=DEVICE)
        x = drawn(generator, sum(sizes), columns, HALVES[-1])
        for group, begin in enumerate(offsets[:-1].tolist()):
            if sizes[group]:
                x[begin] = firsts[group]
        given = x
        if gathered:
            places = torch.randperm(len(x), generator=generator, device=DEVICE).int()
            given = Gathered(torch.empty_like(x).index_copy_(0, places.long(), x), places)
        out = invariant(product, given, w, Rows(offsets))
        for group, begin in enumerate(offsets[:-1].tolist()):
            if sizes[group]:
                assert_same_bits(out[begin], seen.setdefault(group, out[begin]))
    assert len(seen) == 3


@pytest.mark.parametrize("direction", PRODUCTS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_masked_groups(granularity, direction, generator):
    n, k = 264, 1152
    w, product, columns = of_groups(generator, n, k, granularity, direction)
    firsts, seen = drawn(generator, 3, columns, HALVES[-1]), {}
    for sizes in SIZES_OF_GROUPS:
        room = max(sizes) + 3
        x = drawn(generator, 3 * room, columns, HALVES[-1]).view(3, room, columns)
        x[:, 0] = firsts
        counts = torch.tensor(sizes, dtype=torch.int32, device=DEVICE)
        for expected in {1, min(8, room), room}:
            out = invariant(product, x, w, Masked(counts, expected))
            for group in range(3):
                if sizes[group]:
                    assert_same_bits(out[group, 0], seen.setdefault(group, out[group, 0]))


def of_groups(generator, n, k, granularity, direction):
    """W of three groups, the product, and how many columns x has."""
    w, _ = weights(generator, 3, n, k, granularity)
    if direction == "forward":
        return w, grouped_gemm_weight_only, k
    return w, grouped_gemm_weight_only_gradient, n


@pytest.mark.skipif(not (ON_GPU and is_hopper()), reason="others are not listed for each GPU")
@pytest.mark.parametrize("granularity", ["channel", "128x128"])
def test_every_candidate_sums_alike(granularity, generator):
    """Whichever is chosen, or named."""
    for n, k in ((512, 2048), (264, 7168)):
        w = operand(generator, n, k, "e4m3", granularity)
        x = drawn(generator, 300, k, HALVES[-1])
        expected = invariant(octofold.gemm_weight_only, x[:1], w).to(x.dtype)
        for rows in (1, 12, 40, 300):
            candidates = tuning.candidates(
                f"gemm_weight_only: m {rows}, n {n}, k {k}, x {HALVES[-1]}, "
                f"w e4m3 {granularity}, out {HALVES[-1]}, batch_invariant"
            )
            assert candidates
            for candidate in candidates:
                with tuning.using(candidate):
                    out = octofold.gemm_weight_only(x[:rows], w, batch_invariant=True)
                assert torch.equal(out[:1], expected), (rows, candidate)


def test_layer(generator):
    """The layer and its gradient, also for more tokens than a copy of the weight is quicker for."""
    dtype = DTYPES[HALVES[-1]]
    linear = torch.nn.Linear(1024, 264, device=DEVICE, dtype=dtype)
    layer = WeightOnlyLinear.from_linear(linear, batch_invariant=True)
    x = drawn(generator, 1100, 1024, HALVES[-1]).requires_grad_()
    dy = drawn(generator, 1100, 264, HALVES[-1])
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    for count in (1, 16, 100, 600):
        rows = torch.randperm(1100, generator=generator, device=DEVICE)[:count]
        some = x.detach()[rows].requires_grad_()
        of_some = layer(some)
        assert_same_bits(of_some, y[rows])
        assert_same_bits(torch.autograd.grad(of_some, some, dy[rows])[0], dx[rows])
