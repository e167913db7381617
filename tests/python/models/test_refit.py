"""octofold.models.refit(): the bytes of a fresh conversion, in the memory that was there."""

import copy
import itertools
from functools import partial

import octofold
import pytest
import torch
from octofold._core.formats import UNITS
from octofold.models import refit
from octofold.nn import Fp8Weight
from torch.nn import Parameter

from tests.python.devices import device

pytestmark = pytest.mark.usefixtures("each_device")


def numbers(seed):
    """Heads that 128 does not divide, a chain, experts, a tied weight, a convolution, buffers."""
    torch.manual_seed(seed)
    block = torch.nn.Module()
    block.qkv_proj = torch.nn.Linear(200, 192 + 64 + 64)
    block.mlp = octofold.nn.MLP(200, 128, norm="rms")
    block.experts = octofold.nn.Experts(128, 72, 3, bias=True)
    block.embed, block.head = torch.nn.Embedding(130, 96), torch.nn.Linear(96, 130, bias=False)
    block.head.weight = block.embed.weight
    block.conv, block.norm = torch.nn.Conv2d(16, 8, 3), torch.nn.BatchNorm1d(96)
    block.bfloat16().register_buffer("exact", torch.rand(2, dtype=torch.float64))
    block.register_buffer("codes", torch.rand(3).to(torch.float8_e4m3fn))
    return block.to(device())


def frozen(block, granularity="128x128"):
    """The block with FP8 weights."""
    block, power_of_two = copy.deepcopy(block), granularity != "channel" or None
    format = octofold.Format("e4m3", granularity, rule="torchao", power_of_two=power_of_two)
    for layer in (block.qkv_proj, block.embed, block.experts, block.conv):
        for name, weight in [*layer.named_parameters()]:
            if not name.endswith("bias"):
                of_layer = "channel" if layer is block.conv else format
                cast = Fp8Weight.cast(weight, of_layer, 3 if layer is block.experts else None)
                layer._parameters[name] = Parameter(cast, False)
    block.head.weight = block.embed.weight
    return block


def unfused(block):
    """Names that checkpoints have, parts in no order, and a tied weight once."""
    named = block.state_dict()
    qkv = [named.pop(f"qkv_proj.{name}").split([192, 64, 64]) for name in ("weight", "bias")]
    for part, weight, bias in reversed([*zip("qkv", *qkv, strict=True)]):
        named |= {f"{part}_proj.weight": weight, f"{part}_proj.bias": bias}
    gate, up = named.pop("mlp.gate_up_proj.weight").chunk(2)
    named |= {"mlp.up_proj.weight": up, "mlp.gate_proj.weight": gate}
    first, second = (named.pop(f"experts.{name}") for name in block.experts.weight_names)
    for i in range(3):
        named |= {f"experts.{i}.w1.weight": first[i, :72], f"experts.{i}.w3.weight": first[i, 72:]}
        named[f"experts.{i}.down_proj.weight"] = second[i]
    del named["head.weight"]
    return named


def contents(block):
    """The addresses of all tensors, of FP8 weights' codes and scales, and their bytes."""
    tensors = []
    for tensor in block.state_dict(keep_vars=True).values():
        is_fp8 = isinstance(tensor, Fp8Weight)
        tensors += (tensor.codes, tensor.scale) if is_fp8 else (tensor.detach(),)
    addresses = [tensor.data_ptr() for tensor in tensors]
    return addresses, [tensor.clone().reshape(-1).view(torch.uint8) for tensor in tensors]


def assert_bytes(block, other):
    torch.testing.assert_close(contents(block)[1], contents(other)[1], rtol=0, atol=0)


def float32(named):
    wide = {torch.bfloat16: torch.float32}
    return {name: t.cpu().to(wide.get(t.dtype, t.dtype)) for name, t in named.items()}


SOURCES = {
    "state_dict": (lambda block: block.state_dict(), {}),
    "unfused": (unfused, {}),
    "iterator": (lambda block: iter(unfused(block).items()), {"bucket_bytes": 0}),
    "float32 of the CPU": (lambda block: float32(block.state_dict()), {}),
    "fp8": (lambda block: frozen(block).state_dict(), {}),
}


