"""Small models of transformers and Diffusers, of the checkpoints' matrix, and their inputs."""

import os

import pytest
import torch
from octofold import models, nn
from octofold.models.advisor.ways import WAYS

os.environ.setdefault("HF_HUB_OFFLINE", "1")


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


def autoencoder(seed=0, **options):
    """A model of images: the matrix has none."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(seed)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2}
    blocks |= {"up_block_types": ("UpDecoderBlock2D",) * 2, "block_out_channels": (16, 16)}
    model = diffusers.AutoencoderKL(**blocks, norm_num_groups=8, **options)
    return in_16_bits(model), {"sample": torch.randn(1, 3, 8, 8).bfloat16()}


bert, flux, unet = map(of_matrix, ("BERT", "Flux", "UNet"))
# Sines of positions: a buffer that is not saved, and a parameter that transformers leaves out.
SINES = of_matrix("GPT-J"), of_matrix("Marian")


@torch.no_grad()
def outcome(model, inputs):
    return model(**inputs)[0]


def mixed(model):
    """Linear layers of every kind in turns, as a plan of advise() mixes them."""
    kinds = (
        lambda layer: nn.inference_linear(layer, "blockwise"),
        lambda layer: nn.weight_only_linear(layer, "channel"),
        lambda layer: nn.inference_linear(layer, "rowwise"),
        lambda layer: nn.weight_only_linear(layer, "1x128"),
        lambda layer: nn.inference_linear(layer, "tensorwise"),
        WAYS["cast"].make,
        lambda layer: layer,
    )
    linears = [
        (name, layer)
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear and not name.endswith(("lm_head", "decoder"))
    ]
    for index, (name, layer) in enumerate(linears):
        model.set_submodule(name, kinds[index % len(kinds)](layer))
    return model


def weight_only(model):
    """All but heads, which may be tied."""
    return nn.convert_weight_only(
        model, module_filter_fn=lambda layer, name: not name.endswith(("lm_head", "decoder"))
    ).model


def e5m2(model):
    return models.enable_layerwise_casting(model, "e5m2", compute="weight-only")


def a_part(model):
    """Casts a part of the model, of which the model as a whole knows nothing."""
    (blocks,) = [one for one in model.modules() if isinstance(one, torch.nn.ModuleList)][:1]
    models.enable_layerwise_casting(blocks)
    return model


CHANGES = [models.enable_layerwise_casting, mixed, weight_only, a_part, e5m2]


def made(make, change):
    """A changed model, its inputs and what it answers."""
    model, inputs = make()
    model = change(model)
    return model, inputs, outcome(model, inputs)


def loaded(kind, folder):
    """By its library, which must find a place for everything."""
    dtype = {"torch_dtype": torch.bfloat16} if hasattr(kind, "load_config") else {"dtype": "auto"}
    model, found = kind.from_pretrained(folder, output_loading_info=True, **dtype)
    assert not found["unexpected_keys"]
    assert not found["missing_keys"]
    return model


def same_states(model, other):
    """True if both have the same numbers: dequantized, where codes are FP8."""
    ours, theirs = numbers(model), numbers(other)
    assert ours.keys() == theirs.keys()
    return all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name])
        for name in ours
    )


def numbers(model):
    values = {name: value for name, value in model.state_dict().items() if value.element_size() > 1}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if isinstance(weight, nn.Fp8Weight):
            values[name] = weight.dequantize()
    return values
