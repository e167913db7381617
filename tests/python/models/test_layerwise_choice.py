"""The choice of layers that are cast, of the way each is computed, and what becomes of a model."""

import torch
from octofold import models
from octofold.nn import Fp8Weight

from tests.python.nn.layer_support import random


def is_cast(module):
    return isinstance(getattr(module, "weight", None), Fp8Weight)


def test_a_weight_put_in_its_place_is_used():
    layer = models.enable_layerwise_casting(torch.nn.Linear(16, 8))
    layer.weight = torch.nn.Parameter(torch.ones(8, 16))
    x = random(3, 16)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, torch.ones(8, 16), layer.bias))


def test_what_is_skipped(log):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_out = torch.nn.Linear(8, 8)
            self.proj = torch.nn.Linear(8, 8)
            self.proj_out = torch.nn.Linear(8, 8)
            self.attention = torch.nn.MultiheadAttention(8, 2)
            self.layer_norm = torch.nn.LayerNorm(8)

    def cast(**options):
        model = torch.nn.ModuleDict({"block": Block(), "proj_out": torch.nn.Linear(8, 8)})
        models.enable_layerwise_casting(model, **options)
        return {name for name, one in model.named_modules() if is_cast(one)}

    assert cast() == {"block.proj", "block.proj_out"}
    assert any("block.attention.out_proj is left alone" in message for message in log)
    every = {"block.norm_out", "block.proj", "block.proj_out", "proj_out"}
    assert cast(skip_modules_pattern=()) == every
    assert cast(skip_modules_pattern=None) == cast(skip_modules_pattern="auto") == cast()
    assert cast(skip_modules_pattern=r"block\.n") == every - {"block.norm_out"}
    assert cast(skip_modules_pattern=("^proj_", "absent")) == every - {"proj_out"}
    assert any("'absent' is found in no name" in message for message in log)
    assert cast(skip_modules_classes=(Block,), skip_modules_pattern=()) == {"proj_out"}


def test_models_say_what_to_skip():
    class Model(torch.nn.Module):
        _keep_in_fp32_modules = ("wo",)
        _skip_layerwise_casting_patterns = ("embed",)

        def __init__(self):
            super().__init__()
            for name in ("wo", "word", "embedder", "wi"):
                setattr(self, name, torch.nn.Linear(8, 8))

    def cast(**options):
        model = torch.nn.Sequential(models.enable_layerwise_casting(Model(), **options))
        return [name for name, one in model[0].named_children() if is_cast(one)]

    assert cast() == ["word", "wi"]
    assert cast(skip_modules_pattern="wi") == ["word"]
    assert cast(skip_modules_pattern=None) == ["word", "wi"]
    assert cast(skip_modules_pattern=()) == ["word", "wi"]
    # Modules around the module that is given have no say.
    assert is_cast(models.enable_layerwise_casting(Model().wo))


def test_tied_weights_are_left_alone(log):
    model = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(12, 8),
            "linear": torch.nn.Linear(8, 8),
            "head": torch.nn.Linear(8, 12, bias=False),
            "normal": torch.nn.Linear(8, 8),
        }
    )
    model["head"].weight = model["embedding"].weight
    model["normal"].weight = torch.nn.Parameter(model["linear"].weight)
    model["again"] = model["other"] = torch.nn.Linear(8, 8)
    models.enable_layerwise_casting(model, skip_modules_pattern="normal")
    assert [name for name, one in model.items() if is_cast(one)] == ["again", "other"]
    assert model["head"].weight is model["embedding"].weight
    assert any("head is left alone: its weight is tied to that of embedding" in one for one in log)
    assert any("linear is left alone: its weight is tied to that of normal" in one for one in log)


def test_layers_without_a_shape_are_left_alone(log):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LazyLinear(4))
    models.enable_layerwise_casting(model)
    assert any("1 is left alone: its weight is UninitializedParameter" in one for one in log)
    assert model(random(2, 8)).shape == (2, 4)


def test_a_part_can_be_undone():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    models.enable_layerwise_casting(model)
    models.disable_layerwise_casting(model[0])
    assert type(model[0]) is torch.nn.Linear
    assert is_cast(model[1])


def test_half_the_bytes(log):
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Conv2d(64, 128, 3)).bfloat16()

    def size():
        tensors = [*model.parameters(), *model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    before = size()
    models.enable_layerwise_casting(model)
    assert size() < 0.51 * before
    after = sum(one.nbytes for one in model.parameters())  # with the scales
    assert size() < after < 1.01 * size()
    assert log[-1].endswith(f"e4m3; its {before / 1e6:.1f} MB are {after / 1e6:.1f} now")
