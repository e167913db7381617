"""octofold.models.refit(): the bytes of a fresh conversion, in the memory that was there."""

import copy

import octofold
import pytest
import torch
from octofold.models import refit
from octofold.nn import Experts, Fp8Weight
from torch.nn import Parameter

from tests.python.devices import device, gpu_only

pytestmark = pytest.mark.usefixtures("each_device")
GRANULARITIES = ["128x128", "1x128", "channel", "tensor"]
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
    """Names that checkpoints have, and a tied weight once."""
    named = block.state_dict()
    qkv = [named.pop(f"qkv_proj.{name}").split([192, 64, 64]) for name in ("weight", "bias")]
    for part, weight, bias in zip("qkv", *qkv, strict=True):
        named |= {f"{part}_proj.weight": weight, f"{part}_proj.bias": bias}
    gate, up = named.pop("mlp.gate_up_proj.weight").chunk(2)
    named |= {"mlp.up_proj.weight": up, "mlp.gate_proj.weight": gate}
    first, second = (named.pop(f"experts.{name}") for name in block.experts.weight_names)
    for i in range(3):
        named |= {f"experts.{i}.w1.weight": first[i, :72], f"experts.{i}.w3.weight": first[i, 72:]}
        named[f"experts.{i}.down_proj.weight"] = second[i]
    del named["head.weight"]
    return named


def parts(block):
    for name, tensor in block.state_dict(keep_vars=True).items():
        if isinstance(tensor, Fp8Weight):
            yield from ((name, tensor.codes), (f"{name}'s scale", tensor.scale))
        else:
            yield name, tensor.detach()


def contents(block):
    """The address of each tensor, and its bytes."""
    return {
        name: (part.data_ptr(), part.clone().view(-1).view(torch.uint8))
        for name, part in parts(block)
    }


def assert_same(block, other):
    for (name, part), (_, expected) in zip(parts(block), parts(other), strict=True):
        assert torch.equal(part.view(-1).view(torch.uint8), expected.view(-1).view(torch.uint8)), (
            name
        )


SOURCES = {
    "state_dict": (lambda block: block.state_dict(), {}),
    "unfused": (unfused, {}),
    "iterator": (lambda block: iter(unfused(block).items()), {"bucket_bytes": 0}),
    "float32 of the CPU": (lambda block: block.float().cpu().state_dict(), {}),
    "fp8": (lambda block: frozen(block).state_dict(), {}),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_bytes_of_a_fresh_conversion(source, granularity):
    if source == "fp8" and granularity != "128x128":
        pytest.skip("the source has 128x128 scales")
    take, options = SOURCES[source]
    block, new = frozen(numbers(0), granularity), numbers(1)
    before, versions = contents(block), [p._version for p in block.parameters()]
    refit(block, take(copy.deepcopy(new)), **options)
    assert_same(block, frozen(new, granularity))
    assert [p for p, _ in contents(block).values()] == [p for p, _ in before.values()]
    for parameter, version in zip(block.parameters(), versions, strict=True):
        assert parameter._version > version


WRONG = {
    "qkv_proj.weight": (torch.ones(3, 200), r"named_tensors.'qkv_proj.weight'.*\[320, 200\].*\[3"),
    "norm.weight": (torch.ones(96).to(torch.float8_e4m3fn), r"'norm.weight'.*bfloat16.*float8"),
    "conv.weight": (None, r"all of the model's parameters.* less of conv.weight"),
    "experts.7.w1.weight": (torch.ones(72, 128), r"names of the model's .*'experts.7.w1.weight'"),
    "q_proj.weight": (torch.ones(192, 200), None),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", [dict, iter])
def test_nothing_is_written_before_an_error(name, kind):
    value, words = WRONG[name]
    block, named = frozen(numbers(0)), numbers(1).state_dict()
    before = contents(block)
    if name == "q_proj.weight":  # its rows share scales with those of k_proj, which does not come
        del named["qkv_proj.weight"]
        words = "less of qkv_proj.weight"
    named = {n: t for n, t in (named | {name: value}).items() if t is not None}
    named, options = (named, {"bucket_bytes": 0}) if kind is dict else (iter(named.items()), {})
    with pytest.raises(octofold.InvalidArgumentError, match=words):
        refit(block, named, **options)
    torch.testing.assert_close(contents(block), before, rtol=0, atol=0)


def test_fp8_parts_that_share_scales_are_refused():
    block, q = frozen(numbers(0)), Fp8Weight.cast(torch.ones(192, 200, device=device()))
    k = Fp8Weight.cast(torch.ones(64, 200, device=device()))
    named = {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": k}
    with pytest.raises(octofold.UnsupportedError, match="rows that share 128x128 scales"):
        refit(block, named, strict=False)


def test_casts_after_steps_are_made_anew():
    block = numbers(0)
    handle = octofold.nn.cast_after_step(torch.optim.SGD(block.parameters()), block.mlp)
    held = [cast for each in handle._held for cast in each.casts]
    refit(block, numbers(1).state_dict())
    fresh = octofold.nn.cast_after_step(torch.optim.SGD(block.parameters()), numbers(1).mlp)
    for cast, other in zip(held, (c for each in fresh._held for c in each.casts), strict=True):
        assert cast.equals(other)


def test_rollout_and_trainer_give_the_same_bits():
    """Log-probabilities of a step, of other numbers of tokens too."""
    recipe = octofold.nn.recipes.batch_invariant("blockwise")
    torch.manual_seed(0)
    sizes = (torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 40))
    trainer = torch.nn.Sequential(*sizes).bfloat16().to(device())
    rollout = copy.deepcopy(trainer)
    octofold.nn.convert(trainer, recipe=recipe, module_filter_fn=lambda *_: True, force_fp8=True)
    for i in (0, 2):
        rollout[i] = octofold.nn.inference_linear(rollout[i], recipe)
    optimizer = torch.optim.SGD(trainer.parameters(), lr=0.5)
    x = torch.randn(70, 128, device=device()).bfloat16()
    for _ in range(2):
        trainer(x).float().square().mean().backward()
        optimizer.step()
    assert not torch.equal(rollout(x), trainer(x))
    refit(rollout, trainer.state_dict())
    assert torch.equal(rollout(x).log_softmax(-1), trainer(x).log_softmax(-1))
    assert torch.equal(rollout(x[5:8]), trainer(x)[5:8])


@gpu_only
def test_graphs_read_the_new_weights():
    layer = octofold.nn.inference_linear(torch.nn.Linear(256, 384, device=device()).bfloat16())
    new = torch.nn.Linear(256, 384, device=device()).bfloat16()
    x, stream, graph = torch.randn(16, 256).bfloat16(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x = x.to(device())
    with torch.no_grad():
        with torch.cuda.stream(stream):
            layer(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = layer(x)
        refit(layer, new.state_dict())
        graph.replay()
        assert torch.equal(y, octofold.nn.inference_linear(new)(x))
