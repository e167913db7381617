"""The plug into Diffusers where models are parts of pipelines, are offloaded or cast besides."""

import copy

import octofold
import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
accelerate = pytest.importorskip("accelerate")

from diffusers.quantizers.bfl.utils import quantize_fp8r  # noqa: E402
from octofold import nn  # noqa: E402
from octofold.integrations.diffusers import OctofoldConfig, take_fp8r  # noqa: E402
from octofold.integrations.diffusers.bfl import (  # noqa: E402
    bundled,
    codes_and_scale,
    is_bundle,
)
from octofold.nn.layers.fp8_weight import Fp8Weight  # noqa: E402
from octofold.nn.layers.stored_weight import StoredWeight  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tests.integrations.diffusers_models import (  # noqa: E402
    BF16,
    flux,
    outcome,
    relative_error,
    same_bits,
    saved,
)

Flux = diffusers.FluxTransformer2DModel
TEXT = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flux")
    return *saved(flux, folder), folder


@pytest.fixture(params=["native", "weight-only"])
def quantized(plain, request):
    """A model, its inputs, and what it gives."""
    config = OctofoldConfig(compute=request.param)
    model = Flux.from_pretrained(plain[2], quantization_config=config, torch_dtype=BF16)
    return model, plain[1], outcome(model, plain[1])


@pytest.fixture(scope="module")
def pipeline_folder(plain, tmp_path_factory):
    """A pipeline without text encoders, whose results are given as embeddings."""
    folder = tmp_path_factory.mktemp("pipeline")
    torch.manual_seed(0)
    autoencoder = diffusers.AutoencoderKL(
        block_out_channels=(16, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        latent_channels=1,
        shift_factor=0.0,
    )
    diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=autoencoder.to(BF16),
        transformer=copy.deepcopy(plain[0]),
        image_encoder=None,
        feature_extractor=None,
        **TEXT,
    ).save_pretrained(folder)
    return folder


def image(pipeline):
    generator = torch.Generator().manual_seed(0)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(
        prompt_embeds=torch.ones(1, 8, 64, dtype=BF16),
        pooled_prompt_embeds=torch.ones(1, 64, dtype=BF16),
        height=32,
        width=32,
        num_inference_steps=2,
        generator=generator,
        output_type="pt",
    ).images


def fp8_layers(model):
    return {name: one for name, one in model.named_modules() if isinstance(one, Fp8Weight)}


def test_parts_of_a_pipeline(pipeline_folder, tmp_path):
    wide = diffusers.DiffusionPipeline.from_pretrained(pipeline_folder, torch_dtype=BF16, **TEXT)
    configs = {"transformer": OctofoldConfig(), "vae": OctofoldConfig(compute="weight-only")}
    quantized = diffusers.DiffusionPipeline.from_pretrained(
        pipeline_folder,
        quantization_config=diffusers.PipelineQuantizationConfig(quant_mapping=configs),
        torch_dtype=BF16,
        **TEXT,
    )
    assert len(fp8_layers(quantized.transformer)) > 10
    assert {type(one) for one in fp8_layers(quantized.vae).values()} == {nn.WeightOnlyLinear}
    found = image(quantized)
    assert 1e-4 < relative_error(found, image(wide)) < 0.1

    quantized.save_pretrained(tmp_path)
    again = diffusers.DiffusionPipeline.from_pretrained(tmp_path, torch_dtype=BF16, **TEXT)
    for name in configs:
        one, other = getattr(quantized, name), getattr(again, name)
        assert same_bits(one.state_dict(), other.state_dict())
    assert torch.equal(image(again), found)


def test_one_config_for_all_parts(pipeline_folder, tmp_path):
    """The config serves the parts of Diffusers and of transformers."""
    transformers = pytest.importorskip("transformers")
    pipeline = diffusers.DiffusionPipeline.from_pretrained(
        pipeline_folder, torch_dtype=BF16, **TEXT
    )
    config = transformers.CLIPTextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2
    )
    pipeline.register_modules(text_encoder=transformers.CLIPTextModel(config).to(BF16))
    pipeline.save_pretrained(tmp_path / "wide")
    given = {name: part for name, part in TEXT.items() if name != "text_encoder"}
    quantized = diffusers.DiffusionPipeline.from_pretrained(
        tmp_path / "wide",
        quantization_config=diffusers.PipelineQuantizationConfig(
            quant_backend="octofold",
            quant_kwargs={"format": "channel"},
            components_to_quantize=["transformer", "text_encoder"],
        ),
        torch_dtype=BF16,
        **given,
    )
    for part in (quantized.transformer, quantized.text_encoder):
        layers = fp8_layers(part).values()
        assert {layer.scale_name for layer in layers} == {"weight_scale"}
    assert not fp8_layers(quantized.vae)
    quantized.save_pretrained(tmp_path / "fp8")
    again = diffusers.DiffusionPipeline.from_pretrained(tmp_path / "fp8", torch_dtype=BF16, **given)
    for name in ("transformer", "text_encoder"):
        one, other = getattr(quantized, name), getattr(again, name)
        assert same_bits(one.state_dict(), other.state_dict())


