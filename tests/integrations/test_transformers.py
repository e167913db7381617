"""octofold.integrations.transformers with transformers: models that are cast while they load."""

import copy
import pickle

import octofold
import pytest
import torch
import transformers
from octofold.integrations.transformers import OctofoldConfig
from octofold.nn import Experts, Fp8Weight

from tests.integrations.support import fp8_layers, same_bits
from tests.integrations.transformers_support import MIXTURES, ROWS, limit, load
from tests.python.checkpoints.matrix_models import TOKENS
from tests.python.nn.layer_support import relative_error


def with_the_same_values(model, plain):
    """The plain model with the values of the model's FP8 weights, so that only the casts of inputs
    tell them apart."""
    expected = copy.deepcopy(plain)
    for name, module in model.named_modules():
        other = expected.get_submodule(name)
        for key, value in module.named_parameters(recurse=False):
            if not isinstance(value, Fp8Weight):
                continue
            wide = value.dequantize(torch.float32)
            parameter = getattr(other, key)
            parameter.data.copy_(wide if wide.shape == parameter.shape else wide.transpose(1, 2))
            if getattr(other, "is_transposed", False):
                parameter.data.copy_(wide.transpose(1, 2))
    return expected


@pytest.mark.parametrize("compute", ["native", "weight-only"])
@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("GPT-2", "Falcon")])
def test_models_are_cast_while_they_load(saved, name, compute, tmp_path):
    row = ROWS[name]
    if row.dtype == torch.float32 and compute == "weight-only":
        pytest.skip("activations of 16 bits")
    model = load(saved, name, quantization_config=OctofoldConfig(compute=compute))
    pickled = pickle.loads(pickle.dumps(model))
    assert {layer.weight.compute for layer in fp8_layers(model).values()} == {compute}
    head = model.get_output_embeddings()
    assert head is None or head not in fp8_layers(model).values()
    expected = row.outputs(with_the_same_values(model, load(saved, name)))
    outputs = row.outputs(model)
    assert relative_error(outputs, expected) < limit(name, compute)
    model.save_pretrained(tmp_path / "again")
    for again in (load(saved, name, folder=tmp_path / "again"), pickled):
        assert same_bits(again, model)
        assert torch.equal(row.outputs(again), outputs)
    assert [type(m) for m in pickled.modules()] == [type(m) for m in model.modules()]


def fp8_stacks(model):
    return [m for m in model.modules() if isinstance(getattr(m, "gate_up_proj", None), Fp8Weight)]


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_fp8(saved, name):
    model = load(saved, name, quantization_config=OctofoldConfig())
    stacks = fp8_stacks(model)
    assert stacks
    assert (name == "gpt-oss") != all(isinstance(stack, Experts) for stack in stacks)
    biases = [stack.gate_up_proj_bias for stack in stacks if name == "gpt-oss"]
    assert all(bias.dtype == torch.bfloat16 for bias in biases)
    with octofold.nn.wide_state_dict(model):
        state = model.state_dict()
    for key, weight in load(saved, name).state_dict().items():
        if not key.endswith("_proj"):
            continue
        assert state[key].shape == weight.shape
        assert relative_error(state[key].float(), weight.float()) < 0.04
    left = load(saved, name, quantization_config=OctofoldConfig(experts=False))
    assert not fp8_stacks(left)


@pytest.mark.parametrize(
    "format",
    ["channel", "tensor", "e5m2 128x128", octofold.Format("e4m3", "128x128", power_of_two=True)],
)
def test_formats_are_kept(saved, format, tmp_path):
    model = load(saved, "Llama", quantization_config=OctofoldConfig(format))
    layer = model.model.layers[0].mlp.up_proj
    wide = load(saved, "Llama").model.layers[0].mlp.up_proj.weight
    assert layer.weight.scaled.equals(octofold.quantize(wide.detach(), format))
    model.save_pretrained(tmp_path)
    again = load(saved, "Llama", folder=tmp_path)
    assert same_bits(again, model)
    assert again.hf_quantizer.quantization_config.format == model.config.quantization_config.format


def test_generation_and_a_compiled_model(saved):
    model = load(saved, "Llama", quantization_config=OctofoldConfig())
    with torch.no_grad():
        tokens = model.generate(TOKENS[:, :6], max_new_tokens=5, do_sample=False, pad_token_id=0)
        assert tokens.shape == (2, 11)
        assert torch.equal(model(TOKENS[:, :6]).logits[:, -1].argmax(-1), tokens[:, 6])
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert relative_error(compiled(TOKENS).logits.float(), model(TOKENS).logits.float()) < 0.02


