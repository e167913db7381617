"""octofold.models.load_checkpoint_into(): modules get the weights of a checkpoint."""

import copy

import octofold
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.python.checkpoints.checkpoint_support import folder_of, listing

GRANULARITIES = ("128x128", "channel", "tensor", "1x128")


class Block(nn.Module):
    """Linear layers with a bias and without, a norm, buffers, a head tied to the embedding."""

    def __init__(self, tied=True, device=None, dtype=torch.bfloat16):
        super().__init__()
        options = {"device": device, "dtype": dtype}
        self.embed_tokens = nn.Embedding(32, 256, **options)
        self.norm = nn.LayerNorm(256, **options)
        self.up = nn.Linear(256, 384, **options)
        self.down = nn.Linear(384, 256, bias=False, **options)
        self.lm_head = nn.Linear(256, 32, bias=False, **options)
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64, device=device))
        self.register_buffer("cache", torch.ones(2), persistent=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        return self.lm_head(x + self.down(torch.relu(self.up(self.norm(x)))))


TOKENS = torch.arange(10).reshape(2, 5)


@pytest.fixture
def original():
    torch.manual_seed(4)
    block = Block()
    nn.init.normal_(block.norm.weight)
    block.steps[:] = torch.arange(3)
    return block


def saved(folder, block, granularity="128x128", family="compressed-tensors"):
    """The block's checkpoint in FP8, as a user has it: tied weights once."""
    state = dict(block.state_dict())
    if block.lm_head.weight is block.embed_tokens.weight:
        del state["lm_head.weight"]
    folder_of(folder / "in", state, config={})
    octofold.quantize_checkpoint(folder / "in", folder / "out", family=family, format=granularity)
    return folder / "out"


def dequantized(block, folder):
    """A block that computes what the loaded one has to, but for the casts of inputs."""
    block, checkpoint = copy.deepcopy(block), octofold.load_checkpoint(folder)
    weights = {f"{name}.weight": checkpoint[f"{name}.weight"] for name in ("up", "down")}
    wide = {name: weight.dequantize("bfloat16") for name, weight in weights.items()}
    block.load_state_dict(wide, strict=False)
    return block


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("compute", ["auto", "native", "weight-only"])
@torch.no_grad()
def test_layers_in_fp8(tmp_path, original, granularity, compute):
    folder = saved(tmp_path / "x", original, granularity)
    block = Block()
    embedding, norm = block.embed_tokens.weight, block.norm.weight
    result = octofold.models.load_checkpoint_into(block, folder, compute=compute)
    assert result is block
    assert type(block.up) is type(block.down) is nn.Linear
    how = "weight-only" if compute == "weight-only" else "native"
    assert block.up.weight.compute == block.down.weight.compute == how
    assert block.embed_tokens.weight is embedding
    assert block.lm_head.weight is embedding
    assert block.norm.weight is norm
    assert torch.equal(embedding, original.embed_tokens.weight)
    assert torch.equal(norm, original.norm.weight)
    assert torch.equal(block.up.bias, original.up.bias)
    assert block.down.bias is None
    assert block.steps.tolist() == [0, 1, 2]
    assert block.cache.tolist() == [1, 1]
    checkpoint = octofold.load_checkpoint(folder)
    for name in ("up", "down"):
        assert getattr(block, name).weight.scaled.equals(checkpoint[f"{name}.weight"])
    ours, expected = block(TOKENS).float(), dequantized(original, folder)(TOKENS).float()
    limit = 0.01 if compute == "weight-only" else 0.05
    assert (ours - expected).norm() < limit * expected.norm()


@torch.no_grad()
def test_what_is_on_meta_comes_into_memory(tmp_path, original):
    folder = saved(tmp_path / "x", original)
    block = Block(device="meta")
    block.up.eval()
    octofold.models.load_checkpoint_into(block, octofold.load_checkpoint(folder))
    assert not any(tensor.is_meta for tensor in block.state_dict().values())
    assert block.lm_head.weight is block.embed_tokens.weight
    assert isinstance(block.norm.weight, nn.Parameter)
    assert block.norm.weight.requires_grad
    assert not block.up.training
    assert block.down.training
    same = octofold.models.load_checkpoint_into(Block(), folder)
    assert torch.equal(block(TOKENS), same(TOKENS))
    # Its own dtype, not the checkpoint's.
    block = Block(device="meta", dtype=torch.float32)
    octofold.models.load_checkpoint_into(block, folder)
    assert block.embed_tokens.weight.dtype == block.up.bias.dtype == torch.float32
    assert block.up.weight.codes.dtype == torch.float8_e4m3fn


def test_buffers_on_meta_that_no_checkpoint_has(tmp_path, original):
    folder = saved(tmp_path / "x", original)
    block = Block(device="meta")
    block.cache = torch.ones(2, device="meta")
    with pytest.raises(octofold.InvalidArgumentError, match=r"no buffers on meta.*got cache"):
        octofold.models.load_checkpoint_into(block, folder)
    octofold.models.load_checkpoint_into(block, folder, strict=False)
    assert block.cache.is_meta


def test_what_is_tied_stays_tied(tmp_path):
    torch.manual_seed(1)
    model = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64), "c": nn.Linear(64, 64)})
    model["b"].weight = model["a"].weight
    twice = nn.ModuleDict({"first": model, "second": model})
    state = {f"first.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, tmp_path / "in.safetensors")
    octofold.quantize_checkpoint(
        tmp_path / "in.safetensors", tmp_path / "x.safetensors", skip="*.b.weight"
    )
    with pytest.raises(octofold.InvalidArgumentError, match=r"'first\.a\.weight', to which it is"):
        octofold.models.load_checkpoint_into(twice, tmp_path / "x.safetensors")
    del state["first.b.weight"]
    save_file(state, tmp_path / "in.safetensors")
    octofold.quantize_checkpoint(tmp_path / "in.safetensors", tmp_path / "y.safetensors")
    octofold.models.load_checkpoint_into(twice, tmp_path / "y.safetensors")
    assert twice["first"] is twice["second"]
    a, b, c = (twice["second"][name] for name in "abc")
    assert all(layer.weight.compute == "native" for layer in (a, b, c))
    assert a is not b
    assert a.weight is b.weight
    assert c.weight is not a.weight


def test_other_layers_get_values(tmp_path):
    class Special(nn.Linear):
        pass

    torch.manual_seed(1)
    model = nn.ModuleDict({"a": Special(128, 64), "embed": nn.Embedding(40, 128)})
    model.register_parameter("experts", nn.Parameter(torch.randn(3, 130, 140)))
    state = model.state_dict() | {"mlp.experts.up_proj": model.experts.detach()}
    del state["experts"]
    save_file(state, tmp_path / "in.safetensors")
    octofold.quantize_checkpoint(
        tmp_path / "in.safetensors",
        tmp_path / "x.safetensors",
        family="finegrained-fp8",
        use_default_skips=False,
    )
    checkpoint = octofold.load_checkpoint(tmp_path / "x.safetensors")
    assert len(checkpoint.contents.weights) == 3
    model.mlp = nn.ModuleDict({"experts": nn.Module()})
    model.mlp["experts"].up_proj = nn.Parameter(torch.empty(3, 130, 140))
    del model.experts
    octofold.models.load_checkpoint_into(model, checkpoint)
    assert type(model["a"]) is Special
    for name in ("a", "embed"):
        weight = checkpoint[f"{name}.weight"]
        assert torch.equal(model[name].weight, weight.dequantize())
    stack = checkpoint["mlp.experts.up_proj"]
    for i, values in enumerate(model.mlp["experts"].up_proj):
        each = octofold.ScaledTensor(stack.data[i], stack.scale[i], "128x128")
        assert torch.equal(values, each.dequantize())
    coded = octofold.nn.Fp8Weight.cast(torch.zeros(3, 130, 140), "128x128", 3)
    model.mlp["experts"].up_proj = nn.Parameter(coded, requires_grad=False)
    octofold.models.load_checkpoint_into(model, checkpoint)
    assert model.mlp["experts"].up_proj.scaled.equals(stack)


def test_a_layer_alone(tmp_path):
    layer = nn.Linear(64, 48)
    weight = octofold.quantize(layer.weight.detach(), "128x128")
    save_file(layer.state_dict(), tmp_path / "in.safetensors")
    save_file(
        {"weight": weight.data, "weight_scale_inv": weight.scale, "bias": layer.bias.detach()},
        tmp_path / "x.safetensors",
    )
    new = octofold.models.load_checkpoint_into(layer, tmp_path / "x.safetensors")
    assert new is layer
    assert new.weight.scaled.equals(weight)
    # And one that is FP8 takes weights of its own kind.
    again = octofold.nn.inference_linear(nn.Linear(64, 48)).to("meta")
    assert octofold.models.load_checkpoint_into(again, tmp_path / "x.safetensors") is again
    x = torch.ones(3, 64)
    with torch.no_grad():
        assert torch.equal(again(x), new(x))
    rows = octofold.nn.inference_linear(nn.Linear(64, 48), "rowwise")
    with pytest.raises(octofold.InvalidArgumentError, match="FP8 weight with channel scales"):
        octofold.models.load_checkpoint_into(rows, tmp_path / "x.safetensors")
    with pytest.raises(octofold.InvalidArgumentError, match="got F32"):
        octofold.models.load_checkpoint_into(rows, tmp_path / "in.safetensors")


def test_a_checkpoint_without_fp8(tmp_path, original):
    save_file({"weight": torch.ones(4, 4), "bias": torch.zeros(4)}, tmp_path / "x.safetensors")
    layer = nn.Linear(4, 4, dtype=torch.float16)
    assert octofold.models.load_checkpoint_into(layer, tmp_path / "x.safetensors") is layer
    assert layer.weight.tolist() == torch.ones(4, 4).tolist()
    assert layer.weight.dtype == torch.float16


CHANGES = {
    "a shape": (
        lambda block: setattr(block, "down", nn.Linear(384, 257, bias=False)),
        r"checkpoint\['down\.weight'\]': expected \[257, 384\].*got \[256, 384\]",
    ),
    "a dtype": (
        lambda block: setattr(block, "steps", torch.zeros(3)),
        r"checkpoint\['steps'\]': expected torch\.float32.*got I64",
    ),
    "a name more": (
        lambda block: setattr(block, "other", nn.Linear(2, 2)),
        r"got none named other\.weight, other\.bias",
    ),
    "a name less": (
        lambda block: delattr(block, "norm"),
        r"got others named norm\.bias, norm\.weight",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("device", [None, "meta"])
def test_errors_leave_the_module_as_it_was(tmp_path, original, change, device):
    folder = saved(tmp_path / "x", original)
    block = Block(device=device)
    make_change, message = CHANGES[change]
    make_change(block)
    modules = dict(block.named_modules())
    state = {name: tensor.clone() for name, tensor in block.state_dict().items()}
    files = listing(tmp_path)
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        octofold.models.load_checkpoint_into(block, folder)
    assert listing(tmp_path) == files
    assert dict(block.named_modules()) == modules
    for name, tensor in block.state_dict().items():
        assert tensor.is_meta == state[name].is_meta
        assert tensor.is_meta or torch.equal(tensor, state[name])
    if "name" in change:  # whose absence is allowed
        octofold.models.load_checkpoint_into(block, folder, strict=False)
        assert isinstance(block.up.weight, octofold.nn.Fp8Weight)


def test_a_file_that_ends_leaves_the_module_as_it_was(tmp_path, original):
    folder = saved(tmp_path / "x", original)
    checkpoint = octofold.load_checkpoint(folder)
    (file,) = checkpoint.contents.files
    file.write_bytes(file.read_bytes()[:-40])
    block = Block()
    state = {name: tensor.clone() for name, tensor in block.state_dict().items()}
    with pytest.raises(octofold.BadFormatError, match="the file has changed"):
        octofold.models.load_checkpoint_into(block, checkpoint)
    assert type(block.up) is nn.Linear
    for name, tensor in block.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_arguments(tmp_path, original):
    folder = saved(tmp_path / "x", original)
    load = octofold.models.load_checkpoint_into
    with pytest.raises(octofold.InvalidArgumentError, match=r"'module': expected a torch\.nn"):
        load(7, folder)
    with pytest.raises(octofold.InvalidArgumentError, match="'compute': expected one of auto"):
        load(Block(), folder, compute="fast")
    with pytest.raises(octofold.InvalidArgumentError, match="'checkpoint': expected one of"):
        load(Block(), octofold.load_checkpoint(folder, framework="numpy"))
