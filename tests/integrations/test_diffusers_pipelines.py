"""The plug into Diffusers where models are parts of pipelines, lie on several devices or are cast
besides. On a GPU, too, if there is one."""

import copy

import accelerate
import diffusers
import octofold
import pytest
import torch
from octofold import nn
from octofold.integrations.diffusers import OctofoldConfig

from tests.integrations.diffusers_models import BF16, loaded, saved
from tests.integrations.support import fp8_layers, same_bits
from tests.python.models.library_models import autoencoder, outcome, unet
from tests.python.nn.layer_support import relative_error

Flux = diffusers.FluxTransformer2DModel
TEXT = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def device(request):
    return GPU if request.param == "cuda" else CPU


def on(device, inputs):
    return {name: value.to(device) for name, value in inputs.items()}


@pytest.fixture(params=["native", "weight-only"])
def compute(request):
    return request.param


@pytest.fixture
def quantized(plain, compute):
    """A model, its inputs, and what it gives."""
    model = loaded(plain[2], compute=compute)
    return model, plain[1], outcome(model, plain[1])


@pytest.fixture(scope="module")
def pipeline_folder(plain, tmp_path_factory):
    """A pipeline without text encoders, whose results are given as embeddings."""
    folder = tmp_path_factory.mktemp("pipeline")
    diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=autoencoder(latent_channels=1, shift_factor=0.0)[0],
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
    kinds = {one.weight.compute for one in fp8_layers(quantized.vae).values()}
    assert kinds == {"weight-only"}
    found = image(quantized)
    assert 1e-4 < relative_error(found, image(wide)) < 0.1

    quantized.save_pretrained(tmp_path)
    again = diffusers.DiffusionPipeline.from_pretrained(tmp_path, torch_dtype=BF16, **TEXT)
    for name in configs:
        assert same_bits(getattr(quantized, name), getattr(again, name))
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
        assert {layer.weight.scale_name() for layer in layers} == {"weight_scale"}
    assert not fp8_layers(quantized.vae)
    quantized.save_pretrained(tmp_path / "fp8")
    again = diffusers.DiffusionPipeline.from_pretrained(tmp_path / "fp8", torch_dtype=BF16, **given)
    for name in ("transformer", "text_encoder"):
        assert same_bits(getattr(quantized, name), getattr(again, name))


@pytest.mark.parametrize("offload_buffers", [False, True])
def test_weights_are_offloaded_by_accelerate(quantized, offload_buffers):
    """Offloads as device_map, enable_sequential_cpu_offload() and cpu_offload() do."""
    model, inputs, expected = quantized
    accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=offload_buffers)
    layer = model.transformer_blocks[0].attn.to_q
    assert layer.weight.is_meta
    assert layer.weight.codes.dtype == torch.float8_e4m3fn
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
        {"offload_type": "leaf_level", "use_stream": True},
        {"offload_type": "leaf_level", "use_stream": True, "record_stream": True},
        {"offload_type": "block_level", "num_blocks_per_group": 1},
        {"offload_type": "block_level", "num_blocks_per_group": 1, "use_stream": True},
        {
            "offload_type": "block_level",
            "num_blocks_per_group": 2,
            "low_cpu_mem_usage": True,
            "use_stream": True,
        },
    ],
    ids=str,
)
def test_group_offload(plain, compute, device, options):
    """Between forwards all codes are on the CPU."""
    streams = "use_stream" in options
    if streams and device == CPU:
        pytest.skip("streams are a GPU's")
    _, inputs, folder = plain
    inputs = on(device, inputs)
    expected = outcome(loaded(folder, compute=compute).to(device), inputs)
    model = loaded(folder, compute=compute)
    model.enable_group_offload(device, CPU, **options)
    for _ in range(3):
        assert torch.equal(outcome(model, inputs), expected)
    assert type(model.transformer_blocks[0].attn.to_q.weight) is nn.Fp8Weight
    blocks = model.transformer_blocks, model.single_transformer_blocks
    layers = [layer for each in blocks for layer in fp8_layers(each).values()]
    away = [layer for layer in layers if layer.weight.device == CPU]
    # With streams Diffusers has the next group there ahead of time.
    assert len(away) >= len(layers) // (2 if streams else 1)


