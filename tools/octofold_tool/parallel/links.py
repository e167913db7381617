"""What an exchange between GPUs moves, and how long it takes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

# What is assumed of links: GB/s of a GPU, both directions together; Gb/s of a GPU each way; µs of
# one step of an exchange.
NVLINK: Final = 900.0
NETWORK: Final = 400.0
NVLINK_LATENCY: Final = 2.0
NETWORK_LATENCY: Final = 5.0

Kind = Literal["gather", "reduce-scatter", "all-to-all"]
KINDS: Final[tuple[Kind, ...]] = ("gather", "reduce-scatter", "all-to-all")


@dataclass(frozen=True)
class Group:
    """GPUs that exchange: `inside` of each host, on `hosts` hosts."""

    inside: int
    hosts: int

    @property
    def size(self) -> int:
        return self.inside * self.hosts


@dataclass(frozen=True)
class Exchange:
    """What one GPU receives (it sends as much), and the seconds that it takes alone."""

    nvlink_bytes: float = 0.0
    network_bytes: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Exchange") -> "Exchange":
        """One after the other."""
        return Exchange(
            self.nvlink_bytes + other.nvlink_bytes,
            self.network_bytes + other.network_bytes,
            self.seconds + other.seconds,
        )

    def times(self, count: float) -> "Exchange":
        return Exchange(count * self.nvlink_bytes, count * self.network_bytes, count * self.seconds)


@dataclass(frozen=True)
class Link:
    """NVLink as one kind of exchange finds it."""

    rate: float
    """Bytes a second that a GPU receives, while it sends as many."""
    latency: float
    """Seconds of one step of an exchange."""


@dataclass(frozen=True)
class Links:
    """Hosts of GPUs with NVLink inside and a network adapter for each GPU between them."""

    gpus_per_host: int
    nvlink: float
    """Bytes a second that a GPU receives, while it sends as many."""
    network: float
    """The same between hosts."""
    nvlink_latency: float
    """Seconds of one step of an exchange."""
    network_latency: float
    measured: Mapping[Kind, Link] = field(default_factory=dict)
    """Inside a host, instead of `nvlink` and `nvlink_latency`."""

    def inside(self, kind: Kind) -> Link:
        return self.measured.get(kind) or Link(self.nvlink, self.nvlink_latency)

    def group(self, size: int, stride: int) -> Group:
        """`size` GPUs whose numbers are `stride` apart; GPUs are numbered host by host. Both are
        such that every host has as many of them."""
        inside = min(size, max(1, self.gpus_per_host // stride))
        return Group(inside, size // inside)

    def gather(self, group: Group, bytes_: float) -> Exchange:
        """Each GPU has a part of `bytes_`, and wants all. Rings of GPUs with the same place in
        their hosts pass parts over the network, and rings inside the hosts pass these on."""
        return self._rings("gather", group, bytes_)

    def reduce_scatter(self, group: Group, bytes_: float) -> Exchange:
        """Each GPU has addends of `bytes_`, and wants its part of the sum: a gather backwards."""
        return self._rings("reduce-scatter", group, bytes_)

    def all_reduce(self, group: Group, bytes_: float) -> Exchange:
        """A reduce-scatter and a gather."""
        return self.reduce_scatter(group, bytes_) + self.gather(group, bytes_)

    def all_to_all(self, nvlink_bytes: float, network_bytes: float) -> Exchange:
        """One step on each kind of link that has something to carry."""
        steps = int(nvlink_bytes > 0), int(network_bytes > 0)
        return self._exchange("all-to-all", nvlink_bytes, network_bytes, *steps)

    def document(self) -> dict[str, Any]:
        """For JSON: bytes and seconds. "measured" is there if something was."""
        found = dataclasses.asdict(self)
        if not self.measured:
            del found["measured"]
        return found

    def _rings(self, kind: Kind, group: Group, bytes_: float) -> Exchange:
        part = bytes_ / group.size
        return self._exchange(
            kind,
            nvlink_bytes=part * group.hosts * (group.inside - 1),
            network_bytes=part * (group.hosts - 1),
            nvlink_steps=group.inside - 1,
            network_steps=group.hosts - 1,
        )

    def _exchange(
        self,
        kind: Kind,
        nvlink_bytes: float,
        network_bytes: float,
        nvlink_steps: int,
        network_steps: int,
    ) -> Exchange:
        """Both kinds of links carry at once, as pieces are passed on while others come."""
        inside = self.inside(kind)
        seconds = max(nvlink_bytes / inside.rate, network_bytes / self.network)
        latency = nvlink_steps * inside.latency + network_steps * self.network_latency
        return Exchange(nvlink_bytes, network_bytes, seconds + latency)


def links_of(
    gpus_per_host: int,
    nvlink: float = NVLINK,
    network: float = NETWORK,
    nvlink_latency: float = NVLINK_LATENCY,
    network_latency: float = NETWORK_LATENCY,
    measured: Mapping[Kind, Link] | None = None,
) -> Links:
    """Of numbers in the units of those above."""
    return Links(
        gpus_per_host=gpus_per_host,
        nvlink=nvlink * 1e9 / 2,
        network=network * 1e9 / 8,
        nvlink_latency=nvlink_latency * 1e-6,
        network_latency=network_latency * 1e-6,
        measured=measured or {},
    )
