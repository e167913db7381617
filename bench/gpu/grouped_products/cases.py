"""The cases that are measured: sizes of products, and how rows are spread over groups."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from common.measure import Implementation

BLOCK = 128  # columns of a scale
OURS = "octofold"


@dataclass(frozen=True)
class Case:
    """Groups of about so many rows (K groups: of so much K) and the two other sizes."""

    section: str
    groups: int
    each: int
    sizes: tuple[
        int, int
    ]  # N, K; of K groups (k, gradients) M, N; of gated products N of the output, K

    @property
    def operations(self) -> float:
        products = 2 if self.section == "gated" else 1
        return 2.0 * self.rows * self.sizes[0] * self.sizes[1] * products

    @property
    def name(self) -> str:
        return f"{self.section} {self.groups}×{self.each},{self.sizes[0]},{self.sizes[1]}"

    @property
    def rows(self) -> int:
        return self.groups * self.each


def cases(section: str, sizes: Sequence[tuple[int, int, int, int]]) -> list[Case]:
    return [Case(section, groups, each, (n, k)) for groups, each, n, k in sizes]


def of_both(groups: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """With the two products of an expert of DeepSeek-V3's."""
    return [(g, m, n, k) for n, k in ((4096, 7168), (7168, 2048)) for g, m in groups]


CASES = [
    *cases("contiguous", of_both([(4, 8192), (8, 4096), (32, 256)])),
    *cases("masked", of_both([(1, 1024), (2, 512), (4, 256), (16, 64), (32, 32)])),
    *cases("k", [(4, 8192, 4096, 7168), (8, 4096, 7168, 2048), (32, 256, 4096, 7168)]),
    *cases(
        "gradients",
        [
            (32, 512, 4096, 7168),
            (32, 512, 7168, 2048),
            (128, 512, 1536, 2048),
            (128, 512, 2048, 768),
        ],
    ),
    *cases(
        "decode",
        [
            (64, 6, 2816, 2048),
            (64, 6, 2048, 1408),
            (128, 8, 1536, 2048),
            (128, 1, 1536, 2048),
            (32, 4, 4096, 7168),
            (32, 4, 7168, 2048),
        ],
    ),
    *cases("gated", [(32, 512, 2048, 7168), (128, 512, 768, 2048), (8, 2048, 14336, 4096)]),
]
TINY_CASES = [
    *cases("contiguous", [(3, 128, 256, 384)]),
    *cases("masked", [(3, 20, 256, 384)]),
    *cases("k", [(3, 256, 128, 256)]),
    *cases("gradients", [(3, 256, 128, 256)]),
    *cases("decode", [(6, 3, 256, 256)]),
    *cases("gated", [(3, 128, 128, 256)]),
]
SECTIONS = ("contiguous", "masked", "k", "gradients", "decode", "gated")


@dataclass(frozen=True)
class Variant:
    """How a case is computed. make: of a candidate's name too, where it is ours."""

    name: str
    make: Callable[..., Implementation]
    pair: tuple[str, str] | None = None
    """Granularities, where it is ours."""

    @property
    def ours(self) -> bool:
        return self.pair is not None


def aligned(case: Case) -> list[int]:
    return [case.each] * case.groups


def zipf(rows: int, groups: int, exponent: float = 1.0, seed: int = 3) -> list[int]:
    """Sizes of groups as routing gives them: drawn by 1 / rank^exponent, in random order; every
    eighth group has no rows, and so has one at least."""
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.arange(1, groups + 1, dtype=torch.float64)
    weights = (ranks**-exponent)[torch.randperm(groups, generator=generator)]
    if groups > 1:
        weights[torch.randperm(groups, generator=generator)[: max(1, groups // 8)]] = 0
    drawn = torch.multinomial(weights, rows, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=groups).tolist()


def around(case: Case, multiple: int, seed: int = 7) -> list[int]:
    """Sizes from 0.7 to 1.3 of the mean, each a multiple; together as many as the mean makes."""
    generator = torch.Generator().manual_seed(seed)
    factors = 0.7 + 0.6 * torch.rand(case.groups, generator=generator, dtype=torch.float64)
    units = (factors / factors.sum() * case.rows / multiple).floor().long()
    units[: case.rows // multiple - int(units.sum())] += 1
    return (units * multiple).tolist()


def offsets_of(sizes: Sequence[int]) -> list[int]:
    """[G + 1]."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return offsets


def on_device(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def k_columns(offsets: Sequence[int]) -> list[tuple[int, int, int]]:
    """Each K group's first column, the one after its last, and that rounded up to a scale's end:
    group g begins in the block that follows g others and offsets[g] / 128, rounded down."""
    places = []
    for group, (begin, end) in enumerate(itertools.pairwise(offsets)):
        first = BLOCK * (begin // BLOCK + group)
        size = end - begin
        places.append((first, first + size, first + -(-size // BLOCK) * BLOCK))
    return places
