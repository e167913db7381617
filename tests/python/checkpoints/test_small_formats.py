"""Weights in MXFP4, NVFP4 and MXFP8 become FP8: held against their owners' decoders, and refused
where they lie."""

import ml_dtypes
import numpy as np
import octofold
import pytest
import torch

from tests.python import reference
from tests.python.checkpoints.checkpoint_support import folder_of
from tests.python.checkpoints.test_bad_checkpoints import CT, refused

UP, GATE = "a.up.weight", "model.layers.0.mlp.experts.gate_up_proj"
PACKED, ROW, GLOBAL, TWO = (
    f"{UP}_{part}" for part in ("packed", "scale", "global_scale", "scale_2")
)
GPT_OSS = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
BAD, UNSUPPORTED = octofold.BadFormatError, octofold.UnsupportedError
convert = octofold.convert_checkpoint


def ct(name, bits, group, **changes):
    """The config that compressed-tensors writes for weights in one of its small formats."""
    strategy = "tensor_group" if group == 16 else "group"
    both = {"num_bits": bits, "type": "float", "strategy": strategy, "group_size": group}
    weights = both | {"symmetric": True, "dynamic": False, "scale_dtype": "torch.uint8"} | changes
    inputs = both | {"dynamic": "local" if group == 16 else True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": name}
    return CT | {"format": name, "config_groups": {"group_0": group}}


def modelopt(algorithm, bits, group):
    both = {"dynamic": False, "num_bits": bits, "type": "float", "group_size": group}
    groups = {"group_0": {"input_activations": both, "weights": both, "targets": ["Linear"]}}
    return {"quant_method": "modelopt", "quant_algo": algorithm, "config_groups": groups}


NVFP4 = ct("nvfp4-pack-quantized", 4, 16)
MXFP4 = ct("mxfp4-pack-quantized", 4, 32)
MXFP8 = ct("mxfp8-quantized", 8, 32)


def random_bytes(*shape, low=0, high=256):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)


def random_fp8(*shape):
    return random_bytes(*shape, high=127).view(torch.float8_e4m3fn)


