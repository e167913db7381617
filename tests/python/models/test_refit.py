"""octofold.models.refit(): the bytes of a fresh conversion, in the memory that was there."""

import copy
from functools import partial

import octofold
import pytest
import torch
from octofold.models import refit
from octofold.nn import Experts, Fp8Weight
from torch.nn import Parameter

from tests.python.devices import device, gpu_only

pytestmark = pytest.mark.usefixtures("each_device")
RECIPES = {"128x128": "blockwise", "channel": "rowwise", "tensor": "tensorwise"}


class Block(torch.nn.Module):
    """Heads that 128 does not divide, a chain, experts, a tied weight, a convolution, a buffer."""

    def __init__(self):
        super().__init__()
        self.qkv_proj = torch.nn.Linear(200, 192 + 64 + 64)
        self.mlp = octofold.nn.MLP(200, 128, norm="rms")
        self.experts = Experts(128, 72, 3, bias=True)
        self.embed, self.head = torch.nn.Embedding(130, 96), torch.nn.Linear(96, 130, bias=False)
        self.head.weight = self.embed.weight
        self.conv = torch.nn.Conv2d(16, 8, 3)
        self.norm = torch.nn.BatchNorm1d(96)


def numbers(seed):
    torch.manual_seed(seed)
    return Block().bfloat16().to(device())


def frozen(block, granularity="128x128"):
    """The block with FP8 weights."""
    block = copy.deepcopy(block)
    power_of_two = granularity != "channel" or None
    format = octofold.Format("e4m3", granularity, rule="torchao", power_of_two=power_of_two)
    for layer in (block.qkv_proj, block.embed):
        layer.weight = Parameter(Fp8Weight.cast(layer.weight, format), False)
    block.head.weight = block.embed.weight
    block.conv.weight = Parameter(Fp8Weight.cast(block.conv.weight, "channel"), False)
    of_experts = granularity if granularity in RECIPES else "128x128"
    weights = (getattr(block.experts, name) for name in block.experts.weight_names)
    weights = [Fp8Weight.cast(weight, of_experts, matrices=3) for weight in weights]
    biases = (getattr(block.experts, f"{name}_bias") for name in block.experts.weight_names)
    block.experts = Experts.from_weights(*weights, *biases, recipe=RECIPES[of_experts])
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
    """The bytes of each tensor, and its address."""
    found = {}
    for name, tensor in block.state_dict(keep_vars=True).items():
        is_fp8 = isinstance(tensor, Fp8Weight)
        for part in (tensor.codes, tensor.scale) if is_fp8 else (tensor.detach(),):
            found[name, part.dtype] = part.clone().view(-1).view(torch.uint8), part.data_ptr()
    return found


def assert_same(block, other):
    both = ({key: value for key, (value, _) in contents(each).items()} for each in (block, other))
    torch.testing.assert_close(*both, rtol=0, atol=0)


