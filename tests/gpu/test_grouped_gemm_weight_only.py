"""Products of groups of rows with FP8 weights, and their gradients, against FP64: groups of any
sizes, rows that lie anywhere, every kernel; nothing else is written, whatever the numbers are."""

import itertools
import re

import octofold
import pytest
from octofold import Masked, Rows, grouped_gemm_weight_only, tuning
from octofold.ops import Gathered, grouped_gemm_weight_only_gradient

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    HALVES,
    NAN_CODE,
    ON_GPU,
    Surrounded,
    assert_same_bits,
    captured,
    needs_gpu,
    normal,
    refuses_bfloat16,
    surrounded_copy,
    torch,
    where_bfloat16_is_refused,
    with_data,
)
from tests.gpu.product_support import (
    HOSTILE,
    ROUNDING,
    assert_nothing_outside,
    assert_product,
    offsets_of,
    rows_of,
    values_of,
    weights,
)

# A row or two for each of a few experts, as in decoding; some; many; experts without any.
SIZES = (
    (1,),
    (0, 1, 0, 0, 2, 1, 0, 1),
    (3, 17, 0, 40, 5),
    (130, 1, 0, 77, 300),
)
NK = ((64, 128), (200, 1040), (136, 272), (264, 656))


class Case:
    """Rows of groups, maybe gathered: the last `spare` of out belong to none, and some of gathered
    ones come from nowhere."""

    def __init__(self, generator, sizes, width, dtype, gathered=False, factors=False, spare=3):
        self.sizes, self.rows, self.offsets = sizes, sum(sizes) + spare, offsets_of(sizes)
        self.is_written = torch.arange(self.rows, device=DEVICE) < sum(sizes)
        self.x = self.values = rows_of(generator, self.rows, width, dtype)
        self.given = self.x
        if gathered:
            self._gather(generator, width, dtype, factors)

    def _gather(self, generator, width, dtype, factors):
        slots, tokens = 3, self.rows // 2 + 1
        self.x = rows_of(generator, tokens, width, dtype)
        sources = torch.randint(
            0, tokens * slots, (self.rows,), generator=generator, device=DEVICE, dtype=torch.int32
        )
        lost = torch.arange(self.rows, device=DEVICE) % 7 == 4
        weight = normal(generator, tokens, slots).abs() if factors else None
        self.values = self.x.double()[(sources // slots).long()]
        if weight is not None:
            self.values = self.values * weight.flatten().double()[sources.long()][:, None]
        self.is_written &= ~lost
        sources = torch.where(lost, -1, sources).int()
        self.given = Gathered(self.x, sources, slots=slots, factors=weight)

    def check(self, out, columns_of, bias=None, weight_rounding=0.0):
        """columns_of: W of a group as [columns, width] in FP64."""
        for group, (begin, end) in enumerate(itertools.pairwise(self.offsets.tolist())):
            written = self.is_written[begin:end]
            if not written.any():
                continue
            own = None if bias is None else bias[group]
            values = self.values[begin:end][written].double()
            assert_product(out[begin:end][written], values, columns_of(group), own, weight_rounding)
        assert bool(out[~self.is_written].isnan().all())


def product_of(case, w, parts, dtype, bias=None, candidate=None, out=None):
    n = parts[0].shape[0]
    out = Surrounded(case.rows, n, dtype, padding=4, offset=4) if out is None else out
    with tuning.using(candidate):
        grouped_gemm_weight_only(case.given, w, Rows(case.offsets), bias=bias, out=out.view)
    case.check(out.view, lambda group: values_of(parts[group]), bias)
    return out


def gradient_of(case, w, parts, dtype, candidate=None):
    out = Surrounded(case.rows, parts[0].shape[1], dtype, padding=4, offset=4)
    with tuning.using(candidate):
        grouped_gemm_weight_only_gradient(case.given, w, Rows(case.offsets), out=out.view)
    rounds = w.granularity in ("channel", "1x128")
    rounding = 1.01 * ROUNDING[case.x.dtype] if rounds else 0.0
    case.check(out.view, lambda group: values_of(parts[group]).T, None, rounding)
    return out


def assert_only_written(case, out):
    out.assert_written(int(case.is_written.sum()) * out.view.shape[1])


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_products(dtype, gathered, granularity, generator):
    for index, (sizes, (n, k)) in enumerate(zip(SIZES, NK, strict=True)):
        w, parts = weights(generator, len(sizes), n, k, granularity, ("e4m3", "e5m2")[index % 2])
        case = Case(generator, sizes, k, dtype, gathered, factors=index % 2 == 1)
        bias = 100 * normal(generator, len(sizes), n) if index % 2 else None
        out = product_of(case, w, parts, torch.float32, bias)
        assert_only_written(case, out)
        narrow = product_of(case, w, parts, DTYPES[dtype], bias)
        assert_only_written(case, narrow)
        again = grouped_gemm_weight_only(case.given, w, Rows(case.offsets), bias=bias)
        assert_same_bits(narrow.view[case.is_written], again[case.is_written])


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_gradients(dtype, gathered, granularity, generator):
    for index, (sizes, (k, n)) in enumerate(zip(SIZES, NK, strict=True)):
        w, parts = weights(generator, len(sizes), n, k, granularity, ("e4m3", "e5m2")[index % 2])
        case = Case(generator, sizes, n, dtype, gathered, factors=True)
        assert_only_written(case, gradient_of(case, w, parts, torch.float32))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_masked_rows(granularity, generator):
    for counts, rows, expected in (((0, 200, 3, 77), 200, None), ((1, 0, 2, 1, 0, 0), 64, 1)):
        groups, n, k = len(counts), 264, 400
        w, parts = weights(generator, groups, n, k, granularity)
        x = rows_of(generator, groups * rows, k, HALVES[-1])
        out = Surrounded(groups * rows, n, torch.float32, offset=4)
        numbers = Masked(torch.tensor(counts, dtype=torch.int32, device=DEVICE), expected)
        grouped_gemm_weight_only(
            x.view(groups, rows, k), w, numbers, out=out.view.view(groups, rows, n)
        )
        back = Surrounded(groups * rows, k, torch.float32, offset=4)
        gradient = rows_of(generator, groups * rows, n, HALVES[-1])
        grouped_gemm_weight_only_gradient(
            gradient.view(groups, rows, n), w, numbers, out=back.view.view(groups, rows, k)
        )
        rounding = 1.01 * ROUNDING[x.dtype] if granularity in ("channel", "1x128") else 0.0
        for group, count in enumerate(counts):
            own = slice(group * rows, group * rows + count)
            assert_product(out.view[own], x[own].double(), values_of(parts[group]))
            right = values_of(parts[group]).T
            assert_product(back.view[own], gradient[own].double(), right, None, rounding)
        for result in (out, back):
            result.assert_written(sum(counts) * result.view.shape[1])


def tiles_of(case, w, call=grouped_gemm_weight_only):
    """Names of candidates, one of each tile; those that the planner has for this target."""
    with (
        tuning.using("none of this name"),
        pytest.raises(octofold.InvalidArgumentError, match="expected one of") as caught,
    ):
        call(case.given, w, Rows(case.offsets))
    listed = re.search(r"expected one of (.*), got", str(caught.value))
    assert listed is not None
    tiles = {re.sub(r"\.s\d+", "", name): name for name in listed[1].split(", ")}
    assert len(tiles) > 4  # 7.5 has six
    return list(tiles.values())


@needs_gpu
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("sizes", [(0, 1, 0, 3, 1), (12, 0, 7), (70, 129, 0, 3)])
def test_every_candidate(sizes, gathered, generator):
    n, k = 200, 1040
    w, parts = weights(generator, len(sizes), n, k, "128x128" if gathered else "channel")
    case = Case(generator, sizes, k, HALVES[-1], gathered)
    for candidate in tiles_of(case, w):
        assert_only_written(case, product_of(case, w, parts, torch.float32, None, candidate))


@needs_gpu
@pytest.mark.parametrize("granularity", ["128x128", "1x128"])
def test_every_candidate_of_gradients(granularity, generator):
    sizes, n, k = (0, 37, 5), 272, 400
    w, parts = weights(generator, len(sizes), n, k, granularity)
    case = Case(generator, sizes, n, HALVES[-1], gathered=True, factors=True)
    for candidate in tiles_of(case, w, grouped_gemm_weight_only_gradient):
        gradient_of(case, w, parts, torch.float32, candidate)


@where_bfloat16_is_refused
def test_refuses_bfloat16(generator):
    w, _ = weights(generator, 2, 64, 128, "tensor")
    case = Case(generator, (2, 3), 128, "bfloat16")
    with refuses_bfloat16():
        grouped_gemm_weight_only(case.given, w, Rows(case.offsets))


@pytest.mark.parametrize("sizes", [(1, 0, 2), (70, 5)])
@pytest.mark.parametrize("gathered", [False, True])
def test_of_memory_anywhere(sizes, gathered, generator):
    for offset, padding in ((1, 0), (3, 5), (16, 16), (4, 12), (8, 0)):
        n, k, groups = 130, 300, len(sizes)
        w, parts = weights(generator, groups, n, k, "1x128")
        flat = surrounded_copy(w.data.view(groups * n, k), padding, offset)
        data = flat.as_strided(
            (groups, n, k), (n * flat.stride(0), flat.stride(0), 1), flat.storage_offset()
        )
        w = with_data(w, data)
        case = Case(generator, sizes, k, "float16", gathered)
        case.x = surrounded_copy(case.x, padding, offset)
        case.given = (
            Gathered(case.x, case.given.sources, slots=case.given.slots) if gathered else case.x
        )
        out = Surrounded(case.rows, n, torch.float32, padding, offset)
        assert_only_written(case, product_of(case, w, parts, torch.float32, out=out))


def test_nan_stays_in_its_group(generator):
    w, _ = weights(generator, 3, 100, 304, "128x128")
    w.data.view(torch.uint8)[1, 31, 200] = NAN_CODE
    x = rows_of(generator, 90, 304, "float16")
    out = grouped_gemm_weight_only(x, w, Rows(offsets_of((30, 40, 20))))
    assert out.isnan().any(dim=0).nonzero().flatten().tolist() == [31]
    assert out.isnan().any(dim=1).nonzero().flatten().tolist() == list(range(30, 70))


@needs_gpu
def test_numbers_change_between_replays_of_a_graph(generator):
    rows, groups, n, k = 300, 6, 264, 400
    w, parts = weights(generator, groups, n, k, "128x128")
    x = rows_of(generator, rows, k, HALVES[-1])
    sources = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    offsets = offsets_of([rows // groups] * groups)
    given, options = (Gathered(x, sources), w, Rows(offsets)), {"out_dtype": torch.float32}
    graph, out = captured(lambda: grouped_gemm_weight_only(*given, **options))
    random = torch.Generator().manual_seed(5)
    for _ in range(20):
        cuts = torch.randint(0, rows + 1, (groups - 1,), generator=random).sort().values.tolist()
        sizes = [end - begin for begin, end in itertools.pairwise([0, *cuts, rows])]
        offsets.copy_(offsets_of(sizes))
        sources.copy_(torch.randperm(rows, generator=random))
        out.fill_(torch.nan)
        graph.replay()
        for group, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
            if begin < end:
                values = x[sources[begin:end].long()].double()
                assert_product(out[begin:end], values, values_of(parts[group]))


@needs_gpu
@pytest.mark.parametrize("numbers", HOSTILE)
def test_nothing_outside_is_written_whatever_the_numbers(numbers, generator):
    rows, n, k, groups = 200, 264, 400, 3
    hostile = torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
    w, _ = weights(generator, groups, n, k, "128x128")
    x = surrounded_copy(rows_of(generator, rows, k, "float16"), padding=8, offset=8)
    sources = torch.tensor([*numbers, 5], dtype=torch.int32, device=DEVICE).repeat(rows // 5)
    for given in (x, Gathered(x, sources, slots=2), Gathered(x[:1], sources)):
        for dtype in (torch.float16, torch.float32):
            out = Surrounded(rows, n, dtype, padding=8, offset=8)
            grouped_gemm_weight_only(given, w, Rows(hostile), out=out.view)
            assert_nothing_outside(out)
    masked = Surrounded(groups * 64, n, torch.float32, offset=8)
    grouped_gemm_weight_only(
        x[: groups * 64].view(groups, 64, k),
        w,
        Masked(hostile[:groups]),
        out=masked.view.view(groups, 64, n),
    )
    assert_nothing_outside(masked)


@pytest.mark.skipif(not ON_GPU, reason="takes the CPU too long")
@pytest.mark.parametrize("tokens", [1, 8, 64, 2048])
def test_experts_of_a_model(tokens, generator):
    """128 experts of 2048 × 768, eight for each token."""
    groups, n, k, slots = 128, 1536, 2048, 8
    w, parts = weights(generator, groups, n, k, "128x128")
    x = rows_of(generator, tokens, k, HALVES[-1])
    logits = normal(generator, tokens, groups)
    ids = logits.topk(slots).indices.int()
    order = octofold.ops.sort_by_expert(ids, groups)
    out = grouped_gemm_weight_only(
        Gathered(x, order.sources, slots=slots), w, Rows(order.offsets), out_dtype=torch.float32
    )
    again = grouped_gemm_weight_only(
        Gathered(x, order.sources, slots=slots), w, Rows(order.offsets), out_dtype=torch.float32
    )
    assert_same_bits(out, again)
    bounds = order.offsets.tolist()
    for group, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if begin < end:
            values = x[(order.sources[begin:end] // slots).long()].double()
            assert_product(out[begin:end], values, values_of(parts[group]))