def decoded(codes, scales, second=1.0):
    """By ml_dtypes in FP64: of bytes [..., K/2] or e4m3 [..., K], and scales as bytes or e4m3."""
    kind = ml_dtypes.float8_e8m0fnu if scales.dtype == torch.uint8 else reference.DTYPES["e4m3"]
    scale = scales.view(torch.uint8).numpy().view(kind).astype(np.float64)
    data = codes.view(torch.uint8).numpy()
    if codes.dtype == torch.uint8:
        data = np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], -1)
        values = data.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    else:
        values = data.view(reference.DTYPES["e4m3"]).astype(np.float64)
    return values * scale.repeat(values.shape[-1] // scale.shape[-1], -1) * np.float64(second)


def converted(tmp_path, tensors, said, family="compressed-tensors", expected=None, **options):
    """The report, and the weights in the result. Of each weight in `expected` the report says what
    happened to its values, and nothing where nothing did."""
    report = convert(folder_of(tmp_path / "in", tensors, said), tmp_path / "out", family, **options)
    made = octofold.load_checkpoint(tmp_path / "out", "numpy")
    for name, wanted in (expected or {}).items():
        data, scale = (
            part.reshape(-1, *part.shape[-2:]) for part in (made[name].data, made[name].scale)
        )
        if made[name].granularity in ("tensor", "channel"):
            scale = made[name].scale[None]
        parts = zip(data, scale, strict=True)
        values = [reference.dequantize(*part, made[name].granularity) for part in parts]
        values = np.stack(values).reshape(wanted.shape)
        other = values != wanted
        assert (name in report.requantized) == (name in report.changes) == bool(other.any())
        if other.any():
            said, error = (
                report.changes[name],
                np.abs(values - wanted)[other] / np.abs(wanted)[other],
            )
            assert (said.changed, said.values) == (other.sum(), wanted.size)
            assert said.largest_error == pytest.approx(error.max(), rel=1e-6)
    return report, made


def test_every_code_and_scale(tmp_path):
    codes = torch.arange(0, 256, 34, dtype=torch.uint8) + 16  # low and high halves in order
    powers = torch.arange(252, dtype=torch.uint8)[:, None]  # larger ones make infinity of a 4
    tensors = {PACKED: codes.repeat(252, 2), ROW: powers}
    expected = {UP: decoded(*tensors.values())}
    assert len(np.unique(expected[UP][130])) == 15  # both zeros are one number
    report, _ = converted(
        tmp_path / "a", tensors, MXFP4, "modelopt", expected, granularity="channel"
    )
    assert report.changes == {}
    e4m3 = torch.arange(127, dtype=torch.uint8)[:, None].view(torch.float8_e4m3fn)
    tensors = {UP: codes.repeat(127, 1), ROW: e4m3, TWO: torch.tensor(0.003)}
    expected = {UP: decoded(tensors[UP], e4m3, np.float32(0.003))}
    said = modelopt("NVFP4", 4, 16)
    report, _ = converted(tmp_path / "b", tensors, said, expected=expected, granularity="channel")
    assert 0 < report.changes[UP].changed < 127 * 8  # 1.5 times a fraction that is no power of two
    every = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
    every = torch.where(every & 127 == 127, 0, every).view(torch.float8_e4m3fn)
    tensors = {UP: every.repeat(30, 1), ROW: torch.arange(240, dtype=torch.uint8)[:, None]}
    expected = {UP: decoded(*tensors.values())}
    for said in (MXFP8, modelopt("MXFP8", 8, 32)):
        path = tmp_path / said["quant_method"]
        converted(path, tensors, said, "torchao", expected, granularity="channel")


def test_as_compressed_tensors_has_them(tmp_path):
    schemes = pytest.importorskip("compressed_tensors.quantization.quant_scheme")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    torch.manual_seed(3)
    weight = torch.randn(256, 384) * 0.05
    for name, said, amax in (("NVFP4", NVFP4, 6), ("MXFP4", MXFP4, 6), ("MXFP8", MXFP8, 448)):
        scheme = schemes.QuantizationScheme(targets=["Linear"], **schemes.PRESET_SCHEMES[name])
        compressor = compressors.BaseCompressor.get_value_from_registry(said["format"])
        largest = weight.view(256, -1, scheme.weights.group_size).abs().amax(-1)
        own, scale = {"weight": weight}, 2 ** (largest / amax).log2().ceil()
        if name == "NVFP4":
            own["weight_global_scale"] = torch.tensor([4096.0])
            scale = (largest / amax * 4096).to(torch.float8_e4m3fn).float()
        packed = compressor.compress(own | {"weight_scale": scale}, scheme)
        owners = compressor.decompress(packed, scheme)["weight"].double().numpy()
        tensors = {f"a.up.{part}": value for part, value in packed.items()}
        codes = tensors.get(PACKED, tensors.get(UP))
        expected = {UP: decoded(codes, tensors[ROW], 1 / 4096 if name == "NVFP4" else 1)}
        assert np.array_equal(owners, expected[UP])
        report, _ = converted(tmp_path / name, tensors, said, "deepseek-v3", expected)
        assert (report.changes == {}) == (name != "NVFP4" and report.requantized == ())
        inspected = octofold.inspect_checkpoint(tmp_path / name / "in").weights[0]
        assert (inspected.format, inspected.shape) == (name.lower(), (256, 384))
        assert (inspected.second_scale is not None) == (name == "NVFP4")


def test_gpt_oss(tmp_path, log):
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    down = GATE.replace("gate_up", "down")
    tensors = {
        f"{GATE}_blocks": random_bytes(3, 256, 5, 16),
        f"{GATE}_scales": random_bytes(3, 256, 5, low=108, high=123),
        f"{GATE}_bias": torch.ones(3, 256, dtype=torch.bfloat16),
        f"{down}_blocks": random_bytes(3, 160, 4, 16),
        f"{down}_scales": random_bytes(3, 160, 4, low=100, high=124),
        f"{down}_bias": torch.ones(3, 160, dtype=torch.bfloat16),
    }
    expected = {
        name: mxfp4.convert_moe_packed_tensors(
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=torch.float32
        ).mT.double().numpy()
        for name in (GATE, down)
    }  # fmt: skip
    report, made = converted(tmp_path, tensors, GPT_OSS, "finegrained-fp8", expected)
    assert set(report.changes) == {down}  # 15 exponents fit, 24 do not
    assert any(GATE in text and "no other library" in text and "biases" in text for text in log)
    assert any("'" + down in text and "values changed" in text for text in log)
    assert set(made) == {*expected, f"{GATE}_bias", f"{down}_bias"}
    words = ["fused experts"]
    refused(tmp_path, words, convert, tmp_path / "in", tmp_path / "x", "torchao")
    found = octofold.load_checkpoint  # refuses, and says what to do
    refused(tmp_path, ["mxfp4", "octofold convert"], found, tmp_path / "in", error=UNSUPPORTED)
    (found,) = (w for w in octofold.inspect_checkpoint(tmp_path / "in").weights if w.name == GATE)
    assert (found.format, found.granularity, found.scale.shape) == ("mxfp4", "1x32", (3, 256, 5))


FINE = random_bytes(256, 8, low=108, high=123)
ROWS = FINE - (torch.arange(256) % 2 * 40).to(torch.uint8)[:, None]
HALVES = FINE - (torch.arange(8) // 4 * 40).to(torch.uint8)
WILD = random_bytes(256, 8, low=60, high=124)


@pytest.mark.parametrize(
    ("family", "scales", "chosen"),
    [
        ("compressed-tensors", (FINE, ROWS, HALVES), ("128x128", "channel", "128x128")),
        ("compressed-tensors", (ROWS - HALVES + FINE, WILD), ("1x128", "1x128")),
        ("torchao", (FINE, ROWS), ("128x128", "channel")),
        ("torchao", (FINE, HALVES), ("128x128", "128x128")),
        ("modelopt", (ROWS, HALVES, HALVES, HALVES), ("128x128",) * 4),
        ("deepseek-v3", (FINE, ROWS), ("128x128", "128x128")),
    ],
)
def test_the_coarsest_that_is_exact_or_changes_least(tmp_path, family, scales, chosen):
    tensors, expected = {}, {}
    for name, scale in zip("abcd", scales, strict=False):
        codes = random_bytes(256, 128)
        tensors |= {f"{name}.weight_packed": codes, f"{name}.weight_scale": scale}
        expected[f"{name}.weight"] = decoded(codes, scale)
    _, made = converted(tmp_path, tensors, MXFP4, family, expected)
    assert tuple(made[name].granularity for name in expected) == chosen


def test_beside_fp8_and_without_a_config(tmp_path):
    fp8 = {"targets": ["re:b.*"], "weights": CT["config_groups"]["group_0"]["weights"]}
    said = NVFP4 | {"format": "mixed-precision"}
    said["config_groups"] = NVFP4["config_groups"] | {
        "group_1": fp8 | {"format": "float-quantized"}
    }
    codes, scale = random_bytes(256, 128), random_bytes(256, 16, high=127)
    more = {"b.weight": random_fp8(256, 256), "b.weight_scale": torch.ones(256, 1)}
    more |= {"a.up.input_global_scale": torch.ones(1), "b.bias": torch.ones(256)}
    tensors = {PACKED: codes, ROW: scale.view(torch.float8_e4m3fn), GLOBAL: torch.tensor([700.0])}
    expected = {UP: decoded(codes, tensors[ROW], np.float32(1) / np.float32(700))}
    report, made = converted(tmp_path, tensors | more, said, expected=expected)
    assert report.dropped == ("a.up.input_global_scale",)
    assert made["b.weight"].data.tobytes() == more["b.weight"].view(torch.uint8).numpy().tobytes()
    file = tmp_path / "x.safetensors"
    file.write_bytes((tmp_path / "in" / "model.safetensors").read_bytes())
    convert(file, tmp_path / "y.safetensors", "compressed-tensors")
    again = octofold.load_checkpoint(tmp_path / "y.safetensors", "numpy")
    assert again[UP].equals(made[UP])


def changed(tensors, **others):
    """A copy in which some tensors are others, or None: not there."""
    both = tensors | {
        {"packed": PACKED, "row": ROW, "second": GLOBAL}[k]: v for k, v in others.items()
    }
    return {name: tensor for name, tensor in both.items() if tensor is not None}


E4M3, ONE = random_fp8(64, 8), torch.ones(1)
NV = {PACKED: random_bytes(64, 64), ROW: E4M3, GLOBAL: torch.tensor([8.0])}
MX = {PACKED: random_bytes(64, 64), ROW: random_bytes(64, 4, low=110, high=120)}
OSS = {
    f"{GATE}_blocks": random_bytes(2, 64, 4, 16),
    f"{GATE}_scales": random_bytes(2, 64, 4, high=99),
}
NAN = torch.where(torch.arange(64)[:, None] == 40, 255, MX[ROW]).to(torch.uint8)
MO = {UP: NV[PACKED], ROW: E4M3, TWO: torch.tensor(0.5)}

LIES = {
    "no second scale": (changed(NV, second=None), NVFP4, [f"'{PACKED}'", f"'{GLOBAL}'", "none"]),
    "two second scales": (changed(NV, second=torch.ones(2)), NVFP4, [f"'{GLOBAL}'", "[2]"]),
    "a second scale in BF16": (changed(NV, second=ONE.bfloat16()), NVFP4, ["F32", "BF16"]),
    "a second scale of MX": (MX | {GLOBAL: ONE}, MXFP4, ["no further scales", GLOBAL]),
    "no second scale of ModelOpt's": (
        {UP: MO[UP], ROW: E4M3}, modelopt("NVFP4", 4, 16), [f"'{UP}'", f"'{TWO}'"],
    ),
    "no scales": (changed(MX, row=None), MXFP4, [f"'{PACKED}'", f"scales in '{ROW}'"]),
    "scales without codes": (changed(MX, packed=None) | {"b.weight_packed": MX[PACKED],
        "b.weight_scale": MX[ROW]}, MXFP4, [f"'{ROW}'", f"'{UP}'"]),
    "blocks without scales": (
        dict([*OSS.items()][:1]), GPT_OSS, [f"'{GATE}_blocks'", f"'{GATE}_scales'"],
    ),
    "scales without blocks": (
        OSS | {"experts.down_proj_scales": MX[ROW]}, GPT_OSS, ["'experts.down_proj_s", "none"],
    ),
    "an odd block": (
        OSS | {f"{GATE}_blocks": random_bytes(2, 64, 4, 15)}, GPT_OSS, ["K/32, 16]", "[2,64,4,15]"],
    ),
    "blocks and scales that do not fit": (
        OSS | {f"{GATE}_scales": random_bytes(2, 64, 5)}, GPT_OSS, ["[2,64,4]", "[2,64,5]"],
    ),
    "scales that do not fit": (changed(MX, row=random_bytes(64, 3)), MXFP4, ["[64,4]", "[64,3]"]),
    "K in no whole blocks": (changed(MX, packed=random_bytes(64, 60)), MXFP4, ["of 32", "[64,60]"]),
    "an odd number": (changed(NV, packed=random_bytes(64, 63)), NVFP4, ["of 16", "[64,63]"]),
    "no values": (dict.fromkeys((PACKED, ROW), random_bytes(64, 0)), MXFP4, ["[64,0]"]),
    "MXFP4 under NVFP4's name": (MX, NVFP4, [f"'{PACKED}'", "in nvfp4", "got mxfp4"]),
    "NVFP4 under MXFP4's name": (NV, MXFP4, [f"'{PACKED}'", "in mxfp4", "got nvfp4"]),
    "NVFP4 under FP8's name": (NV, CT, [f"'{PACKED}'", "in fp8", "got nvfp4"]),
    "FP8 under NVFP4's name": (
        {UP: random_fp8(64, 64), ROW: torch.tensor(1.0)}, modelopt("NVFP4", 4, 16), ["got fp8"],
    ),
    "an AWQ's scale beside": (MO | {"a.up.pre_quant_scale": torch.rand(128)},
        modelopt("NVFP4", 4, 16), ["no further scales", "pre_quant_scale"]),
}  # fmt: skip
HIDDEN = {  # in the data, which inspect_checkpoint() does not read
    "a scale of NaN": (changed(MX, row=NAN), MXFP4, [f"'{ROW}'", "NaN or infinity"]),
    "a scale of NaN in NVFP4": (
        changed(NV, row=torch.full((64, 8), 127).to(torch.uint8).view(torch.float8_e4m3fn)),
        NVFP4, [f"'{ROW}'", "NaN"],
    ),
    "a second scale of 0": (changed(NV, second=torch.zeros(1)), NVFP4, [f"'{GLOBAL}'", "got 0"]),
    "a second scale of NaN": (changed(NV, second=torch.tensor([np.nan])), NVFP4, [GLOBAL, "nan"]),
}  # fmt: skip


@pytest.mark.parametrize("lie", [*LIES, *HIDDEN])
def test_lies_are_refused(tmp_path, lie):
    tensors, said, words = (LIES | HIDDEN)[lie]
    folder = folder_of(tmp_path / "in", tensors, said)
    words = [*words, "model.safetensors"]
    if lie in LIES:
        refused(tmp_path, words, octofold.inspect_checkpoint, folder, error=BAD)
    family = "finegrained-fp8" if said is GPT_OSS else "torchao"
    refused(tmp_path, words, convert, folder, tmp_path / "out", family, error=BAD)


@pytest.mark.parametrize(
    ("key", "tensors", "said"),
    [
        ("weights.num_bits", NV, ct("nvfp4-pack-quantized", 4, 16, num_bits=8)),
        ("weights.group_size", NV, ct("nvfp4-pack-quantized", 4, 16, group_size=32)),
        ("weights.symmetric", MX, ct("mxfp4-pack-quantized", 4, 32, symmetric=False)),
        ("format", MX, ct("mxfp6-pack-quantized", 6, 32)),
        ("swizzle", OSS, GPT_OSS | {"swizzle": True}),
        ("quant_algo", MO, modelopt("NVFP4_AWQ", 4, 16)),
        ("group_size", MO, modelopt("NVFP4", 4, 16) | {"group_size": 32}),
        ("config.json", MO, None),  # ComfyUI's scales are in another order
    ],
)
def test_what_may_be_other_numbers_is_refused(tmp_path, key, tensors, said):
    folder = folder_of(tmp_path / "in", tensors, said)
    refused(tmp_path, [key], octofold.inspect_checkpoint, folder, error=UNSUPPORTED)
