"""How far an expert's tokens travel."""

from functools import cache
from math import comb

from .models import Routing


@cache
def chance_of_visit(routing: Routing, parts: int) -> float:
    """The chance that a token has an expert in one of `parts` equal parts of the experts, if it
    chooses its groups and its experts evenly.

    A part holds whole groups, or lies in one. Raises ValueError otherwise.
    """
    experts, part = routing.experts, routing.experts // parts
    group = experts // routing.groups
    reachable = group * routing.top_groups
    if experts % parts or (part % group and group % part):
        raise ValueError(f"{parts} parts cut the groups of {routing}")
    whole = max(1, part // group)  # groups that the part has a share of
    chance = 0.0
    for chosen in range(1, min(whole, routing.top_groups) + 1):
        others = routing.groups - whole, routing.top_groups - chosen
        ways = comb(whole, chosen) * comb(*others) / comb(routing.groups, routing.top_groups)
        inside = chosen * min(part, group)
        missed = comb(reachable - inside, routing.top_k) / comb(reachable, routing.top_k)
        chance += ways * (1 - missed)
    return chance


def copies_of_token(routing: Routing, ranks: int, hosts: int) -> tuple[float, float]:
    """Copies of a token that travel over NVLink and over the network, on average, with the experts
    spread over `ranks` GPUs on `hosts` hosts.

    A token crosses the network once for each host, to the GPU with the number of its own, and goes
    from there to the host's other GPUs over NVLink.
    """
    nvlink = (ranks - hosts) * chance_of_visit(routing, ranks)
    network = (hosts - 1) * chance_of_visit(routing, hosts) if hosts > 1 else 0.0
    return nvlink, network
