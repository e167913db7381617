"""Casts of rows in groups, of gathered rows and of stacks on the GPU. Whatever offsets and sources
hold, nothing outside of the tensors is touched, and the same input gives the same bits."""

import itertools
import math

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, DTYPES, bits, captured, needs_gpu, normal, torch
from tests.gpu.product_support import offsets_of
from tests.python.casting import GRANULARITIES

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

    def __init__(self, shape, offsets, kind):
        *stack, rows, cols = shape
        granularity, transposed_granularity, targets = kind
        groups = None if offsets is None else offsets.numel() - 1
        columns = rows if groups is None else 128 * (rows // 128 + groups)
        self.memory, self.results = [], []
        of_transpose = transposed_granularity or granularity
        for wanted, of, unit in (
            (targets != "transposed", (*stack, rows, cols), granularity),
            (targets != "rows", (*stack, cols, columns), of_transpose),
        ):
            if not wanted:
                self.results += [None, None]
                continue
            self.results.append(self._poisoned(of, torch.float8_e4m3fn))
            scale = octofold.ops.scale_shape(unit, *of, matrices=of[0] if stack else None)
            # The scales of a matrix lie by its columns, as the GPU has them.
            place = self._poisoned(scale if stack else scale[::-1], torch.float32)
            self.results.append(place if stack else place.t())
        self.poison()

    def _poisoned(self, shape, dtype):
        count = math.prod(shape)
        self.memory.append(torch.empty(count + 2 * self.GUARD, dtype=dtype, device=DEVICE))
        return self.memory[-1][self.GUARD : self.GUARD + count].view(shape)

    def poison(self):
        for memory in self.memory:
            memory.view(torch.uint8).fill_(POISON)

    def assert_guards(self):
        for memory in self.memory:
            for guard in (memory[: self.GUARD], memory[-self.GUARD :]):
                assert bool((guard.view(torch.uint8) == POISON).all())

    def bytes(self):
        return [memory.view(torch.uint8).clone() for memory in self.memory]


def targets_of(written, kind, rule):
    """The targets that cast() is given, to write there."""
    granularity, transposed_granularity, _ = kind
    data, scale, transposed, transposed_scale = written.results
    memory = {
        "rows": (data, scale, granularity),
        "transposed": (transposed, transposed_scale, transposed_granularity or granularity),
    }
    return {
        side: octofold.ops.Target(
            octofold.Format(granularity=unit, rule=rule),
            out=octofold.ScaledTensor(codes, scales, unit),
        )
        for side, (codes, scales, unit) in memory.items()
        if codes is not None
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

    graph, _ = captured(write)
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


@needs_gpu
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(
    "offsets", [[2**31 - 1, -(2**31), 7, 7, -3, 0], [-5, 9, 2**30, 3, 3, -1]], ids=str
)
def test_hostile_offsets_of_stacks(offsets, granularity, generator):
    """Matrices that these say are used are cast, and nothing else changes."""
    used = octofold.Rows(torch.tensor(offsets, dtype=torch.int32, device=DEVICE))
    for rows, cols in ((136, 272), (131, 77), (8, 5000)):
        x = normal(generator, 5, rows, cols, dtype="bfloat16")
        alone = octofold.ops.cast(x, rows=granularity, transposed=granularity, matrices=5)
        written = Written((5, rows, cols), None, (granularity, None, "both"))
        octofold.ops.cast(
            x, **targets_of(written, (granularity, None, "both"), "deepgemm"), matrices=used
        )
        written.assert_guards()
        of_rows, of_columns = written.results[:2], written.results[2:]
        for (data, scale), whole in zip((of_rows, of_columns), alone[:2], strict=True):
            for index, (begin, end) in enumerate(itertools.pairwise(offsets)):
                if begin < end:
                    assert torch.equal(bits(data[index]), bits(whole.data[index]))
                    assert torch.equal(scale[index], whole.scale[index])
                else:
                    assert bool((bits(data[index]) == POISON).all())
                    assert bool((scale[index : index + 1].view(torch.uint8) == POISON).all())


@needs_gpu
def test_used_matrices_change_from_replay_to_replay(generator):
    x = normal(generator, 6, 256, 384, dtype="bfloat16")
    offsets = torch.zeros(7, dtype=torch.int32, device=DEVICE)
    outs = [octofold.ops.cast(x, rows=unit, transposed=unit, matrices=6) for unit in GRANULARITIES]
    expected = [[(side.data.clone(), side.scale.clone()) for side in out[:2]] for out in outs]
    targets = [
        [octofold.ops.Target(unit, out=side) for side in out[:2]]
        for unit, out in zip(GRANULARITIES, outs, strict=True)
    ]

    def call():
        for rows, transposed in targets:
            matrices = octofold.Rows(offsets)
            octofold.ops.cast(x, rows=rows, transposed=transposed, matrices=matrices)

    graph, _ = captured(call)
    for sizes in ([0, 3, 0, 1, 0, 0], [1] * 6, [0] * 6, [0, 0, 0, 0, 0, 9]):
        offsets[1:] = torch.tensor(sizes, device=DEVICE).cumsum(0).int()
        for out in outs:
            for side in out[:2]:
                bits(side.data).fill_(0x7F)
        graph.replay()
        for out, sides in zip(outs, expected, strict=True):
            for side, (data, _) in zip(out[:2], sides, strict=True):
                for index, size in enumerate(sizes):
                    whole = bits(data[index]) if size else torch.full_like(bits(data[index]), 0x7F)
                    assert torch.equal(bits(side.data[index]), whole)
