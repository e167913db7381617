"""Products of random operands, from the text of a problem: to be run, checked and timed."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from ._core.errors import invalid_argument
from ._core.formats import DLPACK_NAMES, FP8, Format
from ._core.library import library
from ._core.scaled_tensor import ScaledTensor
from ._ops.cast import cast
from ._ops.cast_sources import Activated, Gathered
from ._ops.gated_gemm import gated_gemm
from ._ops.gemm import Arrivals, gemm
from ._ops.gemm_weight_only import (
    gemm_weight_only,
    gemm_weight_only_gradient,
    grouped_gemm_weight_only,
    grouped_gemm_weight_only_gradient,
)
from ._ops.grouped_gemm import Depth, Masked, Rows, grouped_gemm
from ._ops.quantize import quantize

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        gemm,
        grouped_gemm,
        gated_gemm,
        gemm_weight_only,
        gemm_weight_only_gradient,
        grouped_gemm_weight_only,
        grouped_gemm_weight_only_gradient,
    )
}


@dataclass(frozen=True)
class SampleProduct:
    """A product with its arrays, which are torch's."""

    call: Callable[[], Any]
    """Computes it into `out`."""
    out: Any
    operands: tuple[Any, ...]
    """Arrays and ScaledTensors that are read."""
    result: Callable[[], Any]
    """The part of `out` that is written, in float32."""
    expected: Callable[[], Any]
    """The same in FP64, of the operands as they are."""


def sample_product(problem: str, device: Any) -> SampleProduct:
    """The problem of this text with random operands, as operations allocate them. Rows fall to
    groups one by one, to some up to 1.3 / 0.7 times as often as to others; parts of K in groups are
    0.7 to 1.3 of the mean. Groups are the same each time.

    Raises InvalidArgumentError for a text that is none, and for one of tensors that lie otherwise.
    """
    operation, _, phrases = str(library.complete_problem(problem)).partition(": ")
    fields = dict(phrase.partition(" ")[::2] for phrase in phrases.split(", "))
    if other := [name for name in fields if name.endswith(("_aligned", "_unaligned"))]:
        expected = "tensors as operations allocate them"
        raise invalid_argument("tuning.run", "problem", expected, ", ".join(other))
    return _Sample(operation, fields, device).product()


