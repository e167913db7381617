"""The smallest problem of each operation with operands of each form, to be tried on a GPU."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Final

from ._core.errors import Error
from ._core.formats import GRANULARITIES, HALF
from ._core.scaled_tensor import ScaledTensor
from ._info import Gpu
from ._ops.attention import attention, rotary
from ._ops.cast import Target, cast
from ._ops.cast_sources import Activated, ActivationGradient, Gathered, Normed
from ._ops.dot import dot
from ._ops.gated_gemm import gated_gemm
from ._ops.gemm import gemm
from ._ops.gemm_weight_only import (
    gemm_weight_only,
    gemm_weight_only_gradient,
    grouped_gemm_weight_only,
    grouped_gemm_weight_only_gradient,
)
from ._ops.grouped_gemm import Depth, Masked, Rows, grouped_gemm
from ._ops.norms import norm, norm_gradient
from ._ops.quantize import quantize
from ._ops.routing import (
    activation_dots,
    combine,
    combine_gradient,
    sort_by_expert,
    top_k,
    top_k_gradient,
)
from ._ops.words import convert_dtype, transpose

ERROR_LIMIT: Final = 1e-2
"""The error limit, relative to the result's norm: other order of sums, one rounding to 16 bits."""

# Moves tensors and ScaledTensors to where the operation is to run.
Put = Callable[[Any], Any]


def try_on(index: int, operation: str, forms: Sequence[str]) -> tuple[bool, str]:
    """True if the GPU has the CPU backend's result; and what is wrong if not."""
    try:
        expected = compute(operation, forms, lambda operand: operand)
        actual = compute(operation, forms, lambda operand: operand.to(f"cuda:{index}")).cpu()
    except (Error, RuntimeError) as error:
        return False, " ".join(str(error).split())
    error_norm = float((actual - expected).norm() / expected.norm())
    if error_norm <= ERROR_LIMIT:  # NaN is beyond it
        return True, ""
    return False, f"relative error {error_norm:.1e}"


def compute(operation: str, forms: Sequence[str], put: Put) -> Any:
    """All that the operation writes, one behind another in float64.

    forms: of the operands, as Capability.operands has them.
    put: gives each operand where the operation is to run.
    """
    import torch

    results = _PROBLEMS[operation](put, *forms)
    tensors = [results] if isinstance(results, (torch.Tensor, ScaledTensor)) else results
    numbers = [
        tensor.dequantize() if isinstance(tensor, ScaledTensor) else tensor for tensor in tensors
    ]
    return torch.cat([tensor.double().flatten() for tensor in numbers])


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


def _integers(*values: int) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int32)


def _factors(rows: int) -> Any:
    import torch

    return torch.linspace(0.5, 2, rows)


