"""Every configuration that the planner may choose, on ragged shapes: not only those that it chooses
for the shapes of other tests. Each is a kernel to compile, 0.2 s or so: run them in parallel (-n).
"""

import itertools
from typing import NamedTuple

import pytest

from tests.gpu.gpu_support import (
    DTYPES,
    GRANULARITIES,
    ON_GPU,
    Surrounded,
    assert_close,
    assert_fast_accumulation_close,
    candidates,
    gemm_by,
    normal,
    operands,
    product,
    skip_without,
    surrounded_copy,
    with_data,
)
from tests.gpu.targets import is_hopper

skip_without("products")


class Kind(NamedTuple):
    """The properties beside granularities and sizes that decide which kernels there are."""

    out: str = "bfloat16"
    operands_by_tma: bool = True
    output_by_tma: bool = True
    c: str | None = None
    bias: str | None = None
    dtypes: tuple[str, str] = ("e4m3", "e4m3")
    fast: bool = False
    in_place: bool = False  # c is the output itself
    words: bool = False  # operands that threads load consist of words
    onto_c: bool = False  # a C that TMA can address, by the kernels that have it brought by TMA


KINDS = {  # the last two are Hopper's
    "bfloat16": Kind(),
    "bfloat16_addends": Kind(c="bfloat16", bias="float32"),
    "float16_addends": Kind("float16", c="float32", bias="float16", dtypes=("e5m2", "e4m3")),
    "bfloat16_direct": Kind(output_by_tma=False, bias="bfloat16", dtypes=("e4m3", "e5m2")),
    "float32": Kind("float32", output_by_tma=False),
    "float32_addends": Kind("float32", output_by_tma=False, c="float32", bias="float32"),
    "float32_by_tma": Kind("float32"),
    "float32_in_place": Kind("float32", c="float32", in_place=True),
    "float32_in_place_biased": Kind("float32", c="float32", bias="float32", in_place=True),
    "words_load": Kind(operands_by_tma=False, words=True, dtypes=("e4m3", "e5m2")),
    "words_load_addends": Kind(
        "float32", False, False, c="float32", bias="float32", dtypes=("e5m2", "e4m3"), words=True
    ),
    "threads_load": Kind(operands_by_tma=False, output_by_tma=False, dtypes=("e5m2", "e5m2")),
    "threads_load_addends": Kind("float32", False, False, c="float32", bias="float32"),
    "fast": Kind(fast=True),
    "fast_addends": Kind("float32", output_by_tma=False, c="float32", bias="float32", fast=True),
    "fast_threads_load": Kind("float16", False, False, fast=True),
    "float32_onto_c": Kind("float32", c="float32", dtypes=("e4m3", "e5m2"), onto_c=True),
    "fast_onto_c": Kind("float32", c="float32", bias="float32", fast=True, onto_c=True),
}

# One element; tails of tiles, clusters, swizzle atoms and scale blocks; K shorter than a block, and
# whole blocks; more tiles than blocks of threads run at one time.
SHAPES = (
    (1, 17, 1),
    (70, 40, 100),
    (129, 257, 384),
    (300, 520, 1000),
    (205, 129, 4097),
    (2100, 4104, 272),
)


def cases():
    """Every fourth candidate with each pair and each kind: so each is run with each pair and each
    kind, though not with all of both. For the pair that models use most all four quarters."""
    for pair, (index, name) in itertools.product(
        itertools.product(GRANULARITIES, repeat=2), enumerate(KINDS)
    ):
        if KINDS[name].onto_c and ON_GPU and not is_hopper():
            continue  # no TMA brings it
        if KINDS[name].fast and any("128" in granularity for granularity in pair):
            continue  # nothing to leave out: scales that vary along K act on partial sums
        first = GRANULARITIES.index(pair[0]) + 3 * GRANULARITIES.index(pair[1]) + index
        for quarter in range(4) if pair == ("1x128", "128x128") else (-first % 4,):
            label = f"{pair[0]}-{pair[1]}-{name}-{quarter}"
            yield pytest.param(pair, KINDS[name], quarter, id=label)


def shapes_of(kind):
    """TMA stores whole units of 16 bytes, and loads nothing where there is nothing."""
    for m, n, k in SHAPES:
        yield m, (n + 7) // 8 * 8 if kind.output_by_tma else n, k
    if not kind.operands_by_tma:
        yield 129, 257, 0


def placed(matrix, kind):
    """Amid poison, aligned for TMA, in words, or not at all."""
    cols = matrix.shape[1]
    if kind.operands_by_tma:
        return surrounded_copy(matrix, 16 + -cols % 16, 16)
    if kind.words:
        return surrounded_copy(matrix, 20 + -cols % 16, 4)
    return surrounded_copy(matrix, 17 - cols % 2, 1)


class Problem:
    """Operands and addends in memory of that kind, and what the product has to be."""

    def __init__(self, generator, kind, pair, m, n, k):
        self.kind = kind
        self.a, self.b = (
            with_data(x, placed(x.data, kind))
            for x in operands(generator, m, n, k, pair, kind.dtypes)
        )
        self.c = self.bias = None
        if kind.c is not None:
            padding, offset = (16, 32) if kind.onto_c else (3, 1)
            self.c = surrounded_copy(10 * normal(generator, m, n, dtype=kind.c), padding, offset)
        if kind.bias is not None:
            self.bias = 10 * normal(generator, n, dtype=kind.bias)
        self.expected = product(self.a, self.b, self.c, self.bias)

    def check(self, candidate):
        m, n = self.expected.value.shape
        padding, offset = (8, 16) if self.kind.output_by_tma else (3, 1)
        out = Surrounded(m, n, DTYPES[self.kind.out], padding, offset)
        c = self.c
        if self.kind.in_place:
            c = out.view.copy_(c)
        gemm_by(candidate, self.a, self.b, out.view, c, self.bias, self.kind.fast)
        assert_right = assert_fast_accumulation_close if self.kind.fast else assert_close
        assert_right(out.view, self.expected)
        out.assert_only_view_written()


@pytest.mark.parametrize(("pair", "kind", "quarter"), list(cases()))
def test_every_candidate(pair, kind, quarter, generator, record_property):
    names = candidates(
        *zip(kind.dtypes, pair, strict=True),
        kind.out,
        c=kind.c,
        bias=kind.bias,
        fast=kind.fast,
        operands_fit_tma=kind.operands_by_tma,
        output_fits_tma=kind.output_by_tma,
        c_fits_tma=kind.onto_c or kind.in_place,
    )
    if kind.onto_c and ON_GPU:  # the others are those of other kinds
        names = [name for name in names if name.endswith(".onto_c")]
    assert names
    assert len(set(names)) == len(names)
    names = names[quarter::4] if ON_GPU else names
    record_property("candidates", len(names))  # gpu_suite.py sums them up
    for shape in shapes_of(kind):
        problem = Problem(generator, kind, pair, *shape)
        for name in names:
            try:
                problem.check(name)
            except AssertionError as error:
                pytest.fail(f"{name} at {shape}: {error}")