def test_gated_mlps_are_one_chain(saved, tmp_path, monkeypatch):
    """With the bits of its layers, but that the activation is rounded once; wherever that is not
    possible it calls them."""
    model = load(saved, "Llama", quantization_config=OctofoldConfig())
    mlp = model.model.layers[0].mlp
    assert type(mlp).__name__ == "LlamaMLP"
    assert "octofold.ops.gated_gemm" in model.hf_quantizer.report["model.layers.0.mlp"]
    calls = []

    def gated_gemm(*arguments, **options):
        calls.append(options["activation"])
        return octofold.ops.gated_gemm(*arguments, **options)

    monkeypatch.setattr("octofold.nn.conversion.gated_mlp.gated_gemm", gated_gemm)
    x = torch.randn(2, 20, 128, dtype=torch.bfloat16)
    before = {name: value.clone() for name, value in mlp.state_dict().items()}
    with torch.no_grad():
        apart = mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x))
        together = mlp(x)
        assert calls == ["swiglu"]
        assert relative_error(together, apart) < 0.02
        again = mlp(x)
        assert torch.equal(again, together)
        gate, up = mlp.gate_proj.weight.codes, mlp.up_proj.weight.codes
        assert gate.data_ptr() + 256 * 128 == up.data_ptr()
        assert same_bits(mlp, before)
        moved = copy.deepcopy(model).to("cpu").model.layers[0].mlp
        assert torch.equal(moved(x), together)
        calls.clear()
        assert torch.equal(
            mlp(x[:, :8]),
            mlp.down_proj(mlp.act_fn(mlp.gate_proj(x[:, :8])) * mlp.up_proj(x[:, :8])),
        )
    y = mlp(x.requires_grad_())
    assert y.requires_grad
    model.save_pretrained(tmp_path)
    assert same_bits(load(saved, "Llama", folder=tmp_path), model)
    with torch.no_grad():
        mlp.up_proj.weight.copy_(torch.randn(256, 128))  # as merging an adapter does
    with torch.no_grad():
        apart = mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x))
        assert calls == []
        assert relative_error(mlp(x), apart) < 0.02
        assert calls == ["swiglu"]
        calls.clear()
        compiled = torch.compile(mlp, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), mlp(x))
        assert calls == ["swiglu", "swiglu"]
        calls[:] = ["swiglu"]
        monkeypatch.setattr("octofold.nn.conversion.gated_mlp._below", None)  # no more copies
        mlp(x)
        calls[:] = ["swiglu"]
        mlp.gate_proj.forward = mlp.gate_proj.forward  # as accelerate replaces it
        assert torch.equal(mlp(x), apart)
        del mlp.gate_proj.forward
    seen = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    with torch.no_grad():
        assert torch.equal(mlp(x), apart)
        seen.remove()
        mlp.act_fn = type("SiLU", (torch.nn.Module,), {"forward": lambda self, x: 0 * x})()
        assert not mlp(x).any()
        mlp.act_fn = torch.nn.SiLU()
        mlp.up_proj.register_forward_hook(lambda *_: None)
        assert torch.equal(mlp(x), apart)
    assert calls == ["swiglu"]


def test_rotary_embeddings_of_this_version(saved):
    model = load(saved, "Llama")
    ids = torch.arange(40)[None]
    with torch.no_grad():
        before = model(ids).logits
        report = octofold.nn.convert_rotary(model)
        assert report.converted
        assert relative_error(model(ids).logits, before) < 0.02


def test_layers_that_stay(saved):
    config = OctofoldConfig(modules_to_not_convert=["q_proj", r"model\.layers\.0\.mlp"])
    model = load(saved, "Llama", quantization_config=config)
    layer = model.model.layers[0]
    of_attention = {"self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
    assert fp8_layers(layer).keys() == of_attention
    report = model.hf_quantizer.report
    assert "model.layers.0.self_attn.k_proj" in report
    assert "model.layers.0.mlp.up_proj" not in report


def test_heads_of_classifiers_stay_and_are_made_anew(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    config = transformers.BertConfig(**sizes, num_attention_heads=2, vocab_size=96, num_labels=3)
    torch.manual_seed(3)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    model = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path, quantization_config=OctofoldConfig()
    )
    assert "classifier" not in fp8_layers(model)
    pooler = model.bert.pooler.dense  # which the checkpoint lacks, too
    assert pooler.weight.compute == "native"
    values = pooler.weight.scaled.dequantize("float32")
    assert 0.015 < float(values.std()) < 0.025
    assert model(TOKENS).logits.isfinite().all()


def test_the_way_back(saved):
    model = load(saved, "Llama", quantization_config=OctofoldConfig())
    expected = ROWS["Llama"].outputs(with_the_same_values(model, load(saved, "Llama")))
    wide = model.dequantize()
    assert not fp8_layers(wide)
    assert relative_error(ROWS["Llama"].outputs(wide), expected) < 1e-6


def test_offloaded_to_disk(saved, tmp_path):
    """accelerate brings the layers to memory call by call."""
    device_map = {
        "model.embed_tokens": "cpu",
        "model.layers": "disk",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    options = {"device_map": device_map, "offload_folder": tmp_path / "offloaded"}
    whole = load(saved, "Llama", quantization_config=OctofoldConfig())
    whole.save_pretrained(tmp_path / "fp8")
    model = load(saved, "Llama", folder=tmp_path / "fp8", **options)
    layer = model.model.layers[0].mlp.up_proj
    assert layer.weight.is_meta
    # They are numbers there, by which activations are multiplied as they are.
    assert relative_error(ROWS["Llama"].outputs(model), ROWS["Llama"].outputs(whole)) < 0.1
    assert layer.weight.is_meta
    with pytest.raises(octofold.InvalidArgumentError, match=r"'device_map': expected no disk"):
        load(saved, "Llama", quantization_config=OctofoldConfig(), **options)
