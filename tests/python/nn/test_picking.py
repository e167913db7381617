"""The layers that conversions of models pick, what they say of the others, and that models whose
code reads weights past their layers go on computing right."""

import copy
from functools import partial

import octofold
import pytest
import torch

from tests.python.nn.layer_support import transformers_model

nn = octofold.nn


def encoder():
    layer = torch.nn.TransformerEncoderLayer(128, 2, 256, batch_first=True, dropout=0.0)
    return torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 1), torch.nn.Linear(128, 128))


def t5():
    library = pytest.importorskip("transformers")
    config = library.T5Config(d_model=128, d_ff=128, num_layers=1, num_heads=2, vocab_size=200)
    return library.T5EncoderModel(config)


def one_layer_of(family, kind="AutoModelForCausalLM", **options):
    return partial(transformers_model, family, kind, num_hidden_layers=1, **options)


llama = one_layer_of("llama")
gpt2 = one_layer_of("gpt2", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
of_positions = {"relative_attention": True, "position_buckets": 8}
MODELS = {
    "torch's encoder": encoder,
    "T5": t5,
    "Mamba": one_layer_of("mamba", "AutoModel"),
    "DeBERTa": one_layer_of("deberta-v2", "AutoModel", **of_positions),
    "Llama": llama,
}


def run(model):
    if isinstance(model, torch.nn.Sequential):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(2, 9, 128, generator=generator)
        return model(x.to(next(model.parameters()).dtype)).float()
    found = model(torch.arange(18).view(2, 9))
    return (found.logits if hasattr(found, "logits") else found[0]).float()


def new_model(name):
    """In evaluation, without dropout, BF16."""
    torch.manual_seed(0)
    model = MODELS[name]().eval().bfloat16()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def advised(model):
    if isinstance(model, torch.nn.Sequential):
        inputs = torch.randn(2, 9, 128, dtype=torch.bfloat16)
    else:
        inputs = {"input_ids": torch.arange(18).view(2, 9)}
    plan = octofold.models.advise(model, inputs)
    return octofold.models.apply(model, plan)


CHANGES = {
    "convert": nn.convert,
    "weight only": nn.convert_weight_only,
    "layerwise": octofold.models.enable_layerwise_casting,
    "advised": advised,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_models_that_read_weights_compute_right(name, change):
    model = new_model(name)
    expected = run(model)
    change(model)
    for training in (False, True):
        model.train(training)
        error = (run(model) - expected).norm() / expected.norm()
        assert error < 0.12


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_checkpoints_into_models_that_read_weights(name, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = new_model(name)
    expected = run(model)
    safetensors.save_model(model, tmp_path / "wide.safetensors")
    octofold.quantize_checkpoint(
        tmp_path / "wide.safetensors", tmp_path / "fp8.safetensors", use_default_skips=False
    )
    for compute in ("native", "weight-only"):
        model = new_model(name)
        octofold.models.load_checkpoint_into(model, tmp_path / "fp8.safetensors", compute=compute)
        assert any(isinstance(weight, nn.Fp8Weight) for weight in model.parameters())
        assert (run(model) - expected).norm() / expected.norm() < 0.12


def test_torchs_encoder_is_left_alone_unless_its_fast_path_is_off():
    """The fast path takes the weights of linear1 and linear2, and would measure another model than
    that which was trained."""
    report = nn.convert(encoder())
    assert list(report.converted) == ["1"]
    assert "TransformerEncoderLayer reads its weight" in report.left_alone["0.layers.0.linear1"]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        model = encoder()
        report = nn.convert(model)
        assert list(report.converted) == ["0.layers.0.linear1", "0.layers.0.linear2", "1"]
        x = torch.randn(2, 9, 128)
        trained = model(x)
        with torch.no_grad():
            assert torch.equal(model.eval()(x), trained)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


class AsksForDtypes(torch.nn.Module):
    """Asks a module for its dtype, as Wan's time embedding, and a sequence's first, as Z-Image."""

    def __init__(self):
        super().__init__()
        self.asked = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Linear(128, 128))
        self.mlp = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Linear(128, 128))

    def forward(self, x):
        x = self.asked(x.to(next(iter(self.asked.parameters())).dtype))
        x = x.to(next(self.parameters()).dtype)
        return self.mlp(x.to(self.mlp[0].weight.dtype))


def test_modules_that_are_asked_for_their_dtype_are_left_alone():
    report = nn.convert_weight_only(AsksForDtypes())
    assert list(report.converted) == ["mlp.1"]
    assert set(report.left_alone) == {"asked.0", "asked.1", "mlp.0"}
    assert "AsksForDtypes reads its weight itself" in report.left_alone["asked.1"]


def test_heads_are_left_alone_by_default():
    for tied in (False, True):
        report = nn.convert(llama(tie_word_embeddings=tied))
        assert len(report.converted) == 7
        assert set(report.left_alone) == {"lm_head"}
        words = "tied to that of model.embed_tokens" if tied else "the output head"
        assert words in report.left_alone["lm_head"]
    model = llama()
    report = nn.convert_weight_only(model, module_filter_fn=lambda module, name: True)
    assert "lm_head" in report.converted
    assert model.lm_head.weight.compute == "weight-only"


def test_a_model_with_nothing_but_a_head_is_refused():
    model = torch.nn.Module()
    model.embedding = torch.nn.Embedding(200, 128)
    model.lm_head = torch.nn.Linear(128, 200, bias=False)
    for convert in (nn.convert, nn.convert_weight_only):
        with pytest.raises(
            octofold.InvalidArgumentError, match=r"1, it is the output head: lm_head"
        ):
            convert(model)
    model.lm_head.weight = model.embedding.weight
    with pytest.raises(octofold.InvalidArgumentError, match="its weight is tied to that of embed"):
        nn.convert(model)
    assert type(model.lm_head) is torch.nn.Linear


def test_adapters_are_left_alone_by_default():
    peft = pytest.importorskip("peft")
    targets = ["q_proj", "down_proj"]
    config = peft.LoraConfig(target_modules=targets, init_lora_weights=False)
    for convert in (nn.convert, nn.convert_weight_only):
        model = peft.get_peft_model(llama(), config)
        report = convert(model)
        adapters = {name for name in report.left_alone if "lora_" in name}
        assert len(adapters) == 4
        assert {report.left_alone[name] for name in adapters} == {"it is an adapter"}
        assert sum("base_layer" in name for name in report.converted) == 2
        model.bfloat16()
        loss = model(torch.arange(9).view(1, 9), labels=torch.arange(9).view(1, 9)).loss
        loss.backward()
        trained = [name for name, p in model.named_parameters() if p.grad is not None]
        assert len(trained) == 4
    model = peft.get_peft_model(llama(), config)
    nn.convert(model)
    with torch.no_grad():  # peft adds to the weight's data
        apart, alone = run(model.eval()), copy.deepcopy(model).merge_and_unload()
        model.merge_adapter()
        merged = run(model)
        assert 0 < (merged - apart).norm() / apart.norm() < 0.1
        assert torch.equal(run(alone), merged)


class Special(torch.nn.Linear):
    pass


def odd_layers():
    """Layers that cannot be converted, by the words that say why."""
    parametrized = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(16, 16))
    replaced = torch.nn.Linear(16, 16)
    replaced.forward = lambda x: x
    with pytest.warns(FutureWarning):
        of_hooks = torch.nn.utils.weight_norm(torch.nn.Linear(16, 16))
    return {
        "parametrizes": parametrized,
        "Special": Special(16, 16),
        "has run once": torch.nn.LazyLinear(16),
        "no parameter of its own": of_hooks,
        "forward was replaced": replaced,
    }