def _operand(form: str, *shape: int, seed: int = 0, matrices: int | None = None) -> Any:
    """Random, of a form."""
    import torch

    x = _random(*shape, seed=seed)
    if form in GRANULARITIES:
        return quantize(x, form, matrices=matrices)
    if form == "two-level":
        factors = _factors(x.numel() // x.shape[-1])
        return cast(x, rows=Target("128x128", channel_scale=factors), matrices=matrices).rows
    dtypes = {"numbers": torch.float32, "fp8": torch.float8_e4m3fn}
    return x.to(dtypes.get(form) or getattr(torch, form))


# The operands have M = 48, N = 64, K = 256; rows of two experts end at 20 and at 48.


def _a(form: str, *groups: int) -> Any:
    return _operand(form, *groups, 48, 256, seed=1)


def _b(form: str, rows: int = 64, matrices: int | None = None) -> Any:
    shape = (rows, 256) if matrices is None else (matrices, rows, 256)
    return _operand(form, *shape, seed=2, matrices=matrices)


def _offsets() -> Any:
    return _integers(0, 20, 48)


def _gemm(put: Put, a: str, b: str) -> Any:
    """Computes gemm(), which casts `a` itself if that is numbers."""
    return gemm(put(_a(a)), put(_b(b)), out_dtype="float32")


def _gated_gemm(put: Put, a: str, b: str, out: str) -> Any:
    groups = Rows(put(_offsets()))
    of_groups = gated_gemm(put(_a(a)), put(_b(b, 256, matrices=2)), groups)
    return gated_gemm(put(_a(a)), put(_b(b, 256))), of_groups


def _grouped_gemm(put: Put, a: str, b: str) -> Any:
    """Computes grouped_gemm() with each kind of groups."""
    weights = put(_b(b, matrices=2))
    rows = put(_a(a)), weights, Rows(put(_offsets()))
    masked = put(_operand(a, 2, 24, 256)), weights, Masked(put(_integers(24, 24)))
    # Whole blocks of 128: what is behind a shorter group would have to be 0.
    operands = put(_operand(a, 48, 512, seed=1)), put(_operand(b, 64, 512, seed=2))
    depth = *operands, Depth(put(_integers(0, 128, 256)))
    return tuple(grouped_gemm(*each, out_dtype="float32") for each in (rows, masked, depth))


def _gemm_weight_only(put: Put, x: str, w: str) -> Any:
    rows = 48 if x in HALF else 1  # of other types it takes few
    return gemm_weight_only(put(_operand(x, rows, 256, seed=1)), put(_b(w)), out_dtype="float32")


def _gemm_weight_only_gradient(put: Put, gradient: str, w: str) -> Any:
    operands = put(_operand(gradient, 48, 64, seed=1)), put(_b(w))
    return gemm_weight_only_gradient(*operands, out_dtype="float32")


def _weight_only_groups(put: Put, x: Any) -> tuple[tuple[Any, Any], ...]:
    """The 48 rows of x for two experts, each way in which they may come: as they are, gathered, and
    in groups with room for as many."""
    rows = Rows(put(_offsets()))
    gathered = Gathered(x, put(_integers(*reversed(range(48)))))
    masked = x.reshape(2, 24, x.shape[1]), Masked(put(_integers(24, 24)))
    return (x, rows), (gathered, rows), masked


def _grouped_gemm_weight_only(put: Put, x: str, w: str) -> Any:
    weights, rows = put(_b(w, matrices=2)), put(_operand(x, 48, 256, seed=1))
    return tuple(
        grouped_gemm_weight_only(each, weights, groups, out_dtype="float32")
        for each, groups in _weight_only_groups(put, rows)
    )


def _grouped_gemm_weight_only_gradient(put: Put, gradient: str, w: str) -> Any:
    weights, rows = put(_b(w, matrices=2)), put(_operand(gradient, 48, 64, seed=1))
    return tuple(
        grouped_gemm_weight_only_gradient(each, weights, groups, out_dtype="float32")
        for each, groups in _weight_only_groups(put, rows)
    )


def _dot(put: Put, a: str, b: str) -> Any:
    return dot(put(_operand(a, 1, 256, seed=1)), put(_operand(b, 1, 256, seed=2)))


def _attention(put: Put, q: str, kv: str) -> Any:
    k, v = (put(_operand("fp8", 1, 48, 2, 64, seed=seed)) for seed in (1, 2))
    shape = {"fp8": None, "tensor": (1,), "head": (2,), "128 keys": (1, 1, 2)}[kv]
    scale = None if shape is None else put(_factors(1).expand(shape).contiguous())
    return attention(put(_operand(q, 1, 48, 2, 64)), k, v, k_scale=scale, v_scale=scale)


def _convert_dtype(put: Put) -> Any:
    return convert_dtype(put(_a("numbers")), "e4m3")


def _transpose(put: Put) -> Any:
    return transpose(put(_a("tensor")).data)


def _target(put: Put, form: str, rows: int) -> Target:
    if form != "two-level":
        return Target(form)
    return Target("128x128", channel_scale=put(_factors(rows)))


def _cast(put: Put, rows: str, transposed: str) -> Any:
    targets = _target(put, rows, 48), _target(put, transposed, 256)
    return cast(put(_a("numbers")), rows=targets[0], transposed=targets[1])[:2]


def _quantize(put: Put, out: str) -> Any:
    return cast(put(_a("numbers")), rows=_target(put, out, 48)).rows


def _dequantize(put: Put, x: str) -> Any:
    return put(_a(x)).dequantize()


def _cast_activated(put: Put, x: str, out: str) -> Any:
    return cast(Activated(put(_operand(x, 48, 512))), rows=out).rows


def _cast_activation_gradient(put: Put, x: str, out: str) -> Any:
    source = ActivationGradient(put(_a("numbers")), put(_operand(x, 48, 512)))
    return cast(source, rows=out).rows


def _cast_gathered(put: Put, out: str) -> Any:
    sources = put(_integers(*reversed(range(48))))
    return cast(Gathered(put(_a("numbers")), sources), rows=out).rows


def _cast_normed(put: Put, out: str) -> Any:
    casts = cast(Normed(put(_a("numbers")), put(_factors(256))), rows=out)
    assert casts.norm is not None
    return casts.rows, casts.norm.rstd


def _norm(put: Put) -> Any:
    normed = norm(Normed(put(_a("numbers")), put(_factors(256))))
    return normed.y, normed.norm.rstd


def _norm_gradient(put: Put) -> Any:
    gradient, x = _operand("numbers", 48, 256), _a("numbers")
    rstd = x.square().mean(1).rsqrt()
    gradients = norm_gradient(put(gradient), put(x), put(rstd), weight=put(_factors(256)))
    return gradients.dx, gradients.d_weight


def _rotary(put: Put) -> Any:
    angles = _random(6, 32, seed=1).repeat(1, 2)
    operands = put(_random(6, 8, 64)), put(angles.cos()), put(angles.sin())
    return rotary(*operands), rotary(*operands, inverse=True)


def _ids() -> Any:
    return _random(48, 8).topk(2).indices.int()


def _top_k(put: Put) -> Any:
    return top_k(put(_random(48, 64)), 4)


def _top_k_gradient(put: Put) -> Any:
    return top_k_gradient(put(_random(48, 2, seed=1)), put(_random(48, 8)), put(_ids()))


def _sort_by_expert(put: Put) -> Any:
    return sort_by_expert(put(_ids()), 8)


def _combine(put: Put) -> Any:
    positions = _integers(*range(48)).reshape(24, 2)
    return combine(put(_a("numbers")), put(positions), put(_random(24, 2)))


def _combine_gradient(put: Put) -> Any:
    positions = _integers(*range(48)).reshape(24, 2)
    return combine_gradient(put(_random(24, 256)), put(_a("numbers")), put(positions))


def _activation_dots(put: Put) -> Any:
    positions = _integers(*range(48)).reshape(24, 2)
    gradient, x = put(_a("numbers")), put(_operand("numbers", 48, 512))
    return activation_dots(gradient, x, put(positions))


_PROBLEMS: Final[dict[str, Callable[..., Any]]] = {
    problem.__name__[1:]: problem
    for problem in (
        *(_convert_dtype, _transpose, _quantize, _cast, _dequantize),
        *(_cast_activated, _cast_activation_gradient, _cast_gathered),
        *(_cast_normed, _norm, _norm_gradient, _rotary),
        *(_top_k, _top_k_gradient, _sort_by_expert, _combine, _combine_gradient),
        _activation_dots,
        *(_dot, _gemm_weight_only, _gemm_weight_only_gradient, _attention),
        *(_grouped_gemm_weight_only, _grouped_gemm_weight_only_gradient),
        *(_gemm, _grouped_gemm, _gated_gemm),
    )
}
"""By public function."""
