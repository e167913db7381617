"""Tiny random models of transformers, saved as users have them: in BF16, sharded."""

import os

import torch
import transformers
from octofold import ScaledTensor, load_checkpoint
from safetensors.torch import save_file

VOCABULARY = 64
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
EXPERTS = {"moe_intermediate_size": 128, "num_experts_per_tok": 2}


def llama(**options):
    return transformers.LlamaConfig(
        **SIZES, num_hidden_layers=1, num_key_value_heads=1, head_dim=128, **options
    )


def qwen3_moe():
    return transformers.Qwen3MoeConfig(
        **SIZES, **EXPERTS, num_hidden_layers=1, num_experts=4, num_key_value_heads=1, head_dim=128
    )


def deepseek_v3():
    """A dense layer and one of experts; each matrix a multiple of 128, as dequantizing in
    transformers asks for."""
    return transformers.DeepseekV3Config(
        **SIZES,
        **EXPERTS,
        num_hidden_layers=2,
        num_key_value_heads=2,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        q_lora_rank=128,
        kv_lora_rank=64,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
    )


CONFIGS = {
    "llama": llama,
    "tied llama": lambda: llama(tie_word_embeddings=True),
    "qwen3-moe": qwen3_moe,
    "deepseek-v3": deepseek_v3,
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
    tokens = torch.arange(24).reshape(2, 12) % VOCABULARY
    return model(tokens).logits.float()


def save_dequantized(quantized, original, folder):
    """The same checkpoint in BF16, with the values that load_checkpoint() says."""
    folder.mkdir()
    checkpoint = load_checkpoint(quantized)
    tensors = {
        name: value.dequantize("bfloat16") if isinstance(value, ScaledTensor) else value
        for name, value in checkpoint.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes((original / "config.json").read_bytes())
    return folder


def quiet():
    """transformers' bars and reports are not to be read here."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers.utils.logging.disable_progress_bar()
