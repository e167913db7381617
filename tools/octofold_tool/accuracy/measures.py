"""Measures of a model's answers, and how sure they are.

Each is a ratio of sums over units that were chosen apart from each other (documents, queries): nats
over tokens, hits over queries. One bootstrap serves them all: units are drawn again with
replacement, and the interval holds the middle 95 % of the ratios (Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993, chapter 13). What is to be compared with a reference is the
difference in each unit, so both have the same draws: the bootstrap is paired.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

RESAMPLES: Final = 2000
SEED: Final = 0
LEVEL: Final = 0.95


@dataclass(frozen=True)
class Estimate:
    """A measure of the units that there were, and the ends of its interval."""

    value: float
    low: float
    high: float


def ratio(
    parts: npt.ArrayLike, sizes: npt.ArrayLike = 1.0, read: Callable[[Any], Any] = float
) -> Estimate:
    """Σ parts / Σ sizes.

    parts [units]; sizes [units], or one for all.
    read: a growing function that the ratio and the interval's ends are told by, as exp of nats.
    """
    above = np.asarray(parts, np.float64)
    below = np.broadcast_to(np.asarray(sizes, np.float64), above.shape)
    draws = np.random.default_rng(SEED).integers(len(above), size=(RESAMPLES, len(above)))
    drawn = above[draws].sum(axis=1) / below[draws].sum(axis=1)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(*(float(read(x)) for x in (above.sum() / below.sum(), low, high)))


def reciprocal_ranks(similarity: Array) -> Array:
    """1 / the place of document i among all for query i, [queries], of [queries, documents]. A
    document that is as similar as the right one counts as before it."""
    right = similarity[np.arange(len(similarity)), np.arange(len(similarity))]
    return np.asarray(1 / (similarity >= right[:, None]).sum(axis=1))


def spearman(left: Array, right: Array) -> Array:
    """The correlation of the ranks in each row, [rows], of two [rows, columns] without ties."""
    ranks = [x.argsort(axis=1).argsort(axis=1) - (x.shape[1] - 1) / 2 for x in (left, right)]
    return np.asarray((ranks[0] * ranks[1]).sum(axis=1) / np.square(ranks[0]).sum(axis=1))
