"""Products of every kind with sizes at random, as texts of octofold.tuning."""

import random
from collections.abc import Callable, Sequence
from typing import Final

PAIRS: Final = (("1x128", "128x128"),) * 3 + (("channel", "channel"), ("tensor", "tensor"))
FEW: Final = 48


class Draw:
    """Sizes at random, each as likely as its half. Columns and depth are multiples of 128, as in
    models, and every fourth time of 16.

    most: the largest of each size.
    """

    def __init__(self, seed: str, most: int = 16384) -> None:
        self.numbers = random.Random(seed)
        self.most = most

    def size(self, least: int, most: int, multiple: int = 1) -> int:
        most = max(min(most, self.most), least)
        drawn = least * float((most / least) ** self.numbers.random())
        return max(round(drawn / multiple), 1) * multiple

    def scales(self) -> str:
        a, b = self.numbers.choice(PAIRS)
        return f"a e4m3 {a}, b e4m3 {b}"

    def dense(self, rows: tuple[int, int], multiples: Sequence[int] = (128, 128, 128, 16)) -> str:
        multiple = self.numbers.choice(multiples)
        n, k = self.size(512, 16384, multiple), self.size(256, 16384, multiple)
        return f"m {self.size(*rows)}, n {n}, k {k}"

    def in_groups(self, most_rows: int, of: str = "rows") -> str:
        """Groups of most_rows rows at most."""
        groups, each = self.size(2, 64), self.size(1, most_rows)
        n, k = self.size(512, 7168, 128), self.size(512, 7168, 128)
        if of == "rows":
            return f"m {groups * each}, n {n}, k {k}, groups {groups} of rows"
        return f"m {2 * each}, n {n}, k {k}, groups {groups} of masked rows, expected {each}"

    def depth(self) -> str:
        groups, each = self.size(2, 32), self.size(128, 4096, 128)
        m, n = self.size(512, 7168, 128), self.size(512, 7168, 128)
        return (
            f"m {m}, n {n}, k {groups * (each + 128)}, out float32, c float32, "
            f"a e4m3 1x128, b e4m3 1x128, groups {groups} of k"
        )


KINDS: Final[dict[str, Callable[[Draw], str]]] = {
    "few": lambda draw: f"gemm: {draw.dense((1, FEW))}, {draw.scales()}",
    "many": lambda draw: f"gemm: {draw.dense((FEW, 16384))}, {draw.scales()}",
    "sums": lambda draw: f"gemm: {draw.dense((1, 8192))}, out float32, {draw.scales()}",
    "cast": lambda draw: f"gemm: {draw.dense((1, 16))}, cast_from bfloat16",
    "rows": lambda draw: f"grouped_gemm: {draw.in_groups(4096)}",
    "masked": lambda draw: f"grouped_gemm: {draw.in_groups(1024, 'masked')}",
    "depth": lambda draw: f"grouped_gemm: {draw.depth()}",
    "gated": lambda draw: f"gated_gemm: {draw.dense((1, 16384), (128,))}",
    "gated_rows": lambda draw: f"gated_gemm: {draw.in_groups(4096)}",
    "weights": lambda draw: f"gemm_weight_only: {draw.dense((1, 4096))}",
    "weights_rows": lambda draw: f"grouped_gemm_weight_only: {draw.in_groups(512)}",
}


def operations_of(problem: str) -> float:
    """Multiplications and additions of a problem, by its text."""
    fields = dict(part.partition(" ")[::2] for part in problem.partition(": ")[2].split(", "))
    groups = int(fields["groups"].split()[0]) if "masked" in problem else 1
    return 2.0 * groups * int(fields["m"]) * int(fields["n"]) * int(fields["k"])


def drawn(kind: str, draw: Draw, most_operations: float) -> str:
    """A problem of this kind with no more operations."""
    problem = KINDS[kind](draw)
    while operations_of(problem) > most_operations:
        problem = KINDS[kind](draw)
    return problem
