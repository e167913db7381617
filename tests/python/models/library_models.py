"""Small models of transformers and Diffusers, of the checkpoints' matrix, and their inputs."""

import pytest
import torch


def in_16_bits(model):
    """With buffers in float32, as from_pretrained() has them."""
    for parameter in model.parameters():
        parameter.data = parameter.bfloat16()
    return model.eval()


def of_matrix(name):
    """Makes a model of the matrix."""

    def make(seed=0):
        pytest.importorskip("transformers")
        from tests.python.checkpoints.matrix_models import DIFFUSION_ROWS, TEXT_ROWS

        rows = {row.name: row for row in (*TEXT_ROWS, *DIFFUSION_ROWS)}
        if rows[name] in DIFFUSION_ROWS:
            pytest.importorskip("diffusers")
        torch.manual_seed(seed)
        return in_16_bits(rows[name].make()), rows[name].inputs()

    make.__name__ = name
    return make


def decoder(kind, seed, **options):
    """Its embedding and head have rows as readers of blocks have to have them."""
    pytest.importorskip("transformers")
    from tests.python.checkpoints.matrix_models import DECODER, of, tokens

    torch.manual_seed(seed)
    make = of(f"{kind}ForCausalLM", **{**DECODER, "vocab_size": 128, **options})
    return in_16_bits(make()), tokens()


def llama(seed=0):
    return decoder("Llama", seed)


def tied_llama(seed=0):
    return decoder("Llama", seed, tie_word_embeddings=True)


def small_llama(seed=0):
    """Its sizes are no multiples of 128."""
    return decoder("Llama", seed, hidden_size=64, head_dim=32)


def mixture(seed=0):
    """Its experts are one parameter each in the model, and matrices each in transformers' files."""
    experts = {"moe_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 2}
    return decoder("Qwen3Moe", seed, **experts)


bert, flux, unet = map(of_matrix, ("BERT", "Flux", "UNet"))
# Sines of positions: a buffer that is not saved, and a parameter that transformers leaves out.
SINES = of_matrix("GPT-J"), of_matrix("Marian")


@torch.no_grad()
def outcome(model, inputs):
    return model(**inputs)[0]
