"""torchao's Float8Tensor in safetensors: it reads what we write, and we what it wrote."""

import octofold
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")
from checkpoint_support import BF16, wide_tensors, write_folder  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torchao.prototype.safetensors.safetensors_support import (  # noqa: E402
    flatten_tensor_state_dict,
    unflatten_tensor_state_dict,
)
from torchao.quantization import (  # noqa: E402
    Float8Tensor,
    Float8WeightOnlyConfig,
    PerBlock,
    PerRow,
    PerTensor,
    quantize_,
)

GRANULARITIES = {"channel": PerRow(), "tensor": PerTensor(), "128x128": PerBlock([128, 128])}


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_torchao_reads_it(tmp_path, rng, granularity):
    # Its dequantize() repeats scales of blocks by the quotient of the shapes.
    sizes = (256, 384) if granularity == "128x128" else (300, 260)
    tensors = wide_tensors(rng, *sizes)
    del tensors["steps"]  # it reads no names without a dot
    write_folder(tmp_path / "in", tensors, {})
    octofold.quantize_checkpoint(
        tmp_path / "in", tmp_path / "out", family="torchao", format=granularity
    )
    file = tmp_path / "out" / "model.safetensors"
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    read, left = unflatten_tensor_state_dict(load_file(file), metadata)
    assert left == {}
    assert set(read) == set(tensors)
    ours = octofold.load_checkpoint(file)
    for name, tensor in read.items():
        if not isinstance(tensor, Float8Tensor):
            assert torch.equal(tensor, ours[name])
            continue
        assert tensor.shape == tensors[name].shape
        assert tensor.dtype == torch.bfloat16
        expected = ours[name].dequantize("bfloat16")
        assert torch.equal(tensor.dequantize(), expected)
        # It multiplies, too.
        x = torch.ones(2, tensor.shape[1], dtype=torch.bfloat16)
        y = torch.nn.functional.linear(x, tensor)
        torch.testing.assert_close(y, torch.nn.functional.linear(x, expected))
    assert isinstance(read["blocks.0.up.weight"], Float8Tensor)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_we_read_what_it_wrote(tmp_path, granularity):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 384), torch.nn.Linear(384, 128)).bfloat16()
    if granularity == "128x128":
        for layer in model:
            weight = Float8Tensor.from_hp(layer.weight.data, granularity=GRANULARITIES[granularity])
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    else:
        quantize_(model, Float8WeightOnlyConfig(granularity=GRANULARITIES[granularity]))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors, metadata = flatten_tensor_state_dict(state)
    file = tmp_path / "model.safetensors"
    save_file(tensors, file, metadata=metadata)
    checkpoint = octofold.load_checkpoint(file)
    assert checkpoint.family == "torchao"
    assert set(checkpoint) == set(state)
    for name in ("0.weight", "1.weight"):
        assert checkpoint[name].granularity == granularity
        assert torch.equal(checkpoint[name].dequantize("bfloat16"), state[name].dequantize())
        assert torch.equal(checkpoint[name].data, state[name].qdata)
    assert torch.equal(checkpoint["1.bias"], state["1.bias"])


def test_the_way_there_and_back_is_exact(tmp_path, rng):
    write_folder(tmp_path / "in", wide_tensors(rng), {})
    octofold.quantize_checkpoint(tmp_path / "in", tmp_path / "a", family="compressed-tensors")
    octofold.convert_checkpoint(tmp_path / "a", tmp_path / "b", "torchao")
    report = octofold.convert_checkpoint(tmp_path / "b", tmp_path / "c", "compressed-tensors")
    assert report.requantized == ()
    assert report.dropped == ()
    before, after = (octofold.load_checkpoint(tmp_path / name, "numpy") for name in "ac")
    for name, value in before.items():
        if isinstance(value, octofold.ScaledTensor):
            assert value.equals(after[name])
        else:
            assert value.tobytes() == after[name].tobytes()
    assert after["blocks.0.norm.weight"].dtype == BF16
    with safe_open(tmp_path / "c" / "model.safetensors", "pt") as opened:
        assert "tensor_names" not in (opened.metadata() or {})


def test_experts_that_transformers_does_not_load_are_refused(tmp_path, rng, log):
    tensors = wide_tensors(rng)
    tensors["layers.0.mlp.experts.3.up_proj.weight"] = tensors["blocks.0.up.weight"]
    write_folder(tmp_path / "in", tensors, {})
    with pytest.raises(octofold.InvalidArgumentError, match=r"transformers.*skip '\*\.experts"):
        octofold.quantize_checkpoint(tmp_path / "in", tmp_path / "out", family="torchao")
    assert not (tmp_path / "out").exists()
    report = octofold.quantize_checkpoint(
        tmp_path / "in", tmp_path / "out", skip="*.experts.*", family="torchao"
    )
    assert len(report.quantized) == 2
    # A conversion, which has other readers too, says it.
    octofold.quantize_checkpoint(tmp_path / "in", tmp_path / "a", family="compressed-tensors")
    octofold.convert_checkpoint(tmp_path / "a", tmp_path / "b", "torchao")
    (said,) = [text for text in log if "weights of experts" in text]
    assert "1 weights of experts" in said
    assert "transformers" in said