def test_each_layer_that_is_left_alone_has_a_reason():
    layers = odd_layers()
    for convert in (nn.convert, nn.convert_weight_only):
        fused = nn.MLP(16, 16, recipe="rowwise"), nn.NormLinear(16, 16, recipe="rowwise")
        model = torch.nn.Sequential(*layers.values(), torch.nn.Linear(16, 16), *fused)
        report = convert(model)
        assert fused[0].down_proj.recipe == fused[1].linear.recipe == nn.recipes.rowwise
        assert report.model is model
        assert list(report.converted) == ["5"]
        for name, words in zip("01234", layers, strict=True):
            assert words in report.left_alone[name]
        alone = torch.nn.Sequential(*layers.values())
        with pytest.raises(octofold.InvalidArgumentError, match="torch parametrizes its weight: 0"):
            convert(alone)
    with pytest.raises(
        octofold.InvalidArgumentError, match=r"'model': expected a torch\.nn\.Linear"
    ):
        nn.convert(torch.nn.Sequential(*fused))


def test_the_report_reads_well():
    report = nn.convert(llama(), "rowwise")
    assert str(report).splitlines() == [
        "LlamaForCausalLM: 7 converted, 1 left alone",
        "  converted: 7, octofold.nn.Linear, recipe=rowwise: model.layers.0.self_attn.q_proj, "
        "model.layers.0.self_attn.k_proj, model.layers.0.self_attn.v_proj and 4 more",
        "  left alone: 1, it is the output head: lm_head",
    ]


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise"])
def test_conv1d_of_gpt2(recipe):
    model = gpt2()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters, ids = list(model.parameters()), torch.arange(18).view(2, 9)
    expected = model(ids, labels=ids)
    expected.loss.backward()
    gradients = [p.grad.clone() for p in parameters]
    model.zero_grad()
    report = nn.convert(model, recipe)
    assert set(report.converted.values()) == {f"octofold.nn.Conv1D, recipe={recipe}"}
    assert len(report.converted) == 4
    assert set(report.left_alone) == {"lm_head"}
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == list(state)
    actual = model(ids, labels=ids)
    actual.loss.backward()
    assert 0 < (actual.logits - expected.logits).norm() / expected.logits.norm() < 0.1
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert (parameter.grad - gradient).norm() / gradient.norm() < 0.12
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.data.zero_()  # the next forward sees it
        cast = model(ids).logits
        assert torch.equal(nn.restore(model)(ids).logits.isfinite(), cast.isfinite())
    assert type(model.transformer.h[0].mlp.c_fc).__module__ == "transformers.pytorch_utils"
    assert str(model) == str(gpt2())


def test_conv1d_is_left_alone_where_no_layer_is_for_it():
    with pytest.raises(octofold.InvalidArgumentError, match="Conv1D has no main_grad"):
        nn.convert(gpt2(), main_grad=True)
    with pytest.raises(octofold.InvalidArgumentError, match=r"stored as \[in, out\]"):
        nn.convert_weight_only(gpt2())
