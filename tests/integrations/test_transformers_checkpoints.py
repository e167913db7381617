"""FP8 checkpoints of other libraries through the plug into transformers, and what it refuses."""

import subprocess
import sys

import octofold
import pytest
import torch
from octofold.integrations.transformers import OctofoldConfig, checkpoint_config

from tests.integrations.support import fp8_layers
from tests.integrations.transformers_support import MIXTURES, ROWS, limit, load
from tests.python.nn.layer_support import relative_error

FAMILIES = {
    "deepseek-v3": "128x128",
    "finegrained-fp8": "128x128",
    "compressed-tensors": "channel",
    "compressed-tensors blocks": "128x128",
    "modelopt": "channel",
    "torchao": "channel",
}


@pytest.mark.parametrize("compute", ["native", "weight-only"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["Llama", *MIXTURES])
def test_checkpoints_of_other_families(saved, name, family, compute, tmp_path):
    source, _ = saved(name)
    fp8 = tmp_path / "fp8"
    try:
        octofold.quantize_checkpoint(source, fp8, family=family.split()[0], format=FAMILIES[family])
    except octofold.InvalidArgumentError as error:
        pytest.skip(str(error))
    config = checkpoint_config(fp8, compute=compute)
    model = load(saved, name, folder=fp8, config=config)
    checkpoint = octofold.load_checkpoint(fp8)
    layers = fp8_layers(model)
    assert len(layers) >= 4
    for path, layer in layers.items():
        assert layer.weight.scaled.equals(checkpoint[f"{path}.weight"])
    plain = load(saved, name)
    with torch.no_grad():
        for key, value in plain.state_dict().items():
            if isinstance(value, torch.Tensor) and checkpoint.weight(key) is not None:
                value.copy_(checkpoint[key].dequantize("float32"))
    stacks = {
        n: m
        for n, m in plain.named_modules()
        if hasattr(m, "gate_up_proj") and n.endswith("experts")
    }
    for path, stack in stacks.items() if name != "gpt-oss" else ():
        fill_experts(stack, path, checkpoint)
    outputs, expected = ROWS[name].outputs(model), ROWS[name].outputs(plain)
    assert relative_error(outputs, expected) < limit(name, compute)
    model.save_pretrained(tmp_path / "again")
    again = load(saved, name, folder=tmp_path / "again")
    assert torch.equal(ROWS[name].outputs(again), outputs)


def fill_experts(stack, path, checkpoint):
    """The values of a checkpoint that has a matrix for each expert."""
    names = ("gate_proj", "up_proj", "down_proj")
    if f"{path}.0.w1.weight" in checkpoint:
        names = ("w1", "w3", "w2")
    if f"{path.replace('mlp', 'block_sparse_moe')}.0.w1.weight" in checkpoint:
        path, names = path.replace("mlp", "block_sparse_moe"), ("w1", "w3", "w2")
    for index in range(stack.gate_up_proj.shape[0]):
        gate, up, down = (
            checkpoint[f"{path}.{index}.{name}.weight"].dequantize("float32") for name in names
        )
        stack.gate_up_proj.data[index] = torch.cat((gate, up))
        stack.down_proj.data[index] = down


def test_bad_configs():
    """The rules of every host are in tests/python/test_hosts.py."""
    with pytest.raises(octofold.InvalidArgumentError, match=r"Octofold.*'compute'.*'fp8'"):
        OctofoldConfig(compute="fp8")


def test_numbers_are_not_cast_from_float64(saved):
    folder, kind = saved("Llama")
    with pytest.raises(octofold.InvalidArgumentError, match="'dtype': expected float32, float16"):
        kind.from_pretrained(folder, dtype=torch.float64, quantization_config=OctofoldConfig())


def test_layers_of_no_kind_of_ours_are_dequantized(saved, tmp_path):
    """Falcon has a subclass of torch.nn.Linear for all of them."""
    octofold.quantize_checkpoint(saved("Falcon")[0], tmp_path / "8", family="compressed-tensors")
    model = load(saved, "Falcon", folder=tmp_path / "8", config=checkpoint_config(tmp_path / "8"))
    outputs = (ROWS["Falcon"].outputs(each) for each in (model, load(saved, "Falcon")))
    assert relative_error(*outputs) < 0.15


def test_a_model_without_linear_layers(saved):
    with pytest.raises(octofold.InvalidArgumentError, match=r"expected a torch\.nn\.Linear"):
        load(saved, "GPT-2", quantization_config=OctofoldConfig())


def test_a_file_without_scales(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    model = load(saved, "Llama", quantization_config=OctofoldConfig())
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.0.mlp.up_proj.weight_scale_inv"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(octofold.BadFormatError, match=r"up_proj.weight': expected scales beside"):
        load(saved, "Llama", folder=tmp_path)


def test_experts_with_scales_of_two_kinds(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    octofold.quantize_checkpoint(saved("Mixtral")[0], tmp_path, family="finegrained-fp8")
    files = {file: load_file(file) for file in tmp_path.glob("*.safetensors")}
    file, name = next(
        (file, name)
        for file, tensors in files.items()
        for name in tensors
        if ".experts." in name and name.endswith("_scale_inv")
    )
    files[file][name] = torch.ones(1)
    save_file(files[file], file, {"format": "pt"})
    with pytest.raises(octofold.UnsupportedError, match=r"one kind for all experts.*128x128 in"):
        load(saved, "Mixtral", folder=tmp_path, config=checkpoint_config(tmp_path))


def test_a_saved_folder_without_the_plug_is_refused(saved, tmp_path):
    """transformers that knows no OctofoldConfig takes codes for weights, and `octofold advise`."""
    load(saved, "Mixtral", quantization_config=OctofoldConfig()).save_pretrained(tmp_path)
    auto = "import transformers as t; t.AutoModel.from_pretrained(__import__('sys').argv[1])"
    advise = "import octofold_tool.__main__ as m, sys; sys.exit(m.main(['advise', sys.argv[1]]))"
    for program, said in ((auto, "mismatch"), (advise, "its layers are in FP8 already")):
        run = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode != 0
        assert said in done.stderr
