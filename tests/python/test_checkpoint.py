"""FP8 checkpoints: what we write the safetensors package reads, and the other way round."""

import errno
import json
import os
import pickle
import struct

import numpy as np
import octofold
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.python import reference

BF16 = reference.DTYPES["bfloat16"]


@pytest.fixture
def tensors(rng):
    def normal(*shape):
        return rng.normal(0, 0.02, shape)

    return {
        "layer.0.proj.weight": normal(200, 300).astype(np.float32),
        "layer.1.proj.weight": normal(128, 64).astype(np.float16),
        "layer.2.proj.weight": normal(130, 257).astype(BF16),
        "layer.0.proj.bias": normal(200).astype(np.float32),
        "layer.0.norm.weight": normal(300).astype(np.float32),
        "embed_tokens.weight": normal(50, 300).astype(np.float32),
        "positions": np.arange(12, dtype=np.int64),
    }


@pytest.fixture
def checkpoint(tmp_path, tensors):
    path = tmp_path / "in.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def read(path):
    """Every tensor as (dtype, shape, bytes), without a framework that knows FP8, by the format's
    description: length of the header, header, data."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length :]
    return {
        name: (entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("rule", reference.RULES)
def test_quantizes_linear_weights(checkpoint, tensors, tmp_path, rule, power_of_two):
    output = tmp_path / "out.safetensors"
    format = octofold.Format("e4m3", "128x128", rule=rule, power_of_two=power_of_two)
    report = octofold.quantize_checkpoint(checkpoint, output, format)
    linear = {name for name in tensors if "proj.weight" in name}
    assert set(report.quantized) == linear
    assert set(report.copied) == set(tensors) - linear
    assert report.files == (output,)
    assert report.input_bytes == sum(tensor.nbytes for tensor in tensors.values())

    with safe_open(output, "np") as file:
        assert file.metadata() == {"format": "pt"}
    written = read(output)
    assert report.output_bytes == sum(len(data) for _, _, data in written.values())
    assert set(written) == set(tensors) | {f"{name}_scale_inv" for name in linear}
    for name in linear:
        options = ("e4m3", "128x128", power_of_two, "saturate", rule, False)
        codes, scale = reference.quantize(tensors[name], *options)
        assert written[name] == ("F8_E4M3", codes.shape, codes.tobytes())
        assert written[f"{name}_scale_inv"] == ("F32", scale.shape, scale.tobytes())
    before = read(checkpoint)
    for name in report.copied:
        assert written[name] == before[name]


def test_a_string_is_one_pattern(checkpoint, tmp_path):
    report = octofold.quantize_checkpoint(
        checkpoint, tmp_path / "out.safetensors", skip="layer.0*", use_default_skips=False
    )
    assert "layer.1.proj.weight" in report.quantized
    assert "layer.0.proj.weight" in report.copied


@pytest.mark.parametrize("skip", [b"layer*", 7, None, ["a", 7], {"a"}, [b"a"]], ids=repr)
def test_what_is_no_pattern_is_refused(checkpoint, tmp_path, skip):
    with pytest.raises(octofold.InvalidArgumentError, match="'skip': expected a pattern or"):
        octofold.quantize_checkpoint(checkpoint, tmp_path / "out.safetensors", skip=skip)
    assert not (tmp_path / "out.safetensors").exists()


def test_errors_of_the_system_are_the_builtin_ones_too(checkpoint, tmp_path):
    def error_of(input, output=tmp_path / "out.safetensors"):
        with pytest.raises(octofold.IoError) as caught:
            octofold.quantize_checkpoint(input, output)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), copy.errno) == (type(caught.value), caught.value.errno)
        return caught.value

    missing = error_of(tmp_path / "missing.safetensors")
    assert isinstance(missing, FileNotFoundError)
    assert missing.errno == errno.ENOENT
    assert str(missing).startswith("cannot open '")
    (tmp_path / "folder.safetensors").mkdir()
    assert isinstance(error_of(tmp_path / "folder.safetensors"), IsADirectoryError)
    (tmp_path / "file").touch()
    below = error_of(checkpoint, tmp_path / "file" / "out.safetensors")
    assert isinstance(below, NotADirectoryError)
    os.mkfifo(tmp_path / "pipe.safetensors")
    pipe = error_of(tmp_path / "pipe.safetensors")
    assert type(pipe) is octofold.IoError
    assert pipe.errno is None


def test_progress(checkpoint, tmp_path):
    calls = []
    octofold.quantize_checkpoint(
        checkpoint,
        tmp_path / "out.safetensors",
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] > 0


class Stop(BaseException):
    """Like KeyboardInterrupt: no Exception."""


@pytest.mark.parametrize("error", [Stop("now"), KeyError("key"), KeyboardInterrupt()])
def test_progress_that_raises_leaves_nothing(checkpoint, tmp_path, error):
    def stop(done, total):
        raise error

    with pytest.raises(type(error)) as caught:
        octofold.quantize_checkpoint(checkpoint, tmp_path / "out.safetensors", progress=stop)
    assert caught.value is error
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_refusals(checkpoint, tmp_path):
    def refuses(error, message, input=checkpoint, output=tmp_path / "out.safetensors", **options):
        with pytest.raises(error, match=message):
            octofold.quantize_checkpoint(input, output, **options)

    refuses(octofold.InvalidArgumentError, "'format': expected .*got 'mine'", format="mine")
    refuses(octofold.InvalidArgumentError, "'format.dtype': expected e4m3", format="e5m2 128x128")
    assert not (tmp_path / "out.safetensors").exists()
