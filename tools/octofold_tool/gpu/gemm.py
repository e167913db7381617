"""FP8 products on a GPU beside its peers': checked, then timed; and upper limits of this GPU, which
are measured in the same run."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import torch
from octofold._timing import COLD_BYTES, Call, Method, medians, set_count, timings

from ..gemm_options import Shape
from ..products import GemmOptions
from ..report import ToolError
from .measuring import (
    PEER_ERROR_LIMIT,
    Implementation,
    Product,
    Wrong,
    checked,
    error_of,
    limit_of,
)
from .peers import OCTOFOLD, PEERS, Peer, prepare_tensor_scales

LIMIT_ROUNDS = 5
READ_BYTES = 4 << 30
PRODUCT_SIZE = 8192


@dataclasses.dataclass(frozen=True)
class Limits:
    bytes_per_second: float  # of a sum over 4 GiB
    flops: float  # of cuBLASLt's tensor-scaled product of 8192³, which promotes nothing

    def seconds(self, shape: Shape, bytes_: int) -> float:
        """No product of this shape, which moves so many bytes, takes much less."""
        m, n, k = shape
        return max(bytes_ / self.bytes_per_second, 2 * m * n * k / self.flops)


def measure_limits(
    method: Method,
    device: torch.device,
    read_bytes: int = READ_BYTES,
    size: int = PRODUCT_SIZE,
) -> Limits:
    memory = torch.ones(read_bytes // 4, device=device)
    read_seconds = median_seconds(method, memory.sum)
    del memory
    options = GemmOptions(("e4m3", "e4m3"), ("tensor", "tensor"), "bfloat16", LIMIT_ROUNDS)
    x, w = (torch.randn(size, size, device=device) for _ in range(2))
    product_seconds = median_seconds(method, prepare_tensor_scales(x, w, options).run)
    return Limits(read_bytes / read_seconds, 2 * size**3 / product_seconds)


def median_seconds(method: Method, call: Call) -> float:
    call()
    return medians([method.sampler([call])], LIMIT_ROUNDS)[0]


@dataclasses.dataclass(frozen=True)
class Timing:
    """One way to multiply, at one shape."""

    microseconds: float
    spread: float  # half the quartile range over the median
    tflops: float
    relative_error: float


@dataclasses.dataclass(frozen=True)
class GpuShapeResult:
    """D[m, n] = A[m, k] · B[n, k]ᵀ."""

    m: int
    n: int
    k: int
    octofold: Timing
    peers: dict[str, Timing]  # by name; without those that cannot compute this
    missing: dict[str, str]  # the others, and why
    ratios: dict[str, float]  # a peer's time over ours: above 1, ours is faster
    share_of_limit: float  # the least time that the device's limits leave, over ours
    bytes: int
    sets: int  # of operands, taken in turn
    rounds: int


def measure(
    shape: Shape,
    options: GemmOptions,
    limits: Limits,
    method: Method,
    device: torch.device,
    min_bytes: int = COLD_BYTES,
) -> GpuShapeResult:
    """Check every product of every peer, then time all in turns."""
    m, n, k = shape
    products, missing = prepare(shape, options, device, min_bytes)
    ours = products[OCTOFOLD.name]
    errors, samplers = {}, {}
    for name, group in products.items():
        limit = limit_of(options, ours[0]) if name == OCTOFOLD.name else PEER_ERROR_LIMIT
        errors_of_group = partial(max_error, group)
        made = Implementation([product.run for product in group], errors_of_group, limit)
        try:
            errors[name] = checked(made)["error"]
        except Wrong as wrong:
            if name == OCTOFOLD.name:
                raise ToolError(f"{','.join(map(str, shape))}: {wrong}: a fault of ours") from None
            missing[name] = f"wrong here: {wrong}"
        else:
            samplers[name] = method.sampler(made.calls)
    timed = {
        name: Timing(
            microseconds=time.microseconds,
            spread=time.spread,
            tflops=2e-6 * m * n * k / time.microseconds,
            relative_error=errors[name],
        )
        for name, time in timings(samplers, options.rounds).items()
    }
    octofold = timed.pop(OCTOFOLD.name)
    least_seconds = limits.seconds(shape, ours[0].bytes())
    return GpuShapeResult(
        m=m,
        n=n,
        k=k,
        octofold=octofold,
        peers=timed,
        missing=missing,
        ratios={name: peer.microseconds / octofold.microseconds for name, peer in timed.items()},
        share_of_limit=least_seconds * 1e6 / octofold.microseconds,
        bytes=ours[0].bytes(),
        sets=len(ours),
        rounds=options.rounds,
    )


def prepare(
    shape: Shape,
    options: GemmOptions,
    device: torch.device,
    min_bytes: int,
    peers: Sequence[Peer] = (OCTOFOLD, *PEERS),
) -> tuple[dict[str, list[Product]], dict[str, str]]:
    """Each peer's products, one of each set of random matrices; and who has none, and why."""
    m, n, k = shape
    products: dict[str, list[Product]] = {}
    missing: dict[str, str] = {}
    sets = 1
    while not products or len(products[OCTOFOLD.name]) < sets:
        x = torch.randn(m, k, device=device)
        w = torch.randn(n, k, device=device)
        for peer in peers:
            if peer.name in missing:
                continue
            try:
                product = peer.prepare(x, w, options)
                product.run()
            except (RuntimeError, ValueError) as error:
                if peer is OCTOFOLD or products.get(peer.name):
                    raise
                missing[peer.name] = str(error).splitlines()[0]
            else:
                products.setdefault(peer.name, []).append(product)
        sets = set_count(products[OCTOFOLD.name][0].bytes(), total=min_bytes)
    return products, missing


def max_error(products: Sequence[Product]) -> float:
    """The largest relative error of the products of all sets; NaN if one is."""
    return float(torch.tensor([error_of(product) for product in products]).max())
