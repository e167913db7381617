"""Cast rules on the GPU against what libraries compute there, in torch's operations on CUDA tensors
and in Triton. `pytest -rP` prints how many codes and scales differ.
"""

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, DTYPES, ON_GPU, normal, torch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


def by_number(amax):
    """CUDA multiplies with the reciprocal."""
    return amax / 448.0 if ON_GPU else amax * torch.tensor(448.0).reciprocal()


def power_of_two_above(scale):
    bits = scale.view(torch.int32)
    return ((bits >> 23) + ((bits & 0x7FFFFF) != 0).int() << 23).view(torch.float32)


# Scales of 1 x 128, and whether codes are x / scale. The sources are those of docs/numerics.md.
CASTS = {
    "deepgemm-cuda": (lambda amax, x: by_number(amax.clamp(1e-4)), False),
    "vllm": (lambda amax, x: amax.clamp(1e-10) / torch.full_like(amax, 448.0), False),
    "vllm-triton": (lambda amax, x: by_number(amax.clamp(1e-10)), True),
    "deepseek": (lambda amax, x: by_number(amax.clamp(1e-4)), True),
    "torchao-tensor-cuda": (lambda amax, x: by_number(amax).to(x.dtype).float(), True),
}


def spread_out(generator, source):
    """Finite rows, half of them of every magnitude; zeros."""
    lowest, highest = (-20, 10) if source == "float16" else (-145, 120)
    x = normal(generator, 1024, 2048)
    x[512:] *= torch.exp2(torch.linspace(lowest, highest, 512, device=DEVICE))[:, None]
    x[500] = x[::7, 128:256] = 0
    return x.to(DTYPES[source])


def differences(x, rule, power_of_two, codes, scale):
    """The parts of codes and scales that differ, printed."""
    actual = octofold.quantize(x, octofold.Format(rule=rule, power_of_two=power_of_two))
    pairs = (actual.data.view(torch.uint8), codes.view(torch.uint8)), (actual.scale, scale)
    parts = [float((a != b.view(a.shape)).float().mean()) for a, b in pairs]
    print(f"{rule}, {x.dtype}, {power_of_two=}: codes {parts[0]:.1e}, scales {parts[1]:.1e} differ")
    return parts


@pytest.mark.parametrize("source", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("rule", CASTS)
def test_torch(rule, power_of_two, source, generator):
    scale_of, divides = CASTS[rule]
    x = spread_out(generator, source)
    if rule == "torchao-tensor-cuda":
        x = x[1:500:7]  # which has no zeros
    units = x.float().unflatten(1, (-1, 128))
    scale = scale_of(units.abs().amax(2, keepdim=True), x)
    if power_of_two:
        scale = power_of_two_above(scale.clamp(1e-10) if rule == "vllm" else scale)
    codes = (units / scale if divides else units * (1.0 / scale)).to(torch.float8_e4m3fn)
    assert differences(x, rule, power_of_two, codes, scale) == [0, 0]
    if rule == "deepgemm-cuda" and ON_GPU:  # the rule for CPU tensors has the same powers of two
        others = differences(x, "deepgemm", power_of_two, codes, scale)[1]
        assert others == 0 if power_of_two else others > 0.1


@triton.jit
def triton_cast(x, codes, scales, floor: tl.constexpr, power_of_two: tl.constexpr):
    unit = tl.program_id(0)
    places = unit * 128 + tl.arange(0, 128)
    values = tl.load(x + places).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values)), floor) / 448.0
    if power_of_two:
        scale = tl.math.exp2(tl.math.ceil(tl.math.log2(scale)))
    tl.store(codes + places, (values / scale).to(codes.dtype.element_ty))
    tl.store(scales + unit, scale)


@pytest.mark.skipif(not ON_GPU, reason="Triton's kernels need one")
@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize(("rule", "floor"), [("deepseek", 1e-4), ("vllm-triton", 1e-10)])
def test_triton(rule, floor, power_of_two, generator):
    """Its scales to the bit; it approximates divisions by them, and logarithms."""
    x = spread_out(generator, "bfloat16")
    codes = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scale = torch.empty((1024, 16), device=DEVICE)
    triton_cast[(1024 * 16,)](x, codes, scale, floor, power_of_two)
    of_codes, of_scales = differences(x, rule, power_of_two, codes, scale)
    assert of_codes < 1e-2
    assert of_scales <= (1e-4 if power_of_two else 0)
