"""load_checkpoint(): every family's weights as ScaledTensors, in NumPy and in torch."""

import ml_dtypes
import numpy as np
import octofold
import pytest
import torch
from safetensors.torch import save_file as save_torch_file

from tests.python.checkpoints.checkpoint_support import (
    BF16,
    E4M3,
    PAIRS,
    save_file,
    wide_tensors,
    write_folder,
    write_wide,
)
from tests.python.judge import relative_error
from tests.python.own_process import python

WEIGHTS = {"blocks.0.up.weight", "blocks.0.down.weight"}


@pytest.mark.parametrize(("family", "granularity"), [p for p in PAIRS if p[0] != "modelopt"])
def test_has_the_values_of_a_cast_in_memory(tmp_path, rng, family, granularity):
    tensors = wide_tensors(rng)
    write_folder(tmp_path / "in", tensors, {})
    octofold.quantize_checkpoint(
        tmp_path / "in", tmp_path / "out", family=family, format=granularity
    )
    checkpoint = octofold.load_checkpoint(tmp_path / "out", framework="numpy")
    assert checkpoint.family == family
    assert set(checkpoint) == set(tensors) == set(checkpoint.keys())
    assert len(checkpoint) == len(tensors)
    for name, tensor in tensors.items():
        value = checkpoint[name]
        if name not in WEIGHTS:
            assert value.dtype == tensor.dtype
            np.testing.assert_array_equal(value, tensor)
            continue
        expected = octofold.quantize(tensor, granularity)
        assert value.granularity == granularity
        assert value.scale.shape == octofold.ops.scale_shape(granularity, *tensor.shape)
        assert value.scale.dtype == np.float32
        assert value.equals(expected)


@pytest.mark.parametrize(
    ("family", "granularity"), [("deepseek-v3", "128x128"), ("comfyui", "tensor")]
)
def test_weights_of_every_size_become_fp8_and_the_rest_is_copied(
    tmp_path, rng, family, granularity
):
    """Also weights that are worked on in several tiles of rows or columns; FP64 is cast as the FP32
    next to it."""
    weights = {
        "layers.0.q_proj.weight": rng.normal(size=(300, 200)).astype(np.float32),
        "layers.0.tiny.weight": rng.normal(size=(1, 1)).astype(np.float32),
        "layers.1.up.weight": rng.normal(size=(128, 256)).astype(np.float16),
        "layers.1.down.weight": rng.normal(size=(129, 127)).astype(BF16),
        "layers.1.double.weight": rng.normal(size=(130, 140)),
        "layers.2.wide.weight": rng.normal(size=(130, 65700)).astype(np.float32),
        "layers.2.tall.weight": rng.normal(size=(8450, 1030)).astype(np.float32),
    }
    others = {
        "layers.0.q_proj.bias": np.ones(300, np.float32),
        "layers.0.conv.weight": np.ones((4, 2, 3), np.float32),
        "layers.0.mlp.gate.weight": np.ones((8, 16), np.float32),
        "layers.0.weight_matrix": np.ones((16, 8), np.float32),
        "empty.weight": np.ones((0, 128), np.float32),
        "scalar": np.array(7, np.int64),
    }
    for name in ("wide", "tall"):
        weights[f"layers.2.{name}.weight"][-1, -1] = 1000  # in the last tile
    save_file(weights | others, tmp_path / "in.safetensors")
    report = octofold.quantize_checkpoint(
        tmp_path / "in.safetensors", tmp_path / "out.safetensors", family=family, format=granularity
    )
    assert set(report.quantized) == set(weights)
    assert set(report.copied) == set(others)
    checkpoint = octofold.load_checkpoint(tmp_path / "out.safetensors", framework="numpy")
    for name, weight in weights.items():
        wide = weight.astype(np.float32) if weight.dtype == np.float64 else weight
        assert checkpoint[name].equals(octofold.quantize(wide, granularity)), name
    for name, tensor in others.items():
        assert (checkpoint[name].dtype, checkpoint[name].shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(checkpoint[name], tensor)


def test_every_dtype_comes_as_it_is(tmp_path):
    tensors = {
        str(dtype): torch.arange(6).to(dtype).reshape(2, 3)
        for dtype in (
            *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32),
            *(torch.uint32, torch.int64, torch.uint64, torch.float16, torch.bfloat16),
            *(torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
            torch.float8_e8m0fnu,
        )
    }
    tensors |= {"scalar": torch.tensor(7.0), "empty": torch.empty(0, 3, dtype=torch.bfloat16)}
    save_torch_file(tensors, tmp_path / "all.safetensors")
    in_torch = octofold.load_checkpoint(tmp_path / "all.safetensors")
    in_numpy = octofold.load_checkpoint(tmp_path / "all.safetensors", framework="numpy")
    for name, tensor in tensors.items():
        value, array = in_torch[name], in_numpy[name]
        if isinstance(value, octofold.ScaledTensor):  # codes that no scale goes with
            np.testing.assert_array_equal(value.scale, [1])
            value, array = value.data, array.data
        assert (value.dtype, value.shape) == (tensor.dtype, tensor.shape)
        assert tuple(array.shape) == tuple(tensor.shape)
        raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        assert array.tobytes() == raw
        assert value.reshape(-1).view(torch.uint8).numpy().tobytes() == raw


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e8m0fnu])
def test_scales_of_other_dtypes_become_float32_exactly(tmp_path, rng, dtype):
    codes = rng.normal(0, 50, (256, 384)).astype(E4M3)
    scales = np.exp2(rng.integers(-9, 9, (2, 3))).astype(dtype)
    if dtype is ml_dtypes.float8_e8m0fnu:
        scales.view(np.uint8)[0, :2] = 0x00, 0xFF  # 2^-127, which is subnormal in FP32, and NaN
        torch_scales = torch.from_numpy(scales.view(np.uint8)).view(torch.float8_e8m0fnu)
    else:
        torch_scales = torch.from_numpy(scales.view(np.uint16)).view(
            torch.bfloat16 if dtype is ml_dtypes.bfloat16 else torch.float16
        )
    torch_codes = torch.from_numpy(codes.view(np.uint8)).view(torch.float8_e4m3fn)
    file = tmp_path / "x.safetensors"
    save_torch_file({"a.weight": torch_codes, "a.weight_scale_inv": torch_scales}, file)
    value = octofold.load_checkpoint(file, framework="numpy")["a.weight"]
    assert value.scale.dtype == np.float32
    np.testing.assert_array_equal(value.scale, scales.astype(np.float32))
    assert value.data.tobytes() == codes.tobytes()


