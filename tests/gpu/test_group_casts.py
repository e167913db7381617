"""Casts of rows in groups and of gathered rows on the GPU: those of activations as of each
group alone. Whatever offsets and sources hold, nothing outside of the tensors is touched, and the
same input gives the same bits."""

import itertools
import math

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, DTYPES, bits, needs_gpu, normal, torch
from tests.python.casting import cast_with, only

SOURCES = ("bfloat16", "float16", "float32")
RULES = ("deepgemm", "vllm-per-token", "te", "deepseek")
POISON = 0xAA
# Granularity of the rows; that of the transpose, if it is another; the sides that are cast.
KINDS = (
    ("1x128", None, "both"),
    ("1x128", "128x128", "both"),
    ("1x128", "channel", "both"),
    ("1x128", None, "transposed"),
    ("128x128", None, "transposed"),
    ("channel", None, "both"),
    ("channel", None, "transposed"),
    ("tensor", None, "both"),
)
KIND_NAMES = ["-".join(filter(None, kind)) for kind in KINDS]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
every_source = pytest.mark.parametrize("source", SOURCES)
# Sizes of groups, and rows behind them; columns in whole vectors and not.
PARTITIONS = (
    (([256, 128, 384], 0), 512),
    (([5, 0, 140, 1, 128, 0, 127], 60), 392),
    (([0, 0, 300], 1), 77),
    (([3] * 40, 9), 136),
    (([0], 130), 64),
    (([1000], 24), 264),
)


def offsets_of(sizes):
    offsets = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)
    return offsets.to(DEVICE)


def hostile_offsets(rows, groups, generator):
    """Offsets that nobody should give."""
    most = 2**31 - 1
    cases = [
        torch.arange(groups, -1, -1) * rows // groups,
        torch.full((groups + 1,), most),
        torch.full((groups + 1,), -most - 1),
        torch.arange(groups + 1) * rows,
        torch.arange(groups + 1) * 100 - 300,
        torch.randint(-rows, 3 * rows, (groups + 1,), generator=generator, device=DEVICE).cpu(),
    ]
    return [case.to(torch.int32).to(DEVICE) for case in cases]