def test_lora_of_a_pipeline(pipeline_folder):
    pytest.importorskip("peft")
    config = diffusers.PipelineQuantizationConfig(quant_mapping={"transformer": OctofoldConfig()})
    pipeline = diffusers.DiffusionPipeline.from_pretrained(
        pipeline_folder, quantization_config=config, torch_dtype=BF16, **TEXT
    )
    before = image(pipeline)
    name = "transformer.single_transformer_blocks.0.proj_mlp"
    layer = pipeline.transformer.get_submodule(name.removeprefix("transformer."))
    state = {
        f"{name}.lora_A.weight": torch.randn(4, layer.in_features) * 0.1,
        f"{name}.lora_B.weight": torch.randn(layer.out_features, 4),
    }
    pipeline.load_lora_weights(state, adapter_name="one")
    apart = image(pipeline)
    assert relative_error(apart, before) > 1e-3
    pipeline.fuse_lora(components=["transformer"])
    assert relative_error(image(pipeline), apart) < 0.05
    pipeline.unfuse_lora(components=["transformer"])
    assert torch.equal(image(pipeline), apart)
    pipeline.unload_lora_weights()
    assert torch.equal(image(pipeline), before)


@pytest.mark.parametrize("offload_buffers", [False, True])
def test_weights_are_offloaded_by_accelerate(quantized, offload_buffers):
    """Offloads as device_map, enable_sequential_cpu_offload() and cpu_offload() do."""
    model, inputs, expected = quantized
    accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=offload_buffers)
    layer = model.transformer_blocks[0].attn.to_q
    assert layer.weight.is_meta
    assert layer.weight.dtype == torch.float8_e4m3fn
    for _ in range(2):
        assert torch.equal(outcome(model, inputs), expected)
    assert layer.weight.is_meta
    with pytest.raises(octofold.InvalidArgumentError, match="on meta"):
        model.dequantize()
    accelerate.hooks.remove_hook_from_submodules(model)
    assert not layer.weight.is_meta
    assert torch.equal(outcome(model, inputs), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"offload_type": "leaf_level"},
        {"offload_type": "block_level", "num_blocks_per_group": 1},
        {"offload_type": "block_level", "num_blocks_per_group": 2, "offload_to_disk_path": "here"},
        {"offload_type": "leaf_level", "offload_to_disk_path": "here"},
    ],
    ids=str,
)
def test_group_offload(quantized, options, tmp_path):
    """From the CPU to itself: which tensors go where is seen at those on disk."""
    model, inputs, expected = quantized
    if "offload_to_disk_path" in options:
        options = options | {"offload_to_disk_path": str(tmp_path)}
    model.enable_group_offload(CPU, CPU, **options)
    for _ in range(2):
        assert torch.equal(outcome(model, inputs), expected)
    assert type(model.transformer_blocks[0].attn.to_q.weight) is StoredWeight
    if "offload_to_disk_path" in options:
        assert list(tmp_path.glob("*.safetensors"))


def test_lora_into_an_offloaded_model(quantized):
    pytest.importorskip("peft")
    model, inputs, expected = quantized
    model.enable_group_offload(CPU, CPU, offload_type="leaf_level")
    layer = model.transformer_blocks[0].attn.to_q
    name = "transformer.transformer_blocks.0.attn.to_q"
    model.load_lora_adapter(
        {
            f"{name}.lora_A.weight": torch.randn(4, layer.in_features),
            f"{name}.lora_B.weight": torch.randn(layer.out_features, 4),
        },
        adapter_name="one",
    )
    assert relative_error(outcome(model, inputs), expected) > 1e-3
    model.unload_lora()
    assert torch.equal(outcome(model, inputs), expected)


@pytest.mark.parametrize("device_map", ["cpu", {"": "cpu"}])
def test_device_maps(plain, device_map):
    _, inputs, folder = plain
    options = {"quantization_config": OctofoldConfig(), "torch_dtype": BF16}
    expected = Flux.from_pretrained(folder, **options)
    model = Flux.from_pretrained(folder, device_map=device_map, **options)
    assert torch.equal(outcome(model, inputs), outcome(expected, inputs))


def test_sizes_for_a_device_map(plain):
    """accelerate plans with a byte for each weight in FP8."""
    _, _, folder = plain
    model = Flux.from_pretrained(folder, quantization_config=OctofoldConfig(), torch_dtype=BF16)
    sizes = accelerate.utils.compute_module_sizes(model, dtype=BF16)
    layer = model.transformer_blocks[0].attn.to_q
    scales = layer.scaled_weight.scale.numel()
    own = sizes["transformer_blocks.0.attn.to_q"]
    assert own == layer.weight.numel() + 2 * layer.bias.numel() + min(2, 4) * scales


def test_casting_of_diffusers_takes_what_is_left(quantized):
    """Layers in FP8 are none that it knows; the model as a whole it refuses to cast."""
    model, inputs, expected = quantized
    weights = {name: layer.weight.clone() for name, layer in fp8_layers(model).items()}
    model.enable_layerwise_casting(skip_modules_pattern=())
    for name, layer in fp8_layers(model).items():
        assert not hasattr(layer, "_diffusers_hook")
        assert torch.equal(layer.weight.view(torch.uint8), weights[name].view(torch.uint8))
    assert model.dtype == BF16
    assert relative_error(outcome(model, inputs), expected) < 0.1


