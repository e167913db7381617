"""Models for tests of the plug into Diffusers, beside those of the matrix: small, with random
weights, saved as folders."""

import diffusers
import torch
from octofold.integrations.diffusers import OctofoldConfig

from tests.python.models.library_models import in_16_bits

BF16 = torch.bfloat16


def flux(seed=0):
    """With a block more than the matrix's, and the channels of a small pipeline."""
    torch.manual_seed(seed)
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
    inputs = {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 8, 64),
        "pooled_projections": torch.randn(1, 64),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.randn(8, 3),
    }
    return in_16_bits(model), {name: value.bfloat16() for name, value in inputs.items()}


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
    model, inputs = make()
    model.save_pretrained(folder)
    return model, inputs


def loaded(folder, dtype=BF16, kind=diffusers.FluxTransformer2DModel, device_map=None, **options):
    """A model of the folder, cast to FP8."""
    config = OctofoldConfig(**options)
    return kind.from_pretrained(
        folder, quantization_config=config, torch_dtype=dtype, device_map=device_map
    )