def test_group_offload_to_disk_is_refused(plain, tmp_path):
    model = loaded(plain[2])
    with pytest.raises(octofold.InvalidArgumentError, match=r"safetensors.*numbers.*Fp8Weight"):
        model.enable_group_offload(
            CPU, CPU, offload_type="leaf_level", offload_to_disk_path=str(tmp_path)
        )


def test_lora_into_a_group_offloaded_model(plain, compute, device):
    _, inputs, folder = plain
    inputs, name = on(device, inputs), "transformer.transformer_blocks.0.attn.to_q"
    model = loaded(folder, compute=compute).to(device)
    layer = model.transformer_blocks[0].attn.to_q
    state = {
        f"{name}.lora_A.weight": torch.randn(4, layer.in_features),
        f"{name}.lora_B.weight": torch.randn(layer.out_features, 4),
    }
    before = outcome(model, inputs)
    model.load_lora_adapter(dict(state), adapter_name="one")
    expected = outcome(model, inputs)
    assert relative_error(expected, before) > 1e-3
    model = loaded(folder, compute=compute)
    pipeline = pipeline_of(model)
    model.enable_group_offload(
        device, CPU, offload_type="leaf_level", use_stream=device.type == "cuda"
    )
    # This call, unlike model.load_lora_adapter(), has Diffusers offload the adapters, too.
    pipeline.load_lora_weights(dict(state), adapter_name="one")
    for _ in range(2):
        assert relative_error(outcome(model, inputs), expected) < 1e-3
    pipeline.unload_lora_weights()
    assert torch.equal(outcome(model, inputs), before)


def pipeline_of(transformer):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return diffusers.FluxPipeline(scheduler, *[None] * 5, transformer)


@pytest.mark.parametrize(
    ("device_map", "runs_on"),
    [
        ("cpu", CPU),
        ({"": "cpu"}, CPU),
        *(pytest.param(each, GPU, marks=needs_gpu) for each in ("auto", "balanced", {"": 0})),
    ],
)
def test_device_maps(plain, device_map, runs_on):
    _, inputs, folder = plain
    inputs = on(runs_on, inputs)
    expected = outcome(loaded(folder).to(runs_on), inputs)
    assert torch.equal(outcome(loaded(folder, device_map=device_map), inputs), expected)


def test_sizes_for_a_device_map(plain):
    """accelerate plans with a byte for each weight in FP8."""
    _, _, folder = plain
    model = Flux.from_pretrained(folder, quantization_config=OctofoldConfig(), torch_dtype=BF16)
    dtypes = model.hf_quantizer.get_special_dtypes_update(model, BF16)
    sizes = accelerate.utils.compute_module_sizes(model, dtype=BF16, special_dtypes=dtypes)
    layer = model.transformer_blocks[0].attn.to_q
    own = sizes["transformer_blocks.0.attn.to_q"]
    assert own == layer.weight.numel() + 2 * layer.bias.numel()


def test_casting_of_diffusers_takes_what_is_left(quantized):
    """Layers in FP8 are left alone."""
    model, inputs, expected = quantized
    weights = {name: layer.weight.scaled for name, layer in fp8_layers(model).items()}
    model.enable_layerwise_casting(skip_modules_pattern=())
    for name, layer in fp8_layers(model).items():
        assert not hasattr(layer, "_diffusers_hook")
        assert layer.weight.scaled.equals(weights[name])
    assert model.dtype == BF16
    assert relative_error(outcome(model, inputs), expected) < 0.1


def test_casting_of_octofold_takes_what_is_left(tmp_path):
    _, inputs = saved(unet, tmp_path)
    model = diffusers.UNet2DConditionModel.from_pretrained(
        tmp_path, quantization_config=OctofoldConfig(), torch_dtype=BF16
    )
    expected = outcome(model, inputs)
    weights = {name: layer.weight for name, layer in fp8_layers(model).items()}
    octofold.models.enable_layerwise_casting(model)
    layers = fp8_layers(model)
    assert all(layers[name].weight is weight for name, weight in weights.items())
    assert isinstance(model.down_blocks[0].resnets[0].conv1.weight, octofold.nn.Fp8Weight)
    assert relative_error(outcome(model, inputs), expected) < 0.2