SOURCES = {
    "state_dict": (lambda block: block.state_dict(), {}),
    "unfused": (unfused, {}),
    "iterator": (lambda block: iter(unfused(block).items()), {"bucket_bytes": 0}),
    "float32 of the CPU": (lambda block: block.float().cpu().state_dict(), {}),
    "fp8": (lambda block: frozen(block).state_dict(), {}),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("granularity", ["128x128", "1x128", "channel", "tensor"])
def test_bytes_of_a_fresh_conversion(source, granularity):
    if source == "fp8" and granularity != "128x128":
        pytest.skip("the source has 128x128 scales")
    take, options = SOURCES[source]
    block, new = frozen(numbers(0), granularity), numbers(1)
    before, versions = contents(block), [p._version for p in block.parameters()]
    refit(block, take(copy.deepcopy(new)), **options)
    assert_same(block, frozen(new, granularity))
    assert [p for _, p in contents(block).values()] == [p for _, p in before.values()]
    assert all(p._version > v for p, v in zip(block.parameters(), versions, strict=True))


def test_models_of_inference_mode():
    with torch.inference_mode():
        block = frozen(numbers(0))
    refit(block, numbers(1).state_dict())
    assert_same(block, frozen(numbers(1)))


def test_other_dtypes_are_copied_as_they_are():
    own, new = (torch.nn.Linear(4, 4).double() for _ in range(2))
    for layer, value in ((own, 0.0), (new, 1.0)):
        layer.register_buffer("codes", torch.full((3,), value).to(torch.float8_e4m3fn))
    refit(own, new.state_dict())
    assert_same(own, new)
    with pytest.raises(octofold.InvalidArgumentError, match="expected torch"):
        refit(own, {"codes": torch.ones(3)}, strict=False)


def coded(*shape):
    return octofold.quantize(torch.ones(shape, device=device()), "128x128")


WRONG = {
    "shape": ({"qkv_proj.weight": torch.ones(3, 200)}, r"'qkv_proj.weight'.*\[320, 200\].*\[3"),
    "codes alone": ({"norm.weight": torch.ones(96).to(torch.float8_e4m3fn)}, "bfloat16.*float8"),
    "other codes": ({"embed.weight": lambda: coded(130, 96).data}, "or FP8 with scales, got"),
    "other scales": (
        {"embed.weight": lambda: octofold.ScaledTensor(*[coded(130, 96).data] * 2, "128x128")},
        r"embed.weight.*scales \[2, 1\], its own, got",
    ),
    "no memory": ({"conv.weight": torch.ones(8, 16, 3, 3, device="meta")}, "memory.* got meta"),
    "unknown": ({"experts.7.w1.weight": torch.ones(72, 128)}, "names of the model's .*experts.7"),
    "nothing": ({"conv.weight": None}, "all rows of all parameters .* less of conv.weight"),
    "an expert": ({"experts.2.w1.weight": None}, "less of experts.gate_up_proj"),
    "a part": ({"k_proj.weight": None}, "less of qkv_proj.weight"),
    "shared scales": (
        {f"{p}_proj.weight": partial(coded, n, 200) for p, n in (("q", 192), ("k", 64), ("v", 64))},
        "share no 128x128 scales",
    ),
    "both": ({"experts.down_proj": torch.ones(3, 128, 72)}, "experts one by one, or all in one"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("kind", [dict, iter])
def test_nothing_is_written_before_an_error(case, kind):
    changes, words = WRONG[case]
    block = frozen(numbers(0))
    before = contents(block)
    named = unfused(numbers(1)) | {n: v() if callable(v) else v for n, v in changes.items()}
    pairs = [(name, value) for name, value in named.items() if value is not None]
    again = [pair for pair in pairs if pair[0] == "experts.1.w1.weight"]  # which is no other one's
    named, options = (
        (dict(pairs), {"bucket_bytes": 0}) if kind is dict else (iter(pairs + again), {})
    )
    with pytest.raises((octofold.InvalidArgumentError, octofold.UnsupportedError), match=words):
        refit(block, named, **options)
    torch.testing.assert_close(contents(block), before, rtol=0, atol=0)


def test_experts_that_share_a_scale_come_together():
    stack = Fp8Weight.cast(torch.ones(3, 128, 72, device=device()), "tensor", matrices=1)
    block = torch.nn.Module()
    block.experts = torch.nn.ParameterDict({"down_proj": Parameter(stack, False)})
    with pytest.raises(octofold.UnsupportedError, match="all experts in one tensor"):
        refit(block, {"experts.0.w2.weight": torch.ones(128, 72)})


def test_an_error_says_that_weights_were_written():
    """And casts that are held are of these."""
    block, new = numbers(0), numbers(1)
    handle = octofold.nn.cast_after_step(torch.optim.SGD(block.parameters()), block.mlp)
    held = [cast for each in handle._held for cast in each.casts]

    def arriving():
        yield from new.state_dict().items()
        raise ConnectionError

    with pytest.raises(ConnectionError) as raised:
        refit(block, arriving(), bucket_bytes=0)
    assert " tensors were written before this" in raised.value.__notes__[0]
    fresh = octofold.nn.cast_after_step(torch.optim.SGD(new.parameters()), new.mlp)
    for cast, other in zip(held, (c for each in fresh._held for c in each.casts), strict=True):
        assert cast.equals(other)


@gpu_only
def test_graphs_read_the_new_weights():
    layer, new = (torch.nn.Linear(256, 384, device=device()).bfloat16() for _ in range(2))
    layer = octofold.nn.inference_linear(layer)
    x, graph = torch.randn(16, 256, device=device()).bfloat16(), torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.stream(torch.cuda.Stream()):
            layer(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = layer(x)
        refit(layer, new.state_dict())
        graph.replay()
        assert torch.equal(y, octofold.nn.inference_linear(new)(x))
