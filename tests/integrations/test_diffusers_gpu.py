"""The plug into Diffusers on a GPU: results beside the CPU's, and what is where in offloading."""

import copy
import gc

import octofold
import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

from octofold.integrations.diffusers import OctofoldConfig  # noqa: E402
from octofold.nn.layers.fp8_weight import Fp8Weight  # noqa: E402

from tests.integrations.diffusers_models import BF16, flux, outcome, relative_error, saved  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Flux = diffusers.FluxTransformer2DModel
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
COMPUTE = ("native", "weight-only")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flux")
    return *saved(flux, folder), folder


def loaded(folder, device_map=None, **options):
    config = OctofoldConfig(**options)
    return Flux.from_pretrained(
        folder, quantization_config=config, torch_dtype=BF16, device_map=device_map
    )


def on_gpu(inputs):
    return {name: value.to(GPU) for name, value in inputs.items()}


def fp8_layers(model):
    return [one for one in model.modules() if isinstance(one, Fp8Weight)]


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("format", ["128x128", "channel", "tensor"])
def test_results_are_those_of_the_cpu(plain, format, compute):
    _, inputs, folder = plain
    options = {"format": format, "compute": compute}
    expected = outcome(loaded(folder, **options), inputs)
    straight = loaded(folder, "cuda", **options)
    moved = loaded(folder, **options).to(GPU)
    for one, other in zip(fp8_layers(straight), fp8_layers(moved), strict=True):
        assert torch.equal(one.weight.view(torch.uint8), other.weight.view(torch.uint8))
        assert torch.equal(one.scaled_weight.scale, other.scaled_weight.scale)
    y = outcome(straight, on_gpu(inputs))
    assert torch.equal(outcome(moved, on_gpu(inputs)), y)
    assert relative_error(y.cpu(), expected) < 0.03


def test_auto_is_native_where_the_gpu_can(plain):
    kinds = {type(one).__name__ for one in fp8_layers(loaded(plain[2], "cuda"))}
    info = octofold.info().gpus[0].operations
    native = info["casts"].available and info["products"].available
    assert kinds == {"InferenceLinear" if native else "WeightOnlyLinear"}


@pytest.mark.parametrize("device_map", ["auto", "balanced", {"": 0}])
def test_device_maps(plain, device_map):
    _, inputs, folder = plain
    expected = outcome(loaded(folder, "cuda"), on_gpu(inputs))
    assert torch.equal(outcome(loaded(folder, device_map), on_gpu(inputs)), expected)


def test_a_part_on_the_cpu(plain):
    """accelerate brings its layers for their forwards, codes included."""
    _, inputs, folder = plain
    expected = outcome(loaded(folder, "cuda"), on_gpu(inputs))
    model = loaded(folder, {"": 0, "single_transformer_blocks": "cpu"})
    layer = model.single_transformer_blocks[0].proj_mlp
    assert layer.weight.is_meta
    y = outcome(model, on_gpu(inputs))
    assert torch.equal(y, expected)
    assert layer.weight.is_meta


@pytest.mark.parametrize("compute", COMPUTE)
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
def test_group_offload(plain, compute, options):
    """Between forwards all codes are on the CPU."""
    _, inputs, folder = plain
    expected = outcome(loaded(folder, "cuda", compute=compute), on_gpu(inputs))
    model = loaded(folder, compute=compute)
    model.enable_group_offload(GPU, CPU, **options)
    for _ in range(3):
        assert torch.equal(outcome(model, on_gpu(inputs)), expected)
    in_blocks = fp8_layers(model.transformer_blocks) + fp8_layers(model.single_transformer_blocks)
    away = [layer for layer in in_blocks if layer.weight.device == CPU]
    # With streams Diffusers has the next group there ahead of time.
    assert len(away) >= len(in_blocks) // 2
    if not options.get("use_stream"):
        assert len(away) == len(in_blocks)


@pytest.mark.parametrize("compute", COMPUTE)
def test_lora_into_a_group_offloaded_model(plain, compute):
    pytest.importorskip("peft")
    _, inputs, folder = plain
    name = "transformer.transformer_blocks.0.attn.to_q"
    model = loaded(folder, "cuda", compute=compute)
    layer = model.transformer_blocks[0].attn.to_q
    state = {
        f"{name}.lora_A.weight": torch.randn(4, layer.in_features),
        f"{name}.lora_B.weight": torch.randn(layer.out_features, 4),
    }
    before = outcome(model, on_gpu(inputs))
    model.load_lora_adapter(dict(state), adapter_name="one")
    expected = outcome(model, on_gpu(inputs))
    assert relative_error(expected, before) > 1e-3
    model = loaded(folder, compute=compute)
    pipeline = diffusers.FluxPipeline(
        *(diffusers.FlowMatchEulerDiscreteScheduler(), *[None] * 5, model)
    )
    model.enable_group_offload(GPU, CPU, offload_type="leaf_level", use_stream=True)
    # This call, unlike model.load_lora_adapter(), has Diffusers offload the adapters, too.
    pipeline.load_lora_weights(dict(state), adapter_name="one")
    for _ in range(2):
        assert relative_error(outcome(model, on_gpu(inputs)), expected) < 1e-3
    pipeline.unload_lora_weights()
    assert torch.equal(outcome(model, on_gpu(inputs)), before)


@pytest.mark.parametrize("how", ["enable_model_cpu_offload", "enable_sequential_cpu_offload"])
def test_pipelines_are_offloaded(plain, how):
    _, inputs, folder = plain
    expected = outcome(loaded(folder, "cuda"), on_gpu(inputs))
    model = loaded(folder)
    pipeline = diffusers.FluxPipeline(
        *(diffusers.FlowMatchEulerDiscreteScheduler(), *[None] * 5, model)
    )
    getattr(pipeline, how)(device=GPU)
    assert torch.equal(outcome(model, on_gpu(inputs)), expected)
    pipeline.maybe_free_model_hooks()
    places = {layer.weight.device.type for layer in fp8_layers(model)}
    assert places == ({"cpu"} if "model" in how else {"meta"})


@pytest.mark.slow
@pytest.mark.parametrize("compute", COMPUTE)
def test_compiled(plain, compute):
    _, inputs, folder = plain
    model = loaded(folder, "cuda", compute=compute)
    expected = outcome(model, on_gpu(inputs))
    model.compile_repeated_blocks(fullgraph=True)
    assert relative_error(outcome(model, on_gpu(inputs)), expected) < 0.03


def test_loading_takes_no_more_than_the_model(tmp_path):
    """The largest weight in high precision besides."""
    with GPU:
        model = Flux(
            num_layers=1,
            num_single_layers=6,
            attention_head_dim=128,
            num_attention_heads=8,
            joint_attention_dim=1024,
            pooled_projection_dim=64,
        ).to(BF16)
    wide = sum(one.nbytes for one in model.state_dict().values())
    model.save_pretrained(tmp_path)
    del model
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = loaded(tmp_path, "cuda")
    peak = torch.cuda.max_memory_allocated() - before
    own = sum(one.nbytes for one in copy.copy(model).state_dict().values())
    largest = max(layer.weight.nbytes for layer in fp8_layers(model))
    assert own < 0.75 * wide
    assert peak < own + 4 * largest
