"""Small models of other libraries, and what is done to them, for tests of saving."""

import octofold
import pytest
import torch
from octofold import models, nn


def llama(size=128, **options):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2 if size < 128 else 4,
        vocab_size=128,
        dtype="bfloat16",
        **options,
    )
    return transformers.LlamaForCausalLM._from_config(config), {"input_ids": tokens()}


def tied_llama():
    return llama(tie_word_embeddings=True)


def small_llama():
    """Its sizes are no multiples of 128, as readers of blocks have to have them."""
    return llama(64)


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=128,
        dtype="bfloat16",
    )
    return transformers.BertForMaskedLM._from_config(config), {"input_ids": tokens()}


def mixture():
    """Its experts are one parameter each in the model, and matrices each in transformers' files."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        hidden_size=128,
        intermediate_size=128,
        moe_intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=128,
        dtype="bfloat16",
    )
    return transformers.Qwen3MoeForCausalLM._from_config(config), {"input_ids": tokens()}


def of_matrix(name):
    """A model of the matrix in bfloat16, with buffers in float32 as from_pretrained() has them."""

    def make():
        rows = {row.name: row for row in pytest.importorskip("matrix_models").TEXT_ROWS}
        model = rows[name].make()
        for parameter in model.parameters():
            parameter.data = parameter.bfloat16()
        return model, rows[name].inputs()

    return make


SINES = of_matrix("GPT-J"), of_matrix("Marian")
"""Sines of positions: a buffer that is not saved, and a parameter that transformers leaves out."""


def tokens():
    return torch.arange(14).reshape(2, 7)


def mixed(model):
    """Linear layers of every kind in turns, as a plan of advise() mixes them."""
    kinds = (
        lambda layer: nn.InferenceLinear.from_linear(layer, "blockwise"),
        lambda layer: nn.WeightOnlyLinear.from_linear(layer, "channel"),
        lambda layer: nn.InferenceLinear.from_linear(layer, "rowwise"),
        lambda layer: nn.WeightOnlyLinear.from_linear(layer, "1x128"),
        lambda layer: nn.InferenceLinear.from_linear(layer, "tensorwise"),
        models.CastLinear.from_linear,
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
    return models.enable_layerwise_casting(model, "e5m2", native=False)


def a_part(model):
    """Casts a part of the model, of which the model as a whole knows nothing."""
    (blocks,) = [one for one in model.modules() if isinstance(one, torch.nn.ModuleList)][:1]
    models.enable_layerwise_casting(blocks)
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
        if hasattr(module, "wide_weight"):
            values[name] = module.wide_weight(torch.float32)
            values = {key: one for key, one in values.items() if key != f"{name}.weight_scale"}
        elif hasattr(module, "scaled_weight"):
            weight = module.scaled_weight
            assert isinstance(weight, octofold.ScaledTensor)
            values[name] = weight.dequantize("float32")
    return values
