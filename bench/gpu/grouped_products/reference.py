"""Elements of products of groups in FP64, from the dequantized operands."""

from collections.abc import Iterator, Sequence

import torch
from octofold_tool.gpu.check import float64_rows
from octofold_tool.gpu.peers import Operand
from torch import Tensor

SOME = 256  # columns that are compared
ROWS = 64  # of each K group's result


class RowsReference:
    def __init__(self, a: Operand, b: Operand, rows_of: Sequence[range]) -> None:
        """a [rows, K], b [G · N, K]: of all groups, without leading dimensions. rows_of: of each
        group the rows of `a` that are its own."""
        self._a, self._b, self._rows_of = a, b, rows_of
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def error(self, out: Tensor) -> float:
        """Returns the error of out [rows, N], all of whose valid rows must be finite."""
        for rows in self._rows_of:
            if rows and not torch.isfinite(out[rows.start : rows.stop]).all():
                return float("nan")
        if not self._parts:
            self._parts = list(self._expected(out.shape[1], out.device))
        wrong = total = 0.0
        for some, columns, expected in self._parts:
            wrong += float((out[some][:, columns].double() - expected).square().sum())
            total += float(expected.square().sum())
        return float((wrong / total) ** 0.5) if total else 0.0

    def _expected(self, n: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, columns, and what stands there: of each group its ends and some between."""
        for group, rows in enumerate(self._rows_of):
            if not rows:
                continue
            places = {rows[0], rows[-1], rows[len(rows) // 2], rows[len(rows) // 3]}
            some = torch.tensor(sorted(places), device=device)
            columns = torch.randperm(n, device=device)[:SOME]
            expected = float64_rows(self._a, some) @ float64_rows(self._b, group * n + columns).T
            yield some, columns, expected


class DepthReference:
    def __init__(self, a: Operand, b: Operand, ranges: Sequence[tuple[int, int]]) -> None:
        """a [M, K], b [N, K]; ranges: of each group its columns."""
        device = (a if isinstance(a, Tensor) else a.data).device
        m, n = a.shape[0], b.shape[0]
        self._rows = torch.randperm(m, device=device)[:ROWS]
        self._columns = torch.randperm(n, device=device)[:SOME]
        left, right = float64_rows(a, self._rows), float64_rows(b, self._columns)
        products = [left[:, begin:end] @ right[:, begin:end].T for begin, end in ranges]
        self.expected = torch.stack(products)

    def error(self, out: Tensor, added: float = 0.0) -> float:
        """The error of out [G, M, N]: the products, plus `added`, which was there before."""
        if not torch.isfinite(out).all():
            return float("nan")
        got = out[:, self._rows][:, :, self._columns].double() - added
        return float(torch.linalg.norm(got - self.expected) / torch.linalg.norm(self.expected))
