"""Measures of a model's answers, and how sure they are.

Each is a ratio of sums over units that do not depend on each other (pages, queries): nats over
tokens, hits over queries. So one bootstrap serves all: units are drawn again with replacement, and
the interval holds the middle 95 % of the ratios (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993, chapter 13). A change is the sum of each unit's own change: it is paired.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

BOOTSTRAP: Final = {"resamples": 2000, "seed": 0}
INTERVAL: Final = 0.025, 0.975


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


def ratio(
    parts: npt.ArrayLike, sizes: npt.ArrayLike = 1.0, read: Callable[[Any], Any] = float
) -> Estimate:
    """Σ parts / Σ sizes, each [units], and the ends of its interval, told by `read`: a function
    that grows, as exp of nats."""
    above = np.asarray(parts, np.float64)
    below = np.broadcast_to(np.asarray(sizes, np.float64), above.shape)
    shape = BOOTSTRAP["resamples"], len(above)
    draws = np.random.default_rng(BOOTSTRAP["seed"]).integers(len(above), size=shape)
    low, high = np.quantile(above[draws].sum(axis=1) / below[draws].sum(axis=1), INTERVAL)
    return Estimate(*(float(read(x)) for x in (above.sum() / below.sum(), low, high)))


def reciprocal_ranks(similarity: Array) -> Array:
    """1 / the place of document i for query i, [queries], of [queries, documents]. What is as
    similar as the right document counts as before it."""
    return np.asarray(1 / (similarity >= np.diag(similarity)[:, None]).sum(axis=1))


def spearman(left: Array, right: Array) -> Array:
    """The correlation of the ranks in each row, [rows], of two [rows, columns] without ties."""
    ranks = [x.argsort(axis=1).argsort(axis=1) - (x.shape[1] - 1) / 2 for x in (left, right)]
    return np.asarray((ranks[0] * ranks[1]).sum(axis=1) / np.square(ranks[0]).sum(axis=1))
