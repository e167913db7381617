"""Rows of a product that arrive while it runs."""

from typing import NamedTuple

from .._core.frameworks import Array


class Arrivals(NamedTuple):
    """The rows of `a` that are there: n shards of M / n rows each, one below another, as n ranks
    gather them.

    flags: int32 [n], on the device of `a`; n divides M. A shard is there, codes and scales, once
        its flag is not 0. The product leaves the flags as they are: set them to 0 before the next
        copies.
    own: the number of the shard that comes first, from 0 to n - 1. Then come those behind it, and
        then those from 0 on.

    On a GPU the kernel itself waits, without an end, and holds all multiprocessors meanwhile. So
    what sets a flag must not need any of them: copies by the copy engine on another stream, queued
    before the product is, or another GPU. A flag is set behind what it tells of, in the order of
    one stream. The CPU waits 60 s for each shard, then raises UnavailableError.
    """

    flags: Array
    own: int = 0
