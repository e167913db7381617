"""We read what compressed-tensors wrote, and what torchao did. The families' matrix has what they
read of ours."""

import pytest
import torch
from octofold import convert_checkpoint, load_checkpoint, quantize, quantize_checkpoint

transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")
pytest.importorskip("torchao")
from compressed_tensors import ModelCompressor  # noqa: E402
from compressed_tensors.quantization import (  # noqa: E402
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from safetensors.torch import save_file  # noqa: E402
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict  # noqa: E402
from torchao.quantization import (  # noqa: E402
    Float8Tensor,
    Float8WeightOnlyConfig,
    PerBlock,
    PerRow,
    PerTensor,
    quantize_,
)

from tests.python.checkpoints.checkpoint_support import raw_tensors  # noqa: E402
from tests.python.checkpoints.family_matrix import quiet  # noqa: E402
from tests.python.checkpoints.matrix_models import LLAMA, TOKENS  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    quiet()
    folder = tmp_path_factory.mktemp("models") / "llama"
    new_model().save_pretrained(folder, max_shard_size="300KB")
    return folder


def new_model():
    torch.manual_seed(3)
    return LLAMA().bfloat16()


SCHEMES = {
    "tensor": ({"strategy": "tensor"}, {"strategy": "tensor"}),
    "channel": ({"strategy": "channel"}, {"strategy": "token", "dynamic": True}),
    "128x128": (
        {"strategy": "block", "block_structure": [128, 128]},
        {"strategy": "group", "dynamic": True, "group_size": 128},
    ),
}


def calibrated(granularity):
    """A model that compressed-tensors is to write, with scales in its own BF16."""
    model = new_model()
    weights, inputs = (
        QuantizationArgs(num_bits=8, type="float", symmetric=True, **arguments)
        for arguments in SCHEMES[granularity]
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(model, config, show_progress=False)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "weight_scale"):
                scale = quantize(module.weight.float(), granularity).scale
                module.weight_scale.copy_(scale.reshape(module.weight_scale.shape))
            if hasattr(module, "input_scale"):
                module.input_scale.fill_(0.03)
    return model


@pytest.mark.parametrize("granularity", SCHEMES)
def test_we_read_what_it_wrote(tmp_path, granularity):
    quiet()
    model = calibrated(granularity)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path / "out")
    compressor.update_config(tmp_path / "out")

    checkpoint = load_checkpoint(tmp_path / "out")
    assert checkpoint.family == "compressed-tensors"
    weights = {weight.name: weight for weight in checkpoint.contents.weights}
    assert len(weights) == 7
    name = "model.layers.0.mlp.up_proj.weight"
    assert weights[name].granularity == granularity
    assert weights[name].scale.dtype == "BF16"
    given = checkpoint.input_scale(name)
    if granularity == "tensor":
        assert given.tolist() == torch.tensor([0.03]).bfloat16().tolist()
    else:
        assert given is None
    codes = {key: tensor for key, tensor in model.state_dict().items() if key in weights}
    scales = {
        key: model.get_parameter(f"{key}_scale").detach().float().flatten().tolist()
        for key in weights
    }
    compressor.decompress_model(model)
    for key in weights:
        value = checkpoint[key]
        assert torch.equal(value.data.view(torch.uint8), codes[key].view(torch.uint8))
        assert value.scale.flatten().tolist() == scales[key]
        # It multiplies in BF16, whose only rounding is the product's.
        assert torch.equal(value.dequantize("bfloat16"), model.get_parameter(key))

    # And on to a family whose scales are FP32.
    family = "modelopt" if granularity == "tensor" else "torchao"
    report = convert_checkpoint(tmp_path / "out", tmp_path / "next", family)
    assert report.requantized == ()
    following = load_checkpoint(tmp_path / "next")
    for key in weights:
        assert following[key].equals(checkpoint[key])
    if granularity == "tensor":
        assert torch.equal(following.input_scale(name), given)


OF_TORCHAO = {"channel": PerRow(), "tensor": PerTensor(), "128x128": PerBlock([128, 128])}


@pytest.mark.parametrize("granularity", OF_TORCHAO)
def test_we_read_what_torchao_wrote(tmp_path, granularity):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 384), torch.nn.Linear(384, 128)).bfloat16()
    if granularity == "128x128":
        for layer in model:
            weight = Float8Tensor.from_hp(layer.weight.data, granularity=OF_TORCHAO[granularity])
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    else:
        quantize_(model, Float8WeightOnlyConfig(granularity=OF_TORCHAO[granularity]))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors, metadata = flatten_tensor_state_dict(state)
    file = tmp_path / "model.safetensors"
    save_file(tensors, file, metadata=metadata)
    checkpoint = load_checkpoint(file)
    assert checkpoint.family == "torchao"
    assert set(checkpoint) == set(state)
    for name in ("0.weight", "1.weight"):
        assert checkpoint[name].granularity == granularity
        assert torch.equal(checkpoint[name].dequantize("bfloat16"), state[name].dequantize())
        assert torch.equal(checkpoint[name].data, state[name].qdata)
    assert torch.equal(checkpoint["1.bias"], state["1.bias"])


def test_layers_of_several_kinds_have_groups_of_their_own(folder, tmp_path):
    """Scales of a tensor with a static one of its input, without, and of channels."""
    quantize_checkpoint(folder, tmp_path / "a", family="compressed-tensors", format="tensor")
    tensors = raw_tensors(tmp_path / "a")
    layer = "model.layers.0.mlp"
    tensors[f"{layer}.up_proj.input_scale"] = torch.tensor([0.0625])
    rows = tensors[f"{layer}.down_proj.weight"].shape[0]
    tensors[f"{layer}.down_proj.weight_scale"] = (
        tensors[f"{layer}.down_proj.weight_scale"].expand(rows, 1).clone()
    )
    (tmp_path / "b").mkdir()
    save_file(tensors, tmp_path / "b" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "b" / "config.json").write_bytes((tmp_path / "a/config.json").read_bytes())

    # There is one granularity that repeats the scales of all.
    report = convert_checkpoint(
        tmp_path / "b", tmp_path / "d", "compressed-tensors", granularity="channel"
    )
    assert report.requantized == report.dropped == ()
    before, after = (load_checkpoint(tmp_path / name) for name in "bd")
    for name in report.quantized:
        assert torch.equal(before[name].dequantize(), after[name].dequantize())
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "d", dtype=torch.bfloat16, output_loading_info=True
    )
    assert not any(loading.values())
    schemes = {
        name: module.quantization_scheme
        for name, module in model.named_modules()
        if hasattr(module, "quantization_scheme")
    }
    assert {f"{name}.weight" for name in schemes} == set(report.quantized)
    for name, scheme in schemes.items():
        assert scheme.weights.strategy == "channel"
        assert scheme.input_activations.dynamic == (not name.endswith("up_proj"))
    assert model.get_parameter(f"{layer}.up_proj.input_scale").item() == 0.0625
    assert model(TOKENS).logits.isfinite().all()
