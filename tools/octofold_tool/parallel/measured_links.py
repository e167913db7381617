"""Links as they were measured: a rate and a latency from times, and what a file has of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..report import ToolError, read_text
from .links import KINDS, Kind, Link
from .rates import positive

SECTION: Final = "link"
"""Of the lines of JSON that have a fitted link: "case" is its kind, "rate" is in bytes a second,
"latency" in seconds."""

Sample = tuple[float, float, float]
"""Bytes that a GPU received, the steps of the exchange, the seconds that it took."""


def fitted(samples: Sequence[Sample]) -> Link:
    """The link by which times come nearest to what they were: least squares of (reckoned -
    measured) / measured, so that small exchanges count as large ones do. Where noise leaves a
    negative number the rate is all that there is."""
    bytes_, steps, seconds = np.array(samples, dtype=float).T
    columns = np.stack([bytes_, steps], axis=1) / seconds[:, None]
    (inverse, latency), *_ = np.linalg.lstsq(columns, np.ones_like(seconds), rcond=None)
    if min(inverse, latency) <= 0:
        shares = columns[:, 0]
        inverse, latency = shares.sum() / (shares @ shares), 0.0
    return Link(1 / float(inverse), float(latency))


def load_links(path: Path) -> dict[Kind, Link]:
    """Of the lines of JSON that bench/gpu/parallel_links.py writes; the last of each kind. Raises
    ToolError."""

    def fault(expected: str, got: object) -> ToolError:
        return ToolError(f"--links: {path}: expected {expected}, got {got!r}")

    found: dict[str, Link] = {}
    for entry in entries(path):
        if entry.get("section") != SECTION:
            continue
        latency = entry.get("latency")
        if latency != 0 or isinstance(latency, bool):
            latency = positive(latency, "latency in seconds", fault)
        rate = positive(entry.get("rate"), "rate in bytes a second", fault)
        found[str(entry.get("case"))] = Link(rate, float(latency))
    for kind in KINDS:
        if kind not in found:
            expected = f'a line of section "{SECTION}" and case "{kind}" (as '
            raise fault(f"{expected}bench/gpu/parallel_links.py writes)", sorted(found) or None)
    return {kind: found[kind] for kind in KINDS}


def entries(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ToolError(f"--links: {path}: {reason}") from None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise ToolError(
                f"--links: {path}, line {number}: expected an object of JSON, got {line[:40]!r}"
            )
        yield entry
