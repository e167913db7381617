"""Models for tests of the plug into Diffusers: small, with random weights, saved as folders."""

import diffusers
import torch
from octofold.integrations.diffusers import OctofoldConfig

BF16 = torch.bfloat16


def unet():
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


def flux():
    model = diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=64,
        num_attention_heads=2,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        axes_dims_rope=(16, 24, 24),
    )
    return model, {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 8, 64),
        "pooled_projections": torch.randn(1, 64),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.randn(8, 3),
    }


def sd3():
    model = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=1,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=64,
        caption_projection_dim=128,
        pooled_projection_dim=64,
        out_channels=4,
        pos_embed_max_size=8,
    )
    return model, {
        "hidden_states": torch.randn(1, 4, 8, 8),
        "encoder_hidden_states": torch.randn(1, 5, 64),
        "pooled_projections": torch.randn(1, 64),
        "timestep": torch.tensor([3]),
    }


def wan():
    """Its embedding of time is asked for its dtype, and stays in FP32."""
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=64,
        in_channels=4,
        out_channels=4,
        text_dim=64,
        freq_dim=64,
        ffn_dim=192,
        num_layers=1,
    )
    return model, {
        "hidden_states": torch.randn(1, 4, 1, 8, 8),
        "timestep": torch.tensor([3]),
        "encoder_hidden_states": torch.randn(1, 5, 64),
    }


def large():
    """Its layers are most of the memory that a process takes for it."""
    return diffusers.FluxTransformer2DModel(
        num_layers=1,
        num_single_layers=6,
        attention_head_dim=128,
        num_attention_heads=8,
        joint_attention_dim=1024,
        pooled_projection_dim=64,
    )


def saved(make, folder):
    """A model in bfloat16 and its inputs; it lies in the folder too."""
    torch.manual_seed(0)
    model, inputs = in_16_bits(*make())
    model.save_pretrained(folder)
    return model, inputs


def loaded(folder, dtype=BF16, kind=diffusers.FluxTransformer2DModel, device_map=None, **options):
    """A model of the folder, cast to FP8."""
    config = OctofoldConfig(**options)
    return kind.from_pretrained(
        folder, quantization_config=config, torch_dtype=dtype, device_map=device_map
    )