def test_casting_of_octofold_takes_what_is_left(tmp_path):
    from tests.integrations.diffusers_models import unet

    _, inputs = saved(unet, tmp_path)
    model = diffusers.UNet2DConditionModel.from_pretrained(
        tmp_path, quantization_config=OctofoldConfig(), torch_dtype=BF16
    )
    expected, before = outcome(model, inputs), set(fp8_layers(model))
    octofold.models.enable_layerwise_casting(model)
    assert set(fp8_layers(model)) == before
    assert model.down_blocks[0].resnets[0].conv1.weight.dtype == torch.float8_e4m3fn
    assert relative_error(outcome(model, inputs), expected) < 0.1


@pytest.fixture(scope="module")
def fp8r(plain, tmp_path_factory):
    """A file of the kind fp8r, as BFL publishes them, with the names of Diffusers."""
    state = {}
    for name, value in plain[0].state_dict().items():
        if value.dim() == 2 and "transformer_blocks" in name and "norm" not in name:
            codes, scale = quantize_fp8r(value)
            state |= {name: codes, name.replace(".weight", ".weight_scale"): scale}
        else:
            state[name] = value
    file = tmp_path_factory.mktemp("fp8r") / "model.safetensors"
    save_file(state, file)
    return file


def test_bfl(plain, fp8r):
    """Our layers compute models that Diffusers loads by its own config, in the same memory."""
    _, inputs, folder = plain
    own = diffusers.BFLQuantizationConfig(compute_dtype=BF16)
    options = {"config": str(folder), "quantization_config": own, "torch_dtype": BF16}
    for compute, limit in (("native", 0.06), ("weight-only", 0.01)):
        model = Flux.from_single_file(str(fp8r), **options)
        expected = outcome(model, inputs)
        weight = model.transformer_blocks[0].attn.to_q.weight
        report = take_fp8r(model, compute)
        assert len(report.converted) == 22
        layer = model.transformer_blocks[0].attn.to_q
        assert layer.weight.data_ptr() == weight.data_ptr()
        assert layer.scaled_weight.granularity == "channel"
        assert relative_error(outcome(model, inputs), expected) < limit
        model.to("cpu")
    with pytest.raises(octofold.InvalidArgumentError, match="layers of the format fp8r"):
        take_fp8r(model)
    with pytest.raises(octofold.InvalidArgumentError, match="'compute'"):
        take_fp8r(model, "fast")
    with pytest.raises(octofold.InvalidArgumentError, match=r"'model'.*got str"):
        take_fp8r("model")


def test_fp8r_by_our_config(plain, fp8r, tmp_path):
    """Its codes and scales as they are, and they can be saved, which Diffusers' own cannot."""
    _, inputs, folder = plain
    options = {"config": str(folder), "torch_dtype": BF16}
    config = OctofoldConfig(format="channel")
    model = Flux.from_single_file(str(fp8r), quantization_config=config, **options)
    state = load_file(fp8r)
    layers = fp8_layers(model)
    assert len(layers) == 22
    for name, layer in layers.items():
        codes = state[f"{name}.weight"]
        assert torch.equal(layer.weight.view(torch.uint8), codes.view(torch.uint8))
        assert torch.equal(layer.scaled_weight.scale, state[f"{name}.weight_scale"])
    own = diffusers.BFLQuantizationConfig(compute_dtype=BF16)
    peer = Flux.from_single_file(str(fp8r), quantization_config=own, **options)
    assert relative_error(outcome(model, inputs), outcome(peer, inputs)) < 0.06
    model.save_pretrained(tmp_path)
    again = Flux.from_pretrained(tmp_path, torch_dtype=BF16)
    assert torch.equal(outcome(again, inputs), outcome(model, inputs))
    with pytest.raises(octofold.InvalidArgumentError, match=r"weight_scale_inv \[1, 1\]"):
        Flux.from_single_file(str(fp8r), quantization_config=OctofoldConfig(), **options)


def test_bundles_are_split_and_joined():
    """Diffusers does so to what is one weight in files with the names of BFL."""
    weights = [torch.randn(8, 16) for _ in range(3)]
    codes, scale = quantize_fp8r(torch.cat(weights))
    state = bundled({"qkv.weight": codes, "qkv.weight_scale": scale, "norm.scale": torch.ones(3)})
    assert set(state) == {"qkv.weight", "norm.scale"}
    parts = state["qkv.weight"].chunk(3)
    for part, weight in zip(parts, weights, strict=True):
        assert is_bundle(part)
        expected = quantize_fp8r(weight)
        for one, other in zip(codes_and_scale(part), expected, strict=True):
            assert torch.equal(one.float(), other.float())
    joined = codes_and_scale(torch.cat(parts))
    assert torch.equal(joined[0].float(), codes.float())
    assert torch.equal(joined[1], scale)
