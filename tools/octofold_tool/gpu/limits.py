"""Upper limits of this GPU, measured in the same run as what is compared with them."""

from dataclasses import dataclass

import torch
from octofold._timing import Call, Method, medians

from ..products import GemmOptions
from ..suites import Shape
from .peers import prepare_tensor_scales

ROUNDS = 5
READ_BYTES = 4 << 30
PRODUCT_SIZE = 8192


@dataclass(frozen=True)
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
    options = GemmOptions(("e4m3", "e4m3"), ("tensor", "tensor"), "bfloat16", ROUNDS)
    x, w = (torch.randn(size, size, device=device) for _ in range(2))
    product_seconds = median_seconds(method, prepare_tensor_scales(x, w, options).run)
    return Limits(read_bytes / read_seconds, 2 * size**3 / product_seconds)


def median_seconds(method: Method, call: Call) -> float:
    call()
    return medians([method.sampler([call])], ROUNDS)[0]
