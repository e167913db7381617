"""The smallest problem of each operation with each granularity, to be tried on a GPU."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from ._info import Gpu
from .activations import quantize_activation
from .attention import attention
from .casts import quantize
from .dot import dot
from .dynamic_gemm import dynamic_gemm
from .errors import Error
from .gated_gemm import gated_gemm
from .gemm import gemm
from .gemm_weight_only import gemm_weight_only
from .gemv import gemv
from .grouped_gemm import grouped_gemm
from .norms import quantize_norm
from .routing import top_k
from .scaled_tensor import ScaledTensor

GRANULARITIES: Final = ("tensor", "channel", "1x128", "128x128")
ERROR_LIMIT: Final = 1e-2
"""Of the result's norm: another order of sums, and one rounding to 16 bits."""

# Moves tensors and ScaledTensors to where the operation is to run.
Put = Callable[[Any], Any]


@dataclass(frozen=True)
class Probe:
    """A problem: `run` computes it where `put` puts its operands, and returns a torch tensor."""

    operation: str
    """As info() names it."""
    granularities: str
    run: Callable[[Put], Any]

    def try_on(self, index: int) -> tuple[bool, str]:
        """Whether the GPU has the CPU backend's result, and what is wrong if not."""
        try:
            expected = self.run(lambda operand: operand).double()
            actual = self.run(lambda operand: operand.to(f"cuda:{index}")).double().cpu()
        except (Error, RuntimeError) as error:
            return False, " ".join(str(error).split())
        error_norm = float((actual - expected).norm() / expected.norm())
        if error_norm <= ERROR_LIMIT:  # NaN is beyond it
            return True, ""
        return False, f"relative error {error_norm:.1e}"


def why_no_probe(gpus: Sequence[Gpu]) -> str:
    """Why nothing can be tried here; "" where it can."""
    if not gpus:
        return "there is no GPU here"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed, through which GPUs are tried"
    unusable = next((gpu.backend.detail for gpu in gpus if not gpu.backend.available), "")
    import torch

    return unusable or ("" if torch.cuda.is_available() else "PyTorch sees no GPU")


def _random(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _cast(rows: int, granularity: str, seed: int, matrices: int | None = None) -> ScaledTensor:
    shape = (rows, 256) if matrices is None else (matrices, rows, 256)
    result: ScaledTensor = quantize(
        _random(*shape, seed=seed), granularity=granularity, matrices=matrices
    )
    return result


def _products(a: str, b: str) -> Callable[[Put], Any]:
    return lambda put: gemm(put(_cast(48, a, 1)), put(_cast(64, b, 2)), out_dtype="float32")


def _grouped(a: str, b: str) -> Callable[[Put], Any]:
    def run(put: Put) -> Any:
        import torch

        offsets = put(torch.tensor([0, 20, 48], dtype=torch.int32))
        operands = put(_cast(48, a, 1)), put(_cast(64, b, 2, matrices=2))
        return grouped_gemm(*operands, offsets, out_dtype="float32")

    return run


def _gated(put: Put) -> Any:
    operands = put(_cast(48, "1x128", 1)), put(_cast(256, "128x128", 2))
    return gated_gemm(*operands).dequantize()


def _dynamic(b: str) -> Callable[[Put], Any]:
    return lambda put: dynamic_gemm(put(_random(8, 256).half()), put(_cast(64, b, 2)))


def _weight_only(w: str) -> Callable[[Put], Any]:
    return lambda put: gemm_weight_only(put(_random(48, 256).half()), put(_cast(64, w, 2)))


def _vector(w: str) -> Callable[[Put], Any]:
    return lambda put: gemv(put(_cast(64, w, 2)), put(_random(256)))


def _dot(granularity: str) -> Callable[[Put], Any]:
    return lambda put: dot(put(_cast(1, granularity, 1)), put(_cast(1, granularity, 2)))


def _casts(granularity: str) -> Callable[[Put], Any]:
    def run(put: Put) -> Any:
        x = put(_random(130, 512))
        plain = quantize(x, granularity=granularity).dequantize()
        return plain[:, :256] + quantize_activation(x, granularity=granularity).dequantize()

    return run


def _norm(put: Put) -> Any:
    rows = quantize_norm(put(_random(48, 256)), put(_random(256, seed=1))).rows
    assert rows is not None
    return rows.dequantize()


def _routing(put: Put) -> Any:
    return top_k(put(_random(48, 64)), 4).weights


def _attention(granularity: str) -> Callable[[Put], Any]:
    def run(put: Put) -> Any:
        import torch

        q, k, v = (_random(1, 48, 2, 64, seed=seed) for seed in range(3))
        codes = [put(x.to(torch.float8_e4m3fn)) for x in (k, v)]
        scales = {}
        if granularity != "none":
            shape = {"tensor": (1,), "head": (2,)}[granularity]
            scales = {name: put(torch.full(shape, 0.5)) for name in ("k_scale", "v_scale")}
        return attention(put(q.half()), *codes, **scales)

    return run


def _all() -> Iterator[Probe]:
    for a, b in product(GRANULARITIES, repeat=2):
        yield Probe("products", f"{a} × {b}", _products(a, b))
    for a, b in (*((g, g) for g in GRANULARITIES), ("1x128", "128x128")):
        yield Probe("grouped products", f"{a} × {b}", _grouped(a, b))
    yield Probe("gated products", "1x128 × 128x128", _gated)
    for each, make in (
        ("products that cast A", _dynamic),
        ("products with FP8 weights", _weight_only),
        ("products with vectors", _vector),
        ("dot products", _dot),
        ("casts", _casts),
    ):
        for granularity in GRANULARITIES:
            yield Probe(each, granularity, make(granularity))
    for granularity in ("none", "tensor", "head"):
        yield Probe("attention", granularity, _attention(granularity))
    yield Probe("norms", "1x128", _norm)
    yield Probe("routing", "", _routing)


PROBES: Final = tuple(_all())
