"""Models that tests of Diffusers' models share."""

import pytest
import torch


def unet():
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.UNet2DConditionModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=4,
    )
    return model, {
        "sample": torch.randn(1, 4, 4, 4),
        "timestep": torch.tensor(3),
        "encoder_hidden_states": torch.randn(1, 5, 32),
    }


def in_16_bits(model, inputs):
    wide = {
        name: value.bfloat16() if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    return model.bfloat16().eval(), wide


@torch.no_grad()
def outcome(model, inputs):
    return model(**inputs)[0]