class _Sample:
    def __init__(self, operation: str, fields: dict[str, str], device: Any) -> None:
        import torch

        self.torch, self.device = torch, device
        self.operation, self.fields = operation, fields
        self.m, self.n, self.k = (int(fields[size]) for size in ("m", "n", "k"))
        count, _, self.kind = fields.get("groups", "1 of one").partition(" of ")
        self.groups = int(count)
        self.stacks = self.groups if self.kind in ("rows", "masked rows") else None
        # In groups: all rows, those that exist, or the rows of K that were cast and lie spaced.
        rows_in_groups = {
            "rows": self.m,
            "masked rows": self.groups * int(fields.get("expected", 0)),
            "k": 128 * max(self.k // 128 - self.groups, 0),
        }
        rows, numbers = rows_in_groups.get(self.kind, 0), random.Random(self.groups)
        ends = [0.0, *accumulate(numbers.uniform(0.7, 1.3) for _ in range(self.groups))]
        if self.kind == "k":
            self.bounds = [128 * round(end / ends[-1] * (rows // 128)) for end in ends]
        else:
            fallen = Counter(numbers.choices(range(self.groups), cum_weights=ends[1:], k=rows))
            self.bounds = [0, *accumulate(fallen[group] for group in range(self.groups))]
        self.sizes = [min(end - begin, self.m) for begin, end in pairwise(self.bounds)]

    def product(self) -> SampleProduct:
        (x, values), w = self._left(), self._right()
        options, addend = self._options(), self._addends()
        groups = () if self.kind == "one" else (self._groups(),)
        call = partial(_FUNCTIONS[self.operation], x, w, *groups, **options, **addend)
        out = call()

        def expected() -> Any:
            weights = w.dequantize()
            is_transposed = self.operation.endswith("gradient")
            sums = self._sums(values(), weights.mT if is_transposed else weights)
            return self._finished(sums, **addend)

        def result() -> Any:
            numbers = out.dequantize() if isinstance(out, ScaledTensor) else out.float()
            return self._filled(numbers) if self.kind == "masked rows" else numbers

        operands = (x.x if isinstance(x, Gathered) else x, w, *addend.values())
        return SampleProduct(partial(call, out=out), out, operands, result, expected)

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device=self.device)

    def _matrices(self, rows: int, columns: int, is_stack: bool) -> Any:
        """Numbers whose sums of products are as large as they are."""
        shape = (self.groups, rows, columns) if is_stack else (rows, columns)
        return self._random(*shape) / max(self.k, 1) ** 0.25

    def _filled(self, matrices: Any) -> Any:
        """The rows that exist, of all groups."""
        pairs = zip(matrices, self.sizes, strict=True)
        return self.torch.cat([matrix[:rows] for matrix, rows in pairs])

    def _integers(self, numbers: Sequence[int]) -> Any:
        return self.torch.tensor(numbers, dtype=self.torch.int32, device=self.device)

    def _groups(self) -> Any:
        if self.kind == "masked rows":
            return Masked(self._integers(self.sizes), int(self.fields["expected"]))
        return (Rows if self.kind == "rows" else Depth)(self._integers(self.bounds))

    def _left(self) -> tuple[Any, Callable[[], Any]]:
        """a or x, and its values."""
        is_masked = self.kind == "masked rows"
        x = self._matrices(self.m, self.k, is_masked)
        dtype, *scales = self.fields["a" if "a" in self.fields else "x"].split()
        wide = self.fields.get("cast_from")
        if scales and wide is None:
            a = quantize(x, Format(dtype, *scales), matrices=self.groups if is_masked else None)
            return a, a.dequantize
        x = x.to(getattr(self.torch, wide or DLPACK_NAMES.get(dtype, dtype)))
        if wide is not None:
            return x, lambda: quantize(x, Format(dtype, *scales)).dequantize()
        if "gathered" not in self.fields:
            return x, x.float
        sources = self.torch.randperm(self.m, device=self.device)
        return Gathered(x, sources.int()), x[sources].float

    def _right(self) -> ScaledTensor:
        """b or w."""
        rows = 2 * self.n if self.operation == "gated_gemm" else self.n
        sizes = (self.k, rows) if self.operation.endswith("gradient") else (rows, self.k)
        x = self._matrices(*sizes, bool(self.stacks))
        format = Format(*self.fields["b" if "b" in self.fields else "w"].split())
        return quantize(x, format, matrices=self.stacks)

    def _options(self) -> dict[str, Any]:
        dtype = self.fields["out"]
        options: dict[str, Any] = {"batch_invariant": "batch_invariant" in self.fields}
        if dtype in FP8:
            return {**options, "format": dtype, "activation": self.fields["activation"]}
        if "fast_accumulation" in self.fields:
            options["fast_accumulation"] = True
        if "cast_from" in self.fields:
            options["format"] = self.fields["a"].split()[0]
        if "arriving_rows" in self.fields:
            options["arrivals"] = Arrivals(self._integers([1]))
        return {**options, "out_dtype": dtype}

    def _addends(self) -> dict[str, Any]:
        each = () if self.kind in ("one", "rows") else (self.groups,)
        shapes = {
            "c": (*each, self.m, self.n),
            "bias": (self.n,) if self.kind == "one" else (self.groups, self.n),
        }
        return {
            name: self._random(*shape).to(getattr(self.torch, self.fields[name]))
            for name, shape in shapes.items()
            if name in self.fields
        }

    def _sums(self, x: Any, w: Any) -> Any:
        def product(left: Any, right: Any) -> Any:
            return left.double() @ right.double().mT

        if self.kind == "rows":
            rows = (x[begin:end] for begin, end in pairwise(self.bounds))
            return self.torch.cat([product(*pair) for pair in zip(rows, w, strict=True)])
        if self.kind == "masked rows":
            rows = (matrix[:count] for matrix, count in zip(x, self.sizes, strict=True))
            return self.torch.cat([product(*pair) for pair in zip(rows, w, strict=True)])
        if self.kind == "k":
            places = [
                slice(begin + 128 * group, end + 128 * group)
                for group, (begin, end) in enumerate(pairwise(self.bounds))
            ]
            return self.torch.stack([product(x[:, place], w[:, place]) for place in places])
        return product(x, w)

    def _finished(self, sums: Any, c: Any = None, bias: Any = None) -> Any:
        if self.operation == "gated_gemm":
            activated = Activated(sums.bfloat16(), self.fields["activation"])
            codes = cast(activated, rows=Format(self.fields["out"])).rows
            assert codes is not None
            return codes.dequantize().double()
        if bias is not None and self.stacks is not None:
            bias = bias.repeat_interleave(self._integers(self.sizes), 0)
        for addend in (c, bias):
            if addend is not None:
                sums = sums + addend.double()
        return sums
