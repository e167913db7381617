"""Layers have the bits that they had at commit 808600c6, before they were moved into C++: digests
of results and gradients, recorded in tests/cases/layer_bits.json by backend. Experts' gradients by
biases, and their activations in 16 bits, were torch's then, and rounded more than once.

    python -m tests.python.nn.test_same_bits    # records this machine's CPU, and its GPU

"cpu", recorded with AVX2 on an AMD EPYC, is to hold for every x86 processor with AVX2 and FMA, with
AVX-512 too, and for any number of threads: the library sums an element's products in the order of
K, whatever its vectors. "cpu SSE2", which does not fuse sums with scales, has other bits, and "cpu
NEON" perhaps. GPUs have their compute capability, "9.0". What nobody has recorded is skipped.

torch's products sum as its libraries like on the processor at hand: the weight's gradient of
"rowwise_with_gw_hp", FP32 with FP8 weights. There numbers have 8 bits at most, so that sums are
exact in any order. Behind a norm or an activation they cannot be: there dY is zero but for two
tokens, a sum without an order.

"9.0" is of an H200, in two runs. In another, 84aa7d0e had the bits of 808600c6 in all cases; FP32
gradients of an MLP have others since other kernels are planned for their few rows. Gradients by a
norm's operands have others since their spans are added by more threads, and are not recorded yet.
"""

import contextlib
import hashlib
import json
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import octofold
import pytest
import torch

from tests.python import devices
from tests.python.nn.fused_support import BF16, CURVES, FP16, FP32, GATES
from tests.python.nn.layer_support import NAMES, ask_for_main_grad, mlp_of_three

pytestmark = pytest.mark.usefixtures("each_device")

nn = octofold.nn
FILE = Path(__file__).parents[2] / "cases" / "layer_bits.json"
RECORD = json.loads(FILE.read_text())
IN, HIDDEN, OUT, EXPERTS, SLOTS = 300, 130, 200, 4, 2
HIGH = "rowwise_with_gw_hp"
INVARIANT = nn.recipes.batch_invariant("blockwise")
RECIPES = {**{name: name for name in NAMES}, "batch_invariant": INVARIANT}
BITS = {BF16: 8, FP16: 11, FP32: 20}
ALL = {"x", "residual", "routing", "norm", "weight", "bias"}
MODULES = {
    "linear": partial(nn.Linear, IN, OUT, force_fp8=True),
    "norm and linear": partial(nn.NormLinear, IN, OUT, force_fp8=True),
    "mlp": partial(nn.MLP, IN, HIDDEN, OUT, force_fp8=True),
    "experts": partial(nn.Experts, IN, HIDDEN, EXPERTS),
}
OPTIONS = {
    "only x": {"trained": {"x"}},
    "only weights": {"trained": {"weight"}},
    "frozen weights": {"trained": ALL - {"weight"}},
    "no gradient": {"trained": set()},
    "main_grad": {"ways": ["main_grad"]},
    "kept casts": {"ways": ["keep_casts"]},
    "vector": {"tokens": ()},
    "no tokens": {"tokens": (0,)},
    "2x130 tokens": {"tokens": (2, 130)},
    "FP32 weights": {"weights": FP32},
    "FP16 weights": {"dtype": FP32, "weights": FP16},
    "autocast": {"dtype": FP32, "ways": ["autocast"]},
    "FP16": {"dtype": FP16},
    "FP32": {"dtype": FP32},
}


def cases():
    """For each case its name, what makes a module, and options of digests()."""
    linear, _, mlp, experts = MODULES.values()
    for kind, make in MODULES.items():
        for name, options in OPTIONS.items():
            yield f"{kind}, {name}", make, options
    for name in ("only weights", "frozen weights", "main_grad", "FP32"):
        yield f"linear, {HIGH}, {name}", partial(linear, recipe=HIGH), OPTIONS[name]
    for name, recipe in RECIPES.items():
        ways = ["two tokens"] * (name == HIGH)
        for bias in (False, True):
            yield f"linear, {name}, bias={bias}", partial(linear, bias=bias, recipe=recipe), {}
            if name != HIGH:
                make = partial(experts, bias=bias, recipe=recipe)
                yield f"experts, {name}, bias={bias}", make, {"ways": ["two tokens"] * bias}
        for norm, residual in (("rms", ["residual"]), ("layer", [])):
            for kind in ("norm and linear", "mlp"):
                make = partial(MODULES[kind], norm=norm, recipe=recipe)
                yield f"{kind}, {norm}, {name}", make, {"ways": ways + residual}
        yield f"mlp, {name}, bias", partial(mlp, bias=True, recipe=recipe), {"ways": ways}
        twin = partial(nn.inference_linear, recipe=recipe)
        yield f"inference, {name}", linear, {"twin": twin, "trained": {"x"}}
    for name in (*GATES, *CURVES):
        yield f"mlp, {name}", partial(mlp, activation=name), {}
        yield f"experts, {name}", partial(experts, activation=name), {}
    for name, way in (("tensorwise", "main_grad"), (HIGH, "two tokens")):
        yield f"mlp of three, {name}", partial(mlp_of_three, name, IN, HIDDEN), {"ways": [way]}
    yield "mlp, kept in FP8", partial(mlp, keep_fp8=True), {}
    for name in ("blockwise", "rowwise", "tensorwise"):
        for compute in ("native", "weight-only"):
            make = partial(experts, bias=name == "rowwise", activation="swiglu-oss")
            twin = partial(coded, recipe=name, compute=compute)
            yield f"FP8 experts, {name}, {compute}", make, {"twin": twin, "ways": ["two tokens"]}
    for scales in ("128x128", "channel", "tensor"):
        for dtype in (BF16, FP16, FP32):
            format = octofold.Format(granularity=scales, power_of_two=dtype == FP32 or None)
            twin = partial(nn.weight_only_linear, format=format)
            yield f"weight-only, {scales}, {dtype}", linear, {"dtype": dtype, "twin": twin}


