"""transformers loads the folders that we write: every parameter has the value that we say."""

import json

import octofold
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from checkpoint_support import raw_tensors, read_config, relative_error  # noqa: E402
from model_support import CONFIGS, load, logits_of, quiet, save_dequantized, save_tiny  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

# Of the logits, against those of the model in BF16; routers may pick other experts.
LIMITS = {"llama": 0.1, "tied llama": 0.1, "qwen3-moe": 0.15, "deepseek-v3": 0.3}

CASES = [
    ("llama", "deepseek-v3", "128x128"),
    ("llama", "finegrained-fp8", "128x128"),
    ("llama", "finegrained-fp8", "tensor"),
    ("llama", "compressed-tensors", "channel"),
    ("llama", "compressed-tensors", "tensor"),
    ("llama", "compressed-tensors", "128x128"),
    ("llama", "torchao", "channel"),
    ("llama", "torchao", "tensor"),
    ("tied llama", "deepseek-v3", "128x128"),
    ("tied llama", "compressed-tensors", "channel"),
    ("tied llama", "torchao", "channel"),
    # Without torchao, whose quantizer in transformers takes no experts that are matrices each.
    ("qwen3-moe", "deepseek-v3", "128x128"),
    ("qwen3-moe", "compressed-tensors", "tensor"),
    ("deepseek-v3", "deepseek-v3", "128x128"),
    ("deepseek-v3", "finegrained-fp8", "tensor"),
    ("deepseek-v3", "compressed-tensors", "channel"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of each model: the folder in BF16, and the logits."""
    pytest.importorskip("compressed_tensors")
    quiet()
    made = {}
    for name, config in CONFIGS.items():
        folder = tmp_path_factory.mktemp("models") / name.replace(" ", "-")
        model = save_tiny(config(), folder)
        (folder / "tokenizer.json").write_text("{}")
        made[name] = folder, logits_of(model)
    return made


def load_dequantized(folder, family):
    """compressed-tensors' weights stay FP8 otherwise, and their scales are loaded as BF16."""
    if family != "compressed-tensors":
        return load(folder)
    return load(folder, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning")
@pytest.mark.parametrize(("name", "family", "granularity"), CASES)
def test_loads_what_we_say(folders, tmp_path, name, family, granularity):
    folder, logits = folders[name]
    out = tmp_path / "out"
    report = octofold.quantize_checkpoint(folder, out, family=family, format=granularity)
    assert len(report.quantized) >= 7
    names = {path.name for path in folder.iterdir()}
    assert {path.name for path in out.iterdir()} == names
    config = read_config(out)
    assert config.pop("quantization_config")
    assert config == read_config(folder)

    model = load_dequantized(out, family)
    ours = logits_of(model)
    expected = load(save_dequantized(out, folder, tmp_path / "bf16"))
    if family != "torchao":
        parameters = dict(model.named_parameters())
        for parameter_name, parameter in expected.named_parameters():
            value = parameters[parameter_name]
            assert value.dtype == torch.bfloat16, parameter_name
            assert torch.equal(value, parameter), parameter_name
        assert torch.equal(ours, logits_of(expected))
    else:
        for parameter_name, parameter in expected.named_parameters():
            value = model.get_parameter(parameter_name)
            if parameter_name in report.quantized:
                value = value.dequantize()
            assert torch.equal(value, parameter), parameter_name
    assert ours.isfinite().all()
    assert relative_error(ours, logits) < LIMITS[name]
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == (name == "tied llama")


@pytest.mark.parametrize("granularity", ["channel", "128x128"])
def test_compressed_layers_decompress_at_the_first_forward(folders, tmp_path, granularity):
    """Their scales are BF16 there, which powers of two survive; inputs are cast, too."""
    folder, logits = folders["llama"]
    octofold.quantize_checkpoint(
        folder,
        tmp_path / "out",
        family="compressed-tensors",
        format=octofold.Format(granularity=granularity, power_of_two=True),
    )
    model = load(tmp_path / "out")
    layer = model.model.layers[0].mlp.up_proj
    assert layer.weight.dtype == torch.float8_e4m3fn
    ours = logits_of(model)
    assert layer.weight.dtype == torch.bfloat16
    expected = load(save_dequantized(tmp_path / "out", folder, tmp_path / "bf16"))
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
    assert relative_error(ours, logits) < LIMITS["llama"]


def test_skipped_layers_are_left_alone(folders, tmp_path):
    folder, _ = folders["llama"]
    for family in ("deepseek-v3", "compressed-tensors"):
        out = tmp_path / family
        report = octofold.quantize_checkpoint(folder, out, skip="*self_attn*", family=family)
        assert not any("self_attn" in name for name in report.quantized)
        said = read_config(out)["quantization_config"]
        skipped = said["ignore" if family == "compressed-tensors" else "modules_to_not_convert"]
        assert "model.layers.0.self_attn.q_proj" in skipped
        assert "lm_head" in skipped
        assert "mlp" not in json.dumps(skipped)
        model = load(out)
        logits_of(model)
        original = load(folder)
        for name, parameter in original.named_parameters():
            if name not in report.quantized:
                assert torch.equal(model.get_parameter(name), parameter)


def test_a_converted_folder_loads_too(folders, tmp_path):
    folder, _ = folders["qwen3-moe"]
    octofold.quantize_checkpoint(
        folder, tmp_path / "one", family="compressed-tensors", format="tensor"
    )
    report = octofold.convert_checkpoint(tmp_path / "one", tmp_path / "two", "deepseek-v3")
    assert report.requantized == ()
    expected = load(save_dequantized(tmp_path / "one", folder, tmp_path / "bf16"))
    assert torch.equal(logits_of(load(tmp_path / "two")), logits_of(expected))


def test_load_checkpoint_into_gives_the_same_model(folders, tmp_path):
    folder, logits = folders["tied llama"]
    octofold.quantize_checkpoint(folder, tmp_path / "out")
    model = load(folder)
    octofold.models.load_checkpoint_into(model, tmp_path / "out", compute="weight-only")
    layer = model.model.layers[0].mlp.up_proj
    assert type(layer) is octofold.nn.WeightOnlyLinear
    assert type(model.lm_head) is torch.nn.Linear
    assert model.lm_head.weight is model.model.embed_tokens.weight
    expected = load(save_dequantized(tmp_path / "out", folder, tmp_path / "bf16"))
    assert relative_error(logits_of(model), logits_of(expected)) < 0.02
    model = octofold.models.load_checkpoint_into(load(folder), tmp_path / "out")
    assert type(model.model.layers[0].mlp.up_proj) is octofold.nn.InferenceLinear
    assert relative_error(logits_of(model), logits) < 0.15


def test_fused_experts_are_what_its_gpu_layer_holds(folders, tmp_path):
    """On the CPU transformers dequantizes no stacks; their names, dtypes and shapes are what it
    has parameters for where it computes in FP8."""
    from transformers.integrations.finegrained_fp8 import FP8Experts

    folder, _ = folders["qwen3-moe"]
    model = load(folder)
    fused = tmp_path / "fused"
    fused.mkdir()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, fused / "model.safetensors", metadata={"format": "pt"})
    (fused / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert torch.equal(logits_of(load(fused)), logits_of(model))
    report = octofold.quantize_checkpoint(fused, tmp_path / "out", family="finegrained-fp8")
    prefix = "model.layers.0.mlp.experts."
    stacks = {name for name in report.quantized if name.startswith(prefix)}
    assert stacks == {f"{prefix}gate_up_proj", f"{prefix}down_proj"}
    with torch.device("meta"):
        experts = FP8Experts(model.config, block_size=(128, 128))
    raw = raw_tensors(tmp_path / "out")
    written = {name.removeprefix(prefix): raw[name] for name in raw if name.startswith(prefix)}
    wanted = dict(experts.named_parameters())
    assert written.keys() == wanted.keys()
    for name, parameter in wanted.items():
        assert (written[name].dtype, written[name].shape) == (parameter.dtype, parameter.shape)

    checkpoint = octofold.load_checkpoint(tmp_path / "out")
    octofold.models.load_checkpoint_into(model, checkpoint, compute="weight-only")
    assert relative_error(logits_of(model), logits_of(load(folder))) < LIMITS["qwen3-moe"]
