"""octofold.nn.Fp8Weight, an FP8 weight as a tensor: what keeps codes, what sees numbers, and how a
linear layer computes with it."""

import copy
import io
import pickle

import octofold
import pytest
import torch
from octofold.nn import Fp8Weight
from octofold.nn.autograd import frozen
from octofold.nn.casting import fp8_weight
from octofold.nn.recipes import kernels

from tests.python.nn.layer_support import random, relative_error

FORMATS = ["128x128", "1x128", "channel", "tensor", "e5m2 128x128"]
BF16 = torch.bfloat16
functional = torch.nn.functional


def weight(format="128x128", **options):
    torch.manual_seed(0)
    return Fp8Weight.cast(random(384, 256, dtype=BF16), format, **options)


def linear(format="128x128", **options):
    layer = torch.nn.Linear(256, 384).to(BF16)
    layer.weight = torch.nn.Parameter(weight(format, **options), requires_grad=False)
    return layer


@pytest.mark.parametrize("format", FORMATS)
def test_a_linear_layer_computes_with_the_codes(format):
    layer, x = linear(format), random(7, 256, dtype=BF16).requires_grad_()
    scaled = octofold.quantize(random_of_weight(), format)
    assert layer.weight.scaled.equals(scaled)
    y = layer(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    bias = layer.bias.detach()
    assert torch.equal(y, octofold.gemm_weight_only(x.detach(), scaled, bias=bias))
    numbers = scaled.dequantize("float32").double()
    assert relative_error(x.grad, dy.double() @ numbers) < 4e-3
    assert relative_error(layer.bias.grad, dy.double().sum(0)) < 4e-3
    assert layer.weight.grad is None


def random_of_weight():
    torch.manual_seed(0)
    return random(384, 256, dtype=BF16)


@pytest.mark.parametrize("compute", Fp8Weight.COMPUTE)
def test_autocast_and_the_compute_dtype(compute):
    layer, x = linear(compute=compute).float(), random(5, 256)
    exact = x.double() @ layer.weight.dequantize(torch.float32).double().T + layer.bias.double()
    with torch.no_grad():
        with torch.autocast("cpu", torch.float16):
            y = layer(x)
        assert y.dtype == torch.float16
        assert relative_error(y, exact) < (0.06 if compute == "native" else 2e-3)
        whole = layer(x)
        layer.weight.compute_dtype = torch.float16
        half = layer(x)
        with torch.autocast("cpu", BF16):
            assert layer(x).dtype == BF16
    assert half.dtype == torch.float32
    assert relative_error(half, exact) < (0.06 if compute == "native" else 2e-3)
    assert compute == "native" or not torch.equal(whole, half)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("format", FORMATS)
def test_copies_and_files(format, dtype, tmp_path):
    layer, x = linear(format, compute_dtype=BF16).to(dtype), random(5, 256, dtype=dtype)
    file = io.BytesIO()
    torch.save({"layer": layer, "state": layer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert type(state["weight"]) is Fp8Weight
    zero = copy.deepcopy(layer)
    zero.weight.zero_()
    assert not zero.weight.any()
    zero.load_state_dict(state)
    made = copy.deepcopy(layer)
    made.load_state_dict(state, assign=True)
    others = saved["layer"], copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), zero, made
    for other in others:
        assert type(other.weight) is Fp8Weight
        assert isinstance(other.weight, torch.nn.Parameter)
        assert not other.weight.requires_grad
        assert other.weight.dtype == dtype
        assert other.weight.codes.data_ptr() != layer.weight.codes.data_ptr()
        assert other.weight.scaled.equals(layer.weight.scaled)
        assert torch.equal(other(x), layer(x))


def test_other_dtypes_and_devices():
    layer = linear()
    before, address = layer.weight.scaled, layer.weight.codes.data_ptr()
    half = copy.deepcopy(layer).half()
    assert half.weight.dtype == torch.float16
    assert half.weight.scaled.equals(before)
    assert half(random(3, 256, dtype=torch.float16)).dtype == torch.float16
    double = layer.weight.double()
    assert torch.equal(double + 0, layer.weight.dequantize(torch.float32).double())
    meta = copy.deepcopy(layer).to("meta")
    assert meta.weight.codes.is_meta
    assert meta(torch.empty(3, 256, dtype=BF16, device="meta")).shape == (3, 384)
    assert type(meta.to_empty(device="cpu").weight) is Fp8Weight
    layer.requires_grad_(True)
    assert not layer.weight.requires_grad
    assert layer.weight.codes.data_ptr() == address
    assert Fp8Weight(layer.weight, requires_grad=True).codes.data_ptr() == address  # accelerate
    kernel = Fp8Weight.cast(random(8, 6, 3, 3), "channel")  # a convolution's
    for other in (kernel.clone(), kernel.half(), kernel.cpu(), copy.deepcopy(kernel), kernel[:]):
        assert type(other) is Fp8Weight
        assert torch.equal(other.dequantize(torch.float32), kernel.dequantize())
    assert torch.equal(kernel[2:5].dequantize(), kernel.dequantize()[2:5])
    assert kernel.to("meta").scale.is_meta
    layer.share_memory()
    assert layer.weight.codes.is_shared()
    assert layer.weight.element_size() == layer.weight.itemsize == 1
    assert layer.weight.nbytes == 384 * 256 + 3 * 2 * 4


@pytest.mark.parametrize("format", FORMATS)
def test_slices_between_scales_are_views(format):
    whole = weight(format)
    numbers, x = whole.dequantize(), random(5, 256)
    parts = [functional.linear(x, part) for part in whole.chunk(3)]
    assert torch.equal(torch.cat(parts, 1), functional.linear(x, whole))
    for cut in (slice(128, 256), slice(-128, None), (slice(None), slice(128, 256))):
        part = whole[cut]
        assert type(part) is Fp8Weight
        assert torch.equal(part.dequantize(), numbers[cut])
    assert whole[128:256].codes.data_ptr() == whole.codes.data_ptr() + 128 * 256
    for cut in (slice(100), (slice(None), slice(192, None)), slice(None, None, 2), 3):
        assert torch.equal(whole[cut] + 0, numbers[cut])  # codes where scales allow, else numbers


@pytest.mark.parametrize("format", FORMATS)
def test_an_embedding_dequantizes_rows_alone(format, monkeypatch):
    layer = torch.nn.Embedding(384, 256)
    layer.weight = torch.nn.Parameter(weight(format), requires_grad=False)
    ids, numbers = torch.randint(0, 384, (4, 7)), layer.weight.dequantize()
    monkeypatch.setattr(Fp8Weight, "dequantize", None)
    assert torch.equal(layer(ids), numbers[ids])


def test_everything_else_sees_the_numbers():
    one, numbers = weight(), weight().dequantize()
    x = random(5, 384, dtype=BF16).requires_grad_()
    assert torch.equal(one + 1, numbers + 1)
    assert torch.equal(x @ one, x @ numbers)
    assert torch.equal(one.T, numbers.T)
    assert torch.equal(torch.cat([one, one]), torch.cat([numbers] * 2))
    assert torch.equal(functional.linear(one, numbers), functional.linear(numbers, numbers))
    ids = torch.tensor([3, 5])
    for options in ({"max_norm": 2.0}, {"scale_grad_by_freq": True}):
        expected = functional.embedding(ids, numbers.clone(), **options)
        found = functional.embedding(ids, one.clone(), **options)
        assert relative_error(found, expected) < 0.05
    kernel = Fp8Weight.cast(random(8, 6, 3, dtype=BF16), "channel")
    y = functional.conv1d(random(2, 6, 9, dtype=BF16).requires_grad_(), kernel)
    assert type(y.grad_fn._saved_weight) is Fp8Weight
    (dx,) = torch.autograd.grad((x @ one).sum(), x)
    assert torch.equal(dx, torch.ones(5, 256, dtype=BF16) @ numbers.T)


def test_what_is_written_is_cast_as_the_weight_was():
    format = octofold.Format("e4m3", "128x128", rule="torchao", power_of_two=True)
    layer, other = linear(), random(384, 256, dtype=BF16)
    layer.weight = torch.nn.Parameter(Fp8Weight.cast(layer.weight, format), requires_grad=False)
    codes = layer.weight.codes
    expected = Fp8Weight.cast(layer.weight + other, format).scaled
    layer.weight.data += other  # as peft merges
    assert layer.weight.scaled.equals(expected)
    layer.load_state_dict({"weight": other, "bias": layer.bias})
    assert layer.weight.scaled.equals(octofold.quantize(other, format))
    layer.weight.copy_(weight("channel"))  # of another kind
    assert layer.weight.scaled.equals(Fp8Weight.cast(weight("channel").dequantize(), format).scaled)
    assert layer.weight.codes.data_ptr() == codes.data_ptr()
    layer.weight.data = other
    assert type(layer.weight) is Fp8Weight
    assert layer.weight.scaled.equals(octofold.quantize(other, format))
    more = layer.weight.clone()
    torch._foreach_mul_([layer.weight.data, more], 2)
    torch.mul(other, 2, out=more)
    expected = octofold.quantize(2 * other, format)
    assert layer.weight.scaled.equals(expected)
    assert more.scaled.equals(expected)
    plain = torch.zeros(384, 256)
    plain.copy_(layer.weight)
    assert torch.equal(plain, layer.weight.dequantize(torch.float32))
    with pytest.raises(
        octofold.InvalidArgumentError, match=r"'copy_': expected numbers, or an Fp8"
    ):
        layer.weight.copy_(codes)
    with pytest.raises(RuntimeError, match="'copy_': expected numbers"):
        layer.load_state_dict({"weight": codes, "bias": layer.bias})


def test_collectives_that_would_lose_what_they_write_are_refused():
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(octofold.UnsupportedError, match=r"expected weight\.scaled's codes"):
            distributed.broadcast(weight(), 0)
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("compute", Fp8Weight.COMPUTE)
def test_compile(compute):
    layer = linear(compute=compute)
    torch.compiler.reset()  # torch counts compilations of all its layers together
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (5, 33):
        x = random(rows, 256, dtype=BF16).requires_grad_()
        other = x.detach().clone().requires_grad_()
        y, z = layer(x), compiled(other)
        assert torch.equal(y, z)
        y.sum().backward()
        z.sum().backward()
        assert relative_error(other.grad, x.grad.double()) < 1e-2


def test_caches_of_compilers_know_what_computes(monkeypatch, tmp_path):
    texts = set()
    for source in ("", "1", "2"):
        (tmp_path / "module.py").write_text(source)
        monkeypatch.setattr(fp8_weight, "_PACKAGE", tmp_path)
        fp8_weight._digest_of_package.cache_clear()
        texts.add(weight()._stable_hash_for_caching())
    fp8_weight._digest_of_package.cache_clear()
    assert len(texts) == 3


@pytest.mark.parametrize(
    ("has", "compute", "expected"),
    [
        # With 1, 16, 17, 128, 129, 1025 and 8192 tokens.
        ({"products", "products with FP8 weights"}, "auto", "wwnnnnn"),
        ({"products", "products with FP8 weights"}, "weight-only", "wwwwccc"),
        ({"products", "products with FP8 weights"}, "native", "nnnnnnn"),
        ({"products", "products with FP8 weights", "products that cast A"}, "auto", "wwnnnnn"),
        ({"products with FP8 weights", "products that cast A"}, "weight-only", "wwwwwcc"),
        ({"products with FP8 weights"}, "auto", "wwwwccc"),
        ({"products with FP8 weights"}, "native", "wwwwccc"),  # moved there by somebody
        ({"products", "products with FP8 weights"}, "copy", "ccccccc"),
        ({"products"}, "auto", "nnnnnnn"),
        (set(), "auto", "ccccccc"),
    ],
)
def test_how_a_layer_computes(has, compute, expected, monkeypatch):
    has = {*has, "casts"}
    monkeypatch.setattr(
        kernels, "_why_not_once", lambda operation, index: "" if operation in has else "none"
    )
    kernels._products_once.cache_clear()
    bfloat16 = True
    monkeypatch.setattr(kernels, "has_bfloat16", lambda device: bfloat16)
    gpu, cpu = torch.device("cuda:0"), torch.device("cpu")

    def ways(features=(1024, 1024), dtype=BF16, device=gpu, **options):
        return "".join(
            frozen.linear_compute((n, features[0]), features[1], device, dtype, compute, **options)[
                0
            ]
            for n in (1, 16, 17, 128, 129, 1025, 8192)
        )

    assert ways() == expected
    decodes = "products with FP8 weights" in has and compute != "copy"
    on_cpu = {"native": "n", "copy": "c"}.get(compute, "w")
    assert ways(device=cpu) == on_cpu * 7
    assert ways(device=cpu, dtype=torch.float32) == on_cpu.replace("w", "c") * 7
    assert "w" not in ways(dtype=torch.float32)
    best = "n" if "n" in expected else "w" if decodes else "c"
    assert ways(batch_invariant=True) == best * 7
    if compute == "auto":
        most = "wwwwwcc" if "products that cast A" in has else "wwwwccc"
        assert ways((1000, 1024)) == (most if decodes else "ccccccc")  # rows TMA does not load
        assert ways((1024, 320))[-1] == "c"  # a copy of the weight is little
    if compute == "native":
        assert ways(few_tokens=17) == ("wwwnnnn" if "n" in expected else expected)
    bfloat16 = False
    assert "w" not in ways()
    kernels._products_once.cache_clear()