@pytest.mark.parametrize(
    ("source", "granularity"),
    [*itertools.product([*SOURCES][:-1], UNITS), ("fp8", "128x128")],
)
def test_bytes_of_a_fresh_conversion(source, granularity):
    take, options = SOURCES[source]
    block, new = frozen(numbers(0), granularity), numbers(1)
    (addresses, _), versions = contents(block), [p._version for p in block.parameters()]
    refit(block, take(copy.deepcopy(new)), **options)
    assert_bytes(block, frozen(new, granularity))
    assert contents(block)[0] == addresses
    assert all(p._version > v for p, v in zip(block.parameters(), versions, strict=True))


def test_models_of_inference_mode():
    with torch.inference_mode():
        block = frozen(numbers(0))
    refit(block, numbers(1).state_dict())
    assert_bytes(block, frozen(numbers(1)))


def coded(rows, columns, format="128x128"):
    return octofold.quantize(torch.ones(rows, columns, device=device()), format)


WRONG = {
    "qkv_proj.weight": (torch.ones(3, 200), r"'qkv_proj.weight'.*\[320, 200\].*\[3"),
    "norm.weight": (torch.ones(96).to(torch.float8_e4m3fn), "bfloat16.*float8"),
    "codes": (torch.ones(3), "expected torch.float8_e4m3fn, got torch.float32"),
    "embed.weight": (lambda: coded(130, 96).data, "or FP8 with scales, got"),
    "head.weight": (partial(coded, 130, 96, "channel"), r"head.weight.*scales \[2, 1\], its own"),
    "mlp.norm.weight": (torch.ones(200, device="meta"), "memory.* got meta"),
    "experts.7.w1.weight": (torch.ones(72, 128), "names of the model's .*experts.7"),
    "conv.weight": (None, "all rows of all parameters .* less of conv.weight"),
    "experts.2.w1.weight": (None, "less of experts.gate_up_proj"),
    "experts.2.down_proj.weight": (None, "less of experts.down_proj"),
    "k_proj.weight": (None, "less of qkv_proj.weight"),
    "q_proj.weight": (partial(coded, 192, 200), "FP8 in all parts, which share no 128x128 scales"),
    "experts.down_proj": (torch.ones(3, 128, 72), "experts one by one, or all in one"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", [dict, iter])
def test_nothing_is_written_before_an_error(name, kind):
    value, words = WRONG[name]
    block, named = frozen(numbers(0)), unfused(numbers(1))
    named[name] = value() if callable(value) else value
    pairs = [(name, value) for name, value in named.items() if value is not None]
    pairs += [pair for pair in pairs if pair[0] == "experts.1.down_proj.weight"]  # counts once
    with pytest.raises((octofold.InvalidArgumentError, octofold.UnsupportedError), match=words):
        refit(block, kind(pairs), bucket_bytes=0 if kind is dict else 1 << 28)
    assert_bytes(block, frozen(numbers(0)))


def test_experts_that_share_a_scale_come_together():
    stack = Fp8Weight.cast(torch.ones(3, 128, 72, device=device()), "tensor", matrices=1)
    block = torch.nn.ParameterDict({"down_proj": Parameter(stack, False)})
    with pytest.raises(octofold.UnsupportedError, match="all experts in one tensor"):
        refit(block, {"0.w2.weight": torch.ones(128, 72)})


def test_an_error_says_that_weights_were_written():
    """And casts that are held are of these."""
    block, new = numbers(0), numbers(1)
    casts_of = octofold.nn.cast_after_step
    own = casts_of(torch.optim.SGD(block.parameters()), block.mlp)._held[0].casts

    def arriving():
        yield from new.state_dict().items()
        raise ConnectionError

    with pytest.raises(ConnectionError) as raised:
        refit(block, arriving(), bucket_bytes=0)
    assert "tensors were written before this" in raised.value.__notes__[0]
    fresh = casts_of(torch.optim.SGD(new.parameters()), new.mlp)._held[0].casts
    assert all(a.equals(b) for a, b in zip(own, fresh, strict=True))
