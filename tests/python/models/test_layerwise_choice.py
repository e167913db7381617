"""The choice of layers that are cast, of the way each is computed, and what becomes of a model."""

import pytest

from tests.python.nn.layer_support import random

torch = pytest.importorskip("torch")

from octofold import models  # noqa: E402
from octofold.models.layerwise import products  # noqa: E402
from octofold.nn.recipes import kernels  # noqa: E402


@pytest.mark.parametrize(
    ("has", "native", "expected"),
    [
        # With 1, 16, 17, 128, 129 and 8192 tokens.
        ({"products", "products with FP8 weights"}, "auto", "wwnnnn"),
        ({"products", "products with FP8 weights"}, False, "wwwwcc"),
        ({"products", "products with FP8 weights"}, True, "nnnnnn"),
        ({"products with FP8 weights"}, "auto", "wwwwcc"),
        ({"products with FP8 weights"}, True, "wwwwcc"),  # moved there by somebody
        ({"products"}, "auto", "nnnnnn"),
        (set(), "auto", "cccccc"),
    ],
)
def test_ways_by_gpu_and_tokens(has, native, expected, monkeypatch):
    has = {*has, "casts"}
    monkeypatch.setattr(
        kernels, "_why_not_once", lambda operation, index: "" if operation in has else "none"
    )
    kernels._products_once.cache_clear()
    bfloat16 = True
    monkeypatch.setattr(kernels, "has_bfloat16", lambda device: bfloat16)
    gpu, dtype = torch.device("cuda:0"), torch.bfloat16

    def ways(features=(1024, 1024), dtype=dtype, device=gpu):
        return "".join(
            products.linear_compute((n, features[0]), features[1], native, device, dtype)[0]
            for n in (1, 16, 17, 128, 129, 8192)
        )

    assert ways() == expected
    if native == "auto":
        assert ways(device=torch.device("cpu")) == "cccccc"
        assert "w" not in ways(dtype=torch.float32)
        without = "wwwwcc" if "products with FP8 weights" in has else "cccccc"
        assert ways((1000, 1024)) == without  # rows that TMA does not load
        assert ways((1024, 320)) == expected[:-1] + "c"  # a copy of the weight is little
        bfloat16 = False
        assert "w" not in ways()
    kernels._products_once.cache_clear()


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
        return {name for name, one in model.named_modules() if hasattr(one, "storage")}

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
        return [name for name, one in model[0].named_children() if hasattr(one, "storage")]

    assert cast() == ["word", "wi"]
    assert cast(skip_modules_pattern="wi") == ["word"]
    assert cast(skip_modules_pattern=None) == ["word", "wi"]
    assert cast(skip_modules_pattern=()) == ["word", "wi"]
    # Modules around the module that is given have no say.
    assert hasattr(models.enable_layerwise_casting(Model().wo), "storage")


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
    assert [name for name, one in model.items() if hasattr(one, "storage")] == ["again", "other"]
    assert model["head"].weight is model["embedding"].weight
    assert any("head is left alone: its weight is tied to that of embedding" in one for one in log)
    assert any("linear is left alone: its weight is tied to that of normal" in one for one in log)


def test_its_class_makes_plain_layers():
    """Adapters of convolutions are made so by peft: it calls the layer's class."""
    layer = models.enable_layerwise_casting(torch.nn.Conv2d(3, 4, 1))
    other = type(layer)(4, 5, 3, bias=False)
    assert type(other) is torch.nn.Conv2d
    assert other.weight.shape == (5, 4, 3, 3)
    replica = layer._replicate_for_data_parallel()
    assert type(replica) is type(layer)


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
    assert hasattr(model[1], "storage")


def test_half_the_bytes(log):
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Conv2d(64, 128, 3)).bfloat16()

    def size():
        tensors = [*model.parameters(), *model.buffers()]
        return sum(tensor.numel() * tensor.itemsize for tensor in tensors)

    before = size()
    models.enable_layerwise_casting(model)
    assert size() < 0.51 * before
    assert log[-1].endswith(f"e4m3; its {before / 1e6:.1f} MB are {size() / 1e6:.1f} now")
