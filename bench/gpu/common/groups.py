"""Products of groups: their number and sizes, and the names of what computes them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

OURS = "octofold"
DEEPGEMM, ROWWISE, BFLOAT16 = "DeepGEMM", "torch FP8 rowwise", "torch BF16"


@dataclass(frozen=True)
class Case:
    """Groups of about so many rows (K groups: of so much K) and the two other sizes."""

    section: str
    groups: int
    each: int
    first: int  # N; of K groups M; of gated products N of the output
    second: int  # K; of K groups N

    @property
    def sizes(self) -> tuple[int, int]:
        return self.first, self.second

    @property
    def operations(self) -> float:
        products = 2 if self.section == "gated" else 1
        return 2.0 * self.rows * self.first * self.second * products

    @property
    def name(self) -> str:
        return f"{self.section} {self.groups}×{self.each},{self.first},{self.second}"

    @property
    def rows(self) -> int:
        return self.groups * self.each

    @property
    def aligned(self) -> list[int]:
        return [self.each] * self.groups

    def around(self, multiple: int, seed: int = 7) -> list[int]:
        """Sizes from 0.7 to 1.3 of the mean, each a multiple; together as many as the mean
        makes."""
        generator = torch.Generator().manual_seed(seed)
        factors = 0.7 + 0.6 * torch.rand(self.groups, generator=generator, dtype=torch.float64)
        units = (factors / factors.sum() * self.rows / multiple).floor().long()
        units[: self.rows // multiple - int(units.sum())] += 1
        return (units * multiple).tolist()

    def zipf(self, exponent: float = 1.0, seed: int = 3) -> list[int]:
        """Sizes of groups as routing gives them: drawn by 1 / rank^exponent, in random order; every
        eighth group has no rows, and so has one at least."""
        generator = torch.Generator().manual_seed(seed)
        ranks = torch.arange(1, self.groups + 1, dtype=torch.float64)
        weights = (ranks**-exponent)[torch.randperm(self.groups, generator=generator)]
        if self.groups > 1:
            without = torch.randperm(self.groups, generator=generator)[: max(1, self.groups // 8)]
            weights[without] = 0
        drawn = torch.multinomial(weights, self.rows, replacement=True, generator=generator)
        return torch.bincount(drawn, minlength=self.groups).tolist()


def offsets_of(sizes: Sequence[int]) -> list[int]:
    """[G + 1]."""
    return [0, *itertools.accumulate(sizes)]


def on_device(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)