def write_stack(folder, rng):
    stack = rng.normal(0, 1, (3, 200, 130)).astype(np.float32)
    tensors = {"mlp.experts.gate_up_proj": stack, "norm.weight": np.ones(7, np.float32)}
    write_folder(folder, tensors, {})
    return stack


def assert_stack(value, stack, granularity):
    assert value.data.shape == stack.shape
    assert value.scale.shape == octofold.ops.scale_shape(granularity, *stack.shape, matrices=3)
    for codes, scale, matrix in zip(value.data, value.scale, stack, strict=True):
        expected = octofold.quantize(matrix, granularity)
        assert codes.tobytes() == expected.data.tobytes()
        np.testing.assert_array_equal(scale.reshape(expected.scale.shape), expected.scale)


def test_stacks_have_stacked_scales(tmp_path, rng):
    stack = write_stack(tmp_path / "in", rng)
    report = octofold.quantize_checkpoint(
        tmp_path / "in", tmp_path / "out", family="finegrained-fp8"
    )
    assert report.quantized == ("mlp.experts.gate_up_proj",)
    value = octofold.load_checkpoint(tmp_path / "out", framework="numpy")[report.quantized[0]]
    assert_stack(value, stack, "128x128")


def test_scales_of_experts_are_read_and_become_blocks(tmp_path, rng):
    """One for each expert is what others write, and what nobody loads from our files."""
    stack = write_stack(tmp_path / "in", rng)
    with pytest.raises(octofold.InvalidArgumentError, match="gate_up_proj': 128x1"):
        octofold.quantize_checkpoint(
            tmp_path / "in", tmp_path / "out", family="finegrained-fp8", format="tensor"
        )
    assert not (tmp_path / "out").exists()

    name = "mlp.experts.gate_up_proj"
    casts = [octofold.quantize(matrix, "tensor") for matrix in stack]
    codes = np.stack([cast.data.view(np.uint8) for cast in casts])
    tensors = {
        name: torch.from_numpy(codes).view(torch.float8_e4m3fn),
        f"{name}_scale_inv": torch.tensor([cast.scale.item() for cast in casts]),
    }
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": None}
    write_folder(tmp_path / "experts", {}, {"quantization_config": config})
    save_torch_file(tensors, tmp_path / "experts" / "model.safetensors")
    before = octofold.load_checkpoint(tmp_path / "experts", framework="numpy")[name]
    assert_stack(before, stack, "tensor")

    octofold.convert_checkpoint(
        tmp_path / "experts", tmp_path / "blocks", family="finegrained-fp8", granularity="128x128"
    )
    after = octofold.load_checkpoint(tmp_path / "blocks", framework="numpy")[name]
    assert after.data.tobytes() == before.data.tobytes()
    assert after.scale.shape == (3, 2, 2)
    np.testing.assert_array_equal(
        after.scale, np.broadcast_to(before.scale[:, None, None], (3, 2, 2))
    )


