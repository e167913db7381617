"""Weight gradients as an expert layer's backward takes them: K in groups, into new BF16."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import doors, k_groups, peers
from .cases import Case, aligned, k_columns, offsets_of, on_device, zipf
from .ways import ERROR_LIMITS, OURS, Build, Way, sets_of

RECIPE = ("1x128", "channel")  # of octofold.nn's "blockwise"
PAIRS = (RECIPE, ("1x128", "1x128"), ("tensor", "tensor"))


def bytes_of(case: Case) -> int:
    m, n = case.sizes
    return (m + n) * case.rows + 2 * case.groups * m * n


def gradients(case: Case, exponent: float, device: Any) -> Iterator[Build]:
    """Groups as routing gives them; by the recipe's pair also equal ones, which torch takes too."""
    m, n = case.sizes
    count = sets_of(bytes_of(case))
    outs = [
        torch.empty(case.groups, m, n, dtype=torch.bfloat16, device=device) for _ in range(count)
    ]
    equal, routed = (
        offsets_of(sizes) for sizes in (aligned(case), zipf(case.rows, case.groups, exponent))
    )
    for offsets, suffix, pairs in ((routed, ", zipf", PAIRS), (equal, "", PAIRS[:1])):
        sets = [
            k_groups.Operands(*(k_groups.codes(rows, offsets, device) for rows in (m, n)), out)
            for out in outs
        ]
        for pair in pairs:
            name = f"{OURS} {'·'.join(pair)}{suffix}"
            yield Build(name, partial(ours, name, sets, offsets, pair), pair)
        if offsets is equal:
            for peer, build in (
                (peers.ROWWISE, k_groups.rowwise),
                (peers.BFLOAT16, k_groups.bfloat16),
            ):
                yield Build(peer, partial(build, peer, sets, offsets))


def ours(
    name: str,
    sets: Sequence[k_groups.Operands],
    offsets: Sequence[int],
    pair: tuple[str, str],
    candidate: str | None = None,
) -> Way:
    where = on_device(offsets, sets[0].a.device)
    scaled = [
        tuple(k_groups.scaled(data, g) for data, g in zip((s.a, s.b), pair, strict=True))
        for s in sets
    ]
    calls = [
        doors.k_groups(a, b, where, s.out, None, candidate)
        for (a, b), s in zip(scaled, sets, strict=True)
    ]
    ranges = [(first, last) for first, last, _ in k_columns(offsets)]
    reference = k_groups.Reference(*scaled[0], ranges)
    out: Tensor = sets[0].out

    def error() -> float:
        out.fill_(torch.nan)
        calls[0]()
        return reference.error(out)

    return Way(name, calls, error, ERROR_LIMITS[out.dtype])