def coded(module, recipe, **options):
    """Experts with the same weights in FP8."""
    granularity = nn.recipes.recipe_of("", recipe).output.b.granularity
    weights = module.gate_up_proj.detach(), module.down_proj.detach()
    codes = (octofold.quantize(weight, granularity, matrices=EXPERTS) for weight in weights)
    biases = module.gate_up_proj_bias, module.down_proj_bias
    return nn.Experts.from_weights(*codes, *biases, module.activation, recipe, **options)


def numbers(generator, most_bits, shape, size, dtype=FP32):
    """Fractions of a size, which some columns have halved."""
    bits = min(most_bits, BITS[dtype])
    raw = generator.random_raw(int(np.prod(shape))).reshape(shape) >> np.uint64(64 - bits)
    size = size * 0.5 ** (np.arange(shape[-1]) // 64 % 3)
    return torch.tensor((raw / 2 ** (bits - 1) - 1) * size, dtype=dtype)


def kind_of(name):
    if name in ALL:
        return name
    return "norm" if name.startswith("norm") else "bias" if name.endswith("bias") else "weight"


def digests(
    device, name, make, dtype=BF16, weights=None, tokens=(150,), trained=ALL, ways=(), twin=None
):
    """Digests of results and gradients, behind their names. Expert 0 has no tokens."""
    generator = np.random.PCG64(zlib.crc32(name.encode()))  # the same in each NumPy
    of = partial(numbers, generator, 8 if HIGH in name or "weight-only" in name else 20)
    with torch.device(device), contextlib.ExitStack() as contexts:
        module = make().to(weights or dtype)
        for key, parameter in module.named_parameters():
            values = of(parameter.shape, 0.5, parameter.dtype)
            parameter.data.copy_(values + (key == "norm.weight"))
        module = twin(module) if twin else module
        names = ("x", "residual") if "residual" in ways else ("x",)
        leaves = {key: of((*tokens, IN), 2, dtype) for key in names}
        inputs = list(leaves.values())
        if isinstance(module, nn.Experts):
            ids = 1 + of((*tokens, EXPERTS - 1), 1).argsort(-1)[..., :SLOTS].int()
            ids.view(-1)[4::7] = -1
            leaves["routing"] = of(ids.shape, 1).abs()
            inputs += ids, leaves["routing"]
        leaves.update(module.named_parameters())
        for key, leaf in leaves.items():
            leaf.requires_grad_(kind_of(key) in trained)
            if "main_grad" in ways and kind_of(key) == "weight":
                leaf.main_grad = of(leaf.shape, 2)
                ask_for_main_grad(module)
        if "keep_casts" in ways:
            contexts.enter_context(nn.keep_casts(module))
            module(*inputs)
        contexts.enter_context(torch.autocast(device, BF16, enabled="autocast" in ways))
        results = module(*inputs)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        dy = [of(y.shape, 0.5, y.dtype) for y in results]
        if "two tokens" in ways:
            dy[0][2:] = 0
        if trained:
            torch.autograd.backward(results, dy)
    found = dict(zip(("y", "sum"), results, strict=False))
    found |= {key: getattr(leaf, "main_grad", leaf.grad) for key, leaf in leaves.items()}
    return ", ".join(f"{key} {digest(t)}" for key, t in found.items() if t is not None)


def digest(tensor):
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {[*tensor.shape]}".encode() + values).hexdigest()[:16]


def backend_of(device):
    """The key of a device in the record."""
    if device == "cuda":
        return ".".join(map(str, torch.cuda.get_device_capability()))
    vectors = octofold.info().cpu.detail.split()[0]
    return "cpu" if vectors in ("AVX2", "AVX-512") else f"cpu {vectors}"


CASES = {name: partial(digests, name=name, make=make, **o) for name, make, o in cases()}


@pytest.mark.parametrize("name", CASES)
def test_same_bits(name):
    backend = backend_of(devices.device())
    if backend not in RECORD:
        pytest.skip(f"python -m {__spec__.name}: records {backend}, as nobody has done yet")
    recorded, found = (
        set(text.split(", ")) for text in (RECORD[backend][name], CASES[name](devices.device()))
    )
    assert recorded <= found


if __name__ == "__main__":
    for device in {"cpu", devices.gpu() or "cpu"}:
        RECORD[backend_of(device)] = {name: run(device) for name, run in CASES.items()}
    FILE.write_text(json.dumps(RECORD, indent=1) + "\n")
