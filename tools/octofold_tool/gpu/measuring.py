"""A case that is computed in several ways: each is checked first, then all are timed in turns. What
`octofold bench`, `octofold tune` and the benches of the repository have in common."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import octofold
import torch
from octofold._timing import Call, Method, Sampler, Timing, screened
from torch import Tensor

from ..measure import ERROR_LIMITS, error_limit
from ..products import GemmOptions

Operand: TypeAlias = "octofold.ScaledTensor | Tensor"
Errors: TypeAlias = float | Mapping[str, float]

OUT_DTYPES: Final = {name: getattr(torch, name) for name in ERROR_LIMITS}
PEER_ERROR_LIMIT: Final = 5e-2
"""A peer that is further off computed something else."""
NAN_CODE: Final = 0x7F  # of both FP8 formats

# Only so many rows and columns of a large product are compared.
CHECKED_ROWS, CHECKED_COLUMNS = 64, 512

# About 14 significant bits of a sum over all of K.
FAST_ACCUMULATION_ERROR_LIMIT = 1e-2


class Wrong(Exception):  # noqa: N818
    """A result is not what it has to be."""


@dataclass
class Implementation:
    """How a case is computed."""

    calls: Sequence[Call]
    """One for each set of operands."""
    errors: Callable[[], Errors]
    """Relative errors of the first call's results, in memory that held NaN before; NaN: not all of
    it was written."""
    limit: float = PEER_ERROR_LIMIT
    least: float = 0.0
    """An error of the first result below this was not computed in FP8."""
    method: Method | None = None
    """None: the one that suits all."""

    def warm(self) -> Sequence[Call]:
        """The calls, which have run since: kernels are compiled and loaded."""
        for call in self.calls:
            call()
        return self.calls


def checked(made: Implementation) -> dict[str, float]:
    """Its errors. Raises Wrong."""
    errors = made.errors()
    named = dict(errors) if isinstance(errors, Mapping) else {"error": errors}
    for result, error in named.items():
        if not error <= made.limit:  # NaN is wrong too
            raise Wrong(f"relative {result} {error:.1e} exceeds {made.limit:.1e}")
    if next(iter(named.values()), made.least) < made.least:
        raise Wrong(f"relative errors {named}: not computed in FP8")
    return named


def screen(
    made: Mapping[str, Implementation],
    others: Mapping[str, Implementation],
    rounds: int,
    method: Method,
    last: Method | None = None,
) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """The times of all, by a few rounds, and of the fastest of them beside the others, by `rounds`
    more: by the method `last` if that is another."""
    samplers = {name: method.sampler(each.warm()) for name, each in made.items()}

    def again(name: str) -> Sampler:
        if last is None and name in samplers:
            return samplers[name]
        return (last or method).sampler((made.get(name) or others[name]).warm())

    return screened(samplers, {name: again(name) for name in others}, rounds, again=again)


def run_in_threads(calls: Iterable[Call]) -> None:
    """Compiles the kernels of the calls that were not compiled yet."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda call: call(), calls))


def tensors_of(*operands: Operand) -> tuple[Tensor, ...]:
    parts: list[Tensor] = []
    for operand in operands:
        parts += [operand] if isinstance(operand, Tensor) else [operand.data, operand.scale]
    return tuple(parts)


def bytes_of(*operands: Operand) -> int:
    """Bytes that have to move through memory at least."""
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors_of(*operands))


def poison(*results: Operand) -> None:
    """Fills memory with NaN."""
    for tensor in tensors_of(*results):
        if tensor.itemsize == 1:
            tensor.view(torch.uint8).fill_(NAN_CODE)
        else:
            tensor.fill_(torch.nan)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖ in FP64; 0 where both are zero, NaN where `actual` is not
    finite."""
    wide = expected.detach().double()
    error = torch.linalg.norm(actual.detach().double() - wide)
    return float(error / torch.linalg.norm(wide)) if error != 0 else 0.0


@dataclass(frozen=True)
class Product:
    """out = a · bᵀ."""

    run: Callable[[], Any]
    a: Operand
    b: Operand
    out: Tensor

    def bytes(self) -> int:
        return bytes_of(self.a, self.b, self.out)


def error_of(product: Product, added: float | None = None) -> float:
    """Run it into poisoned memory. Relative error against the dequantized operands' product in
    FP64; NaN if anything was not written.

    added: a value that the memory holds instead, and to which the product is added.
    """
    product.out.fill_(torch.nan if added is None else added)
    product.run()
    if not torch.isfinite(product.out).all():
        return float("nan")
    m, n = product.out.shape
    rows = torch.randperm(m, device=product.out.device)[:CHECKED_ROWS]
    columns = torch.randperm(n, device=product.out.device)[:CHECKED_COLUMNS]
    expected = float64_rows(product.a, rows) @ float64_rows(product.b, columns).T
    actual = product.out[rows][:, columns].double() - (added or 0.0)
    return relative_error(actual, expected)


def limit_of(options: GemmOptions, *products: Product) -> float:
    """The limit of the relative error of these products of ours."""
    limit = max(error_limit(options.out_dtype, compared(product)) for product in products)
    return max(limit, FAST_ACCUMULATION_ERROR_LIMIT) if options.fast_accumulation else limit


def compared(product: Product) -> int:
    """Elements that error_of compares."""
    rows, columns = product.out.shape
    return min(rows, CHECKED_ROWS) * min(columns, CHECKED_COLUMNS)


def float64_rows(operand: Operand, rows: Tensor) -> Tensor:
    """These rows of the (dequantized) matrix."""
    if isinstance(operand, Tensor):
        return operand[rows].double()
    codes: Tensor = operand.data.view(torch.uint8)[rows].view(operand.data.dtype).float().double()
    scale: Tensor = operand.scale.double()
    if operand.granularity == "tensor":
        return codes * scale
    if operand.granularity == "channel":
        return codes * scale[rows][:, None]
    scale = scale[rows // 128 if operand.granularity == "128x128" else rows]
    return codes * scale.repeat_interleave(128, dim=1)[:, : codes.shape[1]]
