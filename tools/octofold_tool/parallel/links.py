"""What an exchange between GPUs moves, and how long it takes."""

from dataclasses import dataclass


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

    def group(self, size: int, stride: int) -> Group:
        """`size` GPUs whose numbers are `stride` apart; GPUs are numbered host by host. Both are
        such that every host has as many of them."""
        inside = min(size, max(1, self.gpus_per_host // stride))
        return Group(inside, size // inside)

    def gather(self, group: Group, bytes_: float) -> Exchange:
        """Each GPU has a part of `bytes_`, and wants all. Rings of GPUs with the same place in
        their hosts pass parts over the network, and rings inside the hosts pass these on."""
        part = bytes_ / group.size
        return self._exchange(
            nvlink_bytes=part * group.hosts * (group.inside - 1),
            network_bytes=part * (group.hosts - 1),
            nvlink_steps=group.inside - 1,
            network_steps=group.hosts - 1,
        )

    def reduce_scatter(self, group: Group, bytes_: float) -> Exchange:
        """Each GPU has addends of `bytes_`, and wants its part of the sum: a gather backwards."""
        return self.gather(group, bytes_)

    def all_reduce(self, group: Group, bytes_: float) -> Exchange:
        """A reduce-scatter and a gather."""
        return self.reduce_scatter(group, bytes_) + self.gather(group, bytes_)

    def all_to_all(self, nvlink_bytes: float, network_bytes: float) -> Exchange:
        """One step on each kind of link that has something to carry."""
        return self._exchange(
            nvlink_bytes, network_bytes, int(nvlink_bytes > 0), int(network_bytes > 0)
        )

    def _exchange(
        self, nvlink_bytes: float, network_bytes: float, nvlink_steps: int, network_steps: int
    ) -> Exchange:
        """Both kinds of links carry at once, as pieces are passed on while others come."""
        seconds = max(nvlink_bytes / self.nvlink, network_bytes / self.network)
        latency = nvlink_steps * self.nvlink_latency + network_steps * self.network_latency
        return Exchange(nvlink_bytes, network_bytes, seconds + latency)
