"""Tiny random models of transformers, saved as users have them: in BF16, sharded."""

import os

import octofold
import torch
import transformers
from safetensors.torch import save_file

from tests.python.checkpoints.matrix_models import DECODER, DEEPSEEK, EXPERTS, TOKENS


def llama(**options):
    return transformers.LlamaConfig(**DECODER, **options)


CONFIGS = {
    "llama": llama,
    "tied llama": lambda: llama(tie_word_embeddings=True),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**DECODER, **EXPERTS, num_experts=4),
    # A dense layer and one of experts.
    "deepseek-v3": lambda: transformers.DeepseekV3Config(**DEEPSEEK),
}


def save_tiny(config, folder):
    """A model of this configuration, in several files."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(4)  # so that logits say something
    model.save_pretrained(folder, max_shard_size="300KB")
    assert (folder / "model.safetensors.index.json").exists()
    return model


def load(folder, **options):
    """The model, of which every parameter must have come from the folder."""
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True, **options
    )
    assert not any(loading.values()), {key: value for key, value in loading.items() if value}
    return model.eval()


@torch.no_grad()
def logits_of(model):
    return model(TOKENS).logits.float()


def save_dequantized(quantized, original, folder, dtype="bfloat16"):
    """The same checkpoint in the source's type, with the values that load_checkpoint() says."""
    checkpoint = octofold.load_checkpoint(quantized)
    tensors = {
        name: value.dequantize(dtype) if isinstance(value, octofold.ScaledTensor) else value
        for name, value in checkpoint.items()
    }
    return save_like(original, tensors, folder)


def save_like(original, tensors, folder):
    """A folder of one file, called as its library calls it, with the config of another."""
    folder.mkdir()
    diffuses = (original / "diffusion_pytorch_model.safetensors").exists()
    name = "diffusion_pytorch_model" if diffuses else "model"
    save_file(tensors, folder / f"{name}.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes((original / "config.json").read_bytes())
    return folder


def quiet():
    """transformers' bars and reports are not to be read here."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers.utils.logging.disable_progress_bar()
