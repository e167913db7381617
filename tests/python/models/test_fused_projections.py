"""fuse_qkv_projections() of Diffusers, which makes one layer of the weights of three: before what
changes a model and after it."""

import octofold
import pytest
from layer_support import relative_error

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

CODES = {
    "casting": octofold.models.enable_layerwise_casting,
    "weight only": octofold.nn.convert_weight_only,
}
CHANGES = CODES | {"training": octofold.nn.convert}


@pytest.fixture
def unet():
    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=4,
    )
    return model.bfloat16().eval()


def output(model):
    torch.manual_seed(1)
    of = {"dtype": torch.bfloat16}
    with torch.no_grad():
        return model(torch.randn(1, 4, 8, 8, **of), 3, torch.randn(1, 5, 32, **of)).sample


def fused_layers(model):
    return [layer for name, layer in model.named_modules() if name.endswith(("to_qkv", "to_kv"))]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fused_before(unet, change):
    expected = output(unet)
    unet.fuse_qkv_projections()
    plain = [type(layer) for layer in fused_layers(unet)]
    change(unet)
    assert [type(layer) for layer in fused_layers(unet)] != plain
    assert relative_error(output(unet), expected) < 0.1


def test_fused_after_converting_for_training(unet):
    """The new layers have the weights' numbers, and are torch's."""
    expected = output(unet)
    octofold.nn.convert(unet)
    unet.fuse_qkv_projections()
    assert {type(layer) for layer in fused_layers(unet)} == {torch.nn.Linear}
    assert relative_error(output(unet), expected) < 0.1


@pytest.mark.parametrize("change", CODES.values(), ids=CODES)
def test_fusing_codes_is_an_error_and_changes_nothing(unet, change):
    change(unet)
    before = output(unet)
    with pytest.raises((NotImplementedError, RuntimeError), match=r"[Ff]loat8"):
        unet.fuse_qkv_projections()
    assert not fused_layers(unet)
    assert torch.equal(output(unet), before)
