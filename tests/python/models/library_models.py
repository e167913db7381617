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

    def make():
        pytest.importorskip("transformers")
        from tests.python.checkpoints.matrix_models import DIFFUSION_ROWS, TEXT_ROWS

        rows = {row.name: row for row in (*TEXT_ROWS, *DIFFUSION_ROWS)}
        if rows[name] in DIFFUSION_ROWS:
            pytest.importorskip("diffusers")
        torch.manual_seed(0)
        return in_16_bits(rows[name].make()), rows[name].inputs()

    make.__name__ = name
    return make


def llama(**options):
    transformers = pytest.importorskip("transformers")
    from tests.python.checkpoints.matrix_models import DECODER, tokens

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**DECODER, **options})
    return in_16_bits(transformers.LlamaForCausalLM(config)), tokens()


def tied_llama():
    return llama(tie_word_embeddings=True)


def small_llama():
    """Its sizes are no multiples of 128, as readers of blocks have to have them."""
    return llama(hidden_size=64, head_dim=32)


bert, mixture, flux, unet = map(of_matrix, ("BERT", "Qwen3-MoE", "Flux", "UNet"))
# Sines of positions: a buffer that is not saved, and a parameter that transformers leaves out.
SINES = of_matrix("GPT-J"), of_matrix("Marian")


@torch.no_grad()
def outcome(model, inputs):
    return model(**inputs)[0]