def test_static_scales_of_inputs(tmp_path, rng):
    codes = torch.from_numpy(rng.normal(0, 9, (8, 16)).astype(np.float32)).to(torch.float8_e4m3fn)
    tensors = {
        "a.weight": codes,
        "a.weight_scale": torch.tensor(0.5),
        "a.input_scale": torch.tensor(0.25, dtype=torch.bfloat16),
        "b.weight": codes.clone(),
        "b.weight_scale": torch.tensor([2.0]),
        "norm.weight": torch.ones(3),
    }
    save_torch_file(tensors, tmp_path / "x.safetensors")
    checkpoint = octofold.load_checkpoint(tmp_path / "x.safetensors")
    assert checkpoint.input_scale("a.weight").tolist() == [0.25]
    assert checkpoint.input_scale("a.weight").dtype == torch.float32
    assert checkpoint.input_scale("b.weight") is None
    assert checkpoint.input_scale("norm.weight") is None
    assert checkpoint["b.weight"].scale.tolist() == [2.0]
    with pytest.raises(KeyError):
        checkpoint.input_scale("a.input_scale")
    with pytest.raises(KeyError):
        checkpoint["a.weight_scale"]
    assert "a.weight_scale" not in checkpoint
    assert checkpoint.get("c.weight") is None


def test_reads_when_asked_and_only_then(tmp_path, rng):
    write_wide(tmp_path / "in", rng)
    octofold.quantize_checkpoint(tmp_path / "in", tmp_path / "out")
    checkpoint = octofold.load_checkpoint(tmp_path / "out", framework="numpy")
    name = "blocks.0.up.weight"
    first = checkpoint[name]
    first.data.view(np.uint8)[...] = 0  # memory of its own, which may be written
    assert relative_error(checkpoint[name].dequantize(), first.dequantize() + 1) > 0
    (file,) = checkpoint.contents.files
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    last = max(
        checkpoint.contents.others
        + tuple(w.codes for w in checkpoint.contents.weights)
        + tuple(w.scale for w in checkpoint.contents.weights),
        key=lambda t: t.offset,
    )
    owner = last.name.removesuffix("_scale_inv")
    with pytest.raises(octofold.BadFormatError, match="the file has changed"):
        checkpoint[owner]
    file.unlink()
    with pytest.raises(FileNotFoundError, match="cannot read") as caught:
        checkpoint[name]
    assert isinstance(caught.value, octofold.IoError)


def test_arguments(tmp_path):
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "x.safetensors")
    with pytest.raises(octofold.InvalidArgumentError, match="'framework': expected 'torch' or"):
        octofold.load_checkpoint(tmp_path / "x.safetensors", framework="jax")
    with pytest.raises(octofold.InvalidArgumentError, match="'device': expected None or 'cpu'"):
        octofold.load_checkpoint(tmp_path / "x.safetensors", framework="numpy", device="cuda")
    with pytest.raises(FileNotFoundError):
        octofold.load_checkpoint(tmp_path / "y.safetensors")
    assert "0 weights in FP8, 1 other tensors" in repr(
        octofold.load_checkpoint(tmp_path / "x.safetensors")
    )


def test_numpy_needs_no_torch(tmp_path, rng):
    write_wide(tmp_path / "in", rng)
    octofold.quantize_checkpoint(tmp_path / "in", tmp_path / "out")
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"  # as if it were not installed
        "import octofold\n"
        f"c = octofold.load_checkpoint({str(tmp_path / 'out')!r}, framework='numpy')\n"
        "[c[name] for name in c]"
    )
    python(code)