class Written:
    """The targets of a cast in the midst of poison, as the library writes them."""

    GUARD = 512  # elements on either side

    def __init__(self, shape, offsets, kind, device=DEVICE):
        rows, cols = shape
        granularity, transposed_granularity, targets = kind
        groups = None if offsets is None else offsets.numel() - 1
        columns = rows if groups is None else 128 * (rows // 128 + groups)
        self.memory, self.results = [], []
        of_transpose = transposed_granularity or granularity
        for wanted, of, unit in (
            (targets != "transposed", (rows, cols), granularity),
            (targets != "rows", (cols, columns), of_transpose),
        ):
            if not wanted:
                self.results += [None, None]
                continue
            self.results.append(self._poisoned(of, torch.float8_e4m3fn, device))
            scale = octofold.ops.scale_shape(unit, *of)[::-1]  # its columns, as the GPU has them
            self.results.append(self._poisoned(scale, torch.float32, device).t())
        self.poison()

    def _poisoned(self, shape, dtype, device):
        count = math.prod(shape)
        self.memory.append(torch.empty(count + 2 * self.GUARD, dtype=dtype, device=device))
        return self.memory[-1][self.GUARD : self.GUARD + count].view(shape)

    def poison(self):
        for memory in self.memory:
            memory.view(torch.uint8).fill_(POISON)

    def assert_guards(self):
        for memory in self.memory:
            for guard in (memory[: self.GUARD], memory[-self.GUARD :]):
                assert bool((guard.view(torch.uint8) == POISON).all())

    def bytes(self):
        """The bytes of all memory, any NaN as good as another where it is a scale."""
        texts = []
        for memory in self.memory:
            memory = memory.cpu()
            if memory.dtype is torch.float32:
                memory = torch.where(torch.isnan(memory), torch.nan, memory)
            texts.append(memory.view(torch.uint8))
        return texts


def targets_of(written, kind, rule, transposed_channel_scale=None):
    """The targets that cast() is given, to write there."""
    granularity, transposed_granularity, _ = kind
    data, scale, transposed, transposed_scale = written.results
    units = {"rows": granularity, "transposed": transposed_granularity or granularity}
    memory = {"rows": (data, scale), "transposed": (transposed, transposed_scale)}
    factors = {"rows": None, "transposed": transposed_channel_scale}
    return {
        side: octofold.ops.Target(
            octofold.Format(granularity=unit, rule=rule),
            channel_scale=factors[side],
            out=octofold.ScaledTensor(*memory[side], unit),
        )
        for side, unit in units.items()
        if memory[side][0] is not None
    }


def write_plain(written, x, offsets, kind, rule):
    octofold.ops.cast(x, **targets_of(written, kind, rule), offsets=offsets)


def write_gathered(written, x, sources, slots, factors, offsets, kind, rule, named="factors"):
    source = octofold.ops.Gathered(x, sources, slots=slots, **{named: factors})
    octofold.ops.cast(source, **targets_of(written, kind, rule), offsets=offsets)


def spread_out(generator, rows, cols, source):
    """Units of very different magnitude, rows of zeros, some NaN and infinity."""
    exponents = 40 * torch.rand((rows, 1), generator=generator, device=DEVICE) - 20
    x = normal(generator, rows, cols) * torch.exp2(exponents)
    where = torch.rand((rows, cols), generator=generator, device=DEVICE)
    x = torch.where(where < 0.0005, torch.nan, torch.where(where > 0.9995, torch.inf, x))
    x[:: max(rows // 5, 1)] = 0
    return x.to(DTYPES[source])


def sources_of(generator, count, places, share=0.1):
    """Places, and -1 for some."""
    sources = torch.randint(places, (count,), generator=generator, device=DEVICE)
    nowhere = torch.rand(count, generator=generator, device=DEVICE) < share
    return torch.where(nowhere, -1, sources).to(torch.int32)


def test_gathered_wide_rows(generator):
    """Rows that no block holds, and squares both ways, without groups."""
    x, factors = normal(generator, 9, 100_000, dtype="bfloat16"), normal(generator, 9, 2)
    sources = sources_of(generator, 21, 18)
    for kind in (("channel", None, "rows"), ("128x128", None, "both")):

        def write(written, x, sources, factors, kind=kind):
            write_gathered(written, x, sources, 2, factors, None, kind, "vllm-per-token")

        actual, expected = (
            Written((21, 100_000), None, kind, device) for device in (DEVICE, "cpu")
        )
        write(actual, x, sources, factors)
        write(expected, x.cpu(), sources.cpu(), factors.cpu())
        for left, right in zip(actual.bytes(), expected.bytes(), strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@every_source
def test_activations(source, layout, generator):
    """Activations are approximated on the GPU: each group has the bytes of a cast of its rows."""
    for ((sizes, behind), cols), of_codes in itertools.product(PARTITIONS, (False, True)):
        cols = cols // 2 * 2
        rows = sum(sizes) + behind
        x = normal(generator, rows, 2 * cols, dtype=source)
        gradient = normal(generator, rows, cols, dtype=source)
        offsets = offsets_of(sizes)
        kept = octofold.quantize(x) if of_codes else x
        of_type = {"dtype": source} if of_codes else {}
        for transposed in ("1x128", "128x128"):
            check_groups(
                lambda kept, gradient, of_type=of_type, **options: only(
                    cast_with(octofold.ops.Activated(kept, layout=layout, **of_type), **options)
                ),
                kept, gradient, offsets, transposed,
            )  # fmt: skip
            check_groups(
                lambda kept, gradient, **options: only(
                    cast_with(
                        octofold.ops.ActivationGradient(gradient, kept, layout=layout), **options
                    )
                ),
                kept, gradient, offsets, transposed,
            )  # fmt: skip


def rows_of(x, begin, end):
    if isinstance(x, octofold.ScaledTensor):
        return octofold.ScaledTensor(x.data[begin:end], x.scale[begin:end], x.granularity)
    return x[begin:end]


def check_groups(cast, x, gradient, offsets, transposed):
    rows, groups = cast(
        x, gradient, targets="both", transposed_granularity=transposed, offsets=offsets
    )
    alone = cast(x, gradient, targets="transposed", granularity=transposed, offsets=offsets)
    bounds = offsets.tolist()
    if bounds[-1] > 0:
        expected = cast(rows_of(x, 0, bounds[-1]), gradient[: bounds[-1]])
        assert torch.equal(bits(rows.data[: bounds[-1]]), bits(expected.data))
        assert torch.equal(rows.scale[: bounds[-1]], expected.scale)
    for group, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if begin == end:
            continue
        expected = cast(
            rows_of(x, begin, end), gradient[begin:end], targets="transposed",
            granularity=transposed,
        )  # fmt: skip
        first, count = begin // 128 + group, end - begin
        units = -(-count // 128)
        for found in (groups, alone):
            codes = bits(found.data)[:, 128 * first : 128 * (first + units)]
            assert torch.equal(codes[:, :count], bits(expected.data))
            assert not bool(codes[:, count:].any())
            assert torch.equal(found.scale[:, first : first + units], expected.scale)


@needs_gpu
@every_kind
def test_hostile_offsets_and_sources(kind, generator):
    """Nothing around the targets changes; twice the same is the same."""
    rows, cols, groups, tokens, slots = 390, 200, 7, 40, 3
    x = spread_out(generator, rows, cols, "bfloat16")
    few = spread_out(generator, tokens, cols, "bfloat16")
    factors = normal(generator, tokens, slots)
    sources = torch.randint(-(2**31), 2**31, (rows,), generator=generator, device=DEVICE)
    sources[::2] = torch.arange(0, rows, 2, device=DEVICE) % 150  # beyond 120, some of them
    sources = sources.to(torch.int32)
    for offsets in hostile_offsets(rows, groups, generator):
        for write, inputs in (
            (write_plain, (x, offsets, kind, "deepgemm")),
            (write_gathered, (few, sources, slots, factors, offsets, kind, "deepgemm")),
        ):
            casts = []
            for _ in range(2):
                written = Written((rows, cols), offsets, kind)
                write(written, *inputs)
                written.assert_guards()
                casts.append(written.bytes())
            for left, right in zip(*casts, strict=True):
                assert torch.equal(left, right)


@every_kind
def test_equal_runs(kind, generator):
    (sizes, behind), cols = PARTITIONS[1]
    rows = sum(sizes) + behind
    x, offsets = normal(generator, rows, cols, dtype="bfloat16"), offsets_of(sizes)
    few, factors = normal(generator, 40, cols, dtype="bfloat16"), normal(generator, 40, 4)
    sources = sources_of(generator, rows, 160)
    for write, inputs in (
        (write_plain, (x, offsets, kind, "vllm-per-token")),
        (write_gathered, (few, sources, 4, factors, offsets, kind, "vllm-per-token")),
    ):
        first = None
        for _ in range(20):
            written = Written((rows, cols), offsets, kind)
            write(written, *inputs)
            first = first or written.bytes()
            for left, right in zip(written.bytes(), first, strict=True):
                assert torch.equal(left, right)


@needs_gpu
@every_kind
def test_graph_replays_with_other_groups(kind, generator):
    rows, cols, groups, tokens, slots = 500, 392, 6, 125, 4
    x = normal(generator, rows, cols, dtype="bfloat16")
    few, factors = normal(generator, tokens, cols, dtype="bfloat16"), normal(generator, tokens, 4)
    sources = sources_of(generator, rows, tokens * slots)
    offsets = offsets_of([0] * groups)
    plain, gathered = (Written((rows, cols), offsets, kind) for _ in range(2))

    def write():
        write_plain(plain, x, offsets, kind, "deepgemm")
        write_gathered(gathered, few, sources, slots, factors, offsets, kind, "deepgemm")

    write()  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write()
    for _ in range(10):
        bounds = torch.randint(0, rows + 1, (groups,), generator=generator, device=DEVICE)
        offsets[1:] = bounds.sort().values.to(torch.int32)
        sources.copy_(sources_of(generator, rows, tokens * slots))
        plain.poison(), gathered.poison()
        graph.replay()
        replayed = [*plain.bytes(), *gathered.bytes()]
        plain.poison(), gathered.poison()
        write()
        for left, right in zip(replayed, [*plain.bytes(), *gathered.bytes()], strict=True):
            assert torch.equal(left, right)
