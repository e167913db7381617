"""Each model of a list in each family: the library that owns the model loads the folder and gives
what the codes and scales say, or the folder is refused before it is written."""

import json
from dataclasses import replace

import octofold
import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("compressed_tensors")
pytest.importorskip("torchao")
pytest.importorskip("diffusers")
from tests.python.checkpoints.family_matrix import (  # noqa: E402
    CELLS,
    ROWS,
    cell,
    documented,
    make_source,
    quiet,
    save_dequantized,
)
from tests.python.checkpoints.matrix_models import DECODER, Row, of, tokens  # noqa: E402
from tests.python.judge import relative_error  # noqa: E402


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """Makes the source of a row, once."""
    quiet()
    folder = tmp_path_factory.mktemp("matrix")
    made = {}

    def source(name):
        if name not in made:
            made[name] = make_source(ROWS[name], folder / name)
        return made[name]

    return source


@pytest.fixture(scope="session")
def said():
    return documented()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "column"), CELLS, ids=[f"{name}-{'-'.join(column)}" for name, column in CELLS]
)
def test_the_owner_loads_it_or_it_is_refused(sources, said, tmp_path, name, column):
    assert cell(sources(name), *column, tmp_path) == said[name, column]


RAGGED = Row("ragged", of("LlamaForCausalLM", **{**DECODER, "intermediate_size": 192}), tokens)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("family", "granularity", "said"),
    [
        ("finegrained-fp8", "128x128", "loads, without 3 of 7"),
        ("finegrained-fp8", "tensor", "loads"),
        ("compressed-tensors", "channel", "loads"),
        ("compressed-tensors", "tensor", "loads"),
        ("compressed-tensors", "128x128", "loads, without 1 of 7"),
        ("compressed-tensors", "1x128", "loads, without 1 of 7"),
        ("torchao", "channel", "loads"),
        ("torchao", "tensor", "loads"),
        ("torchao", "128x128", "loads, without 3 of 7"),
    ],
)
def test_sizes_that_blocks_do_not_divide(tmp_path, family, granularity, said):
    """Intermediate sizes of 192: N of two layers, and K of one."""
    source = make_source(RAGGED, tmp_path / "in")
    assert cell(source, family, granularity, tmp_path) == said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "column",
    [("finegrained-fp8", "128x128"), *[("compressed-tensors", g) for g in ("channel", "128x128")]],
)
@pytest.mark.parametrize(
    ("name", "skip", "said"),
    [
        ("Qwen2-VL", "visual.*", "loads"),
        ("LLaVA", ("*vision_tower*", "*k_proj*"), "loads"),
        ("LLaVA", "*language_model.model*", "loads"),
        ("ViT", "*intermediate*", "loads"),
        ("DINOv3", "*mlp*", "loads"),
        ("Qwen3-MoE", "*.experts.*", "loads"),
        ("Qwen3-MoE", "*.experts.0.*", "refused"),
    ],
)
def test_what_is_skipped_stays_as_the_loader_names_it(sources, tmp_path, name, skip, said, column):
    assert cell(sources(name), *column, tmp_path, skip=skip) == said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "column", [("finegrained-fp8", "128x128"), ("compressed-tensors", "channel")]
)
@pytest.mark.parametrize(
    "kinds", [("Qwen3ForCausalLM", "Qwen3Model"), ("Qwen3Model", "Qwen3ForCausalLM")]
)
def test_what_is_skipped_stays_under_another_head(tmp_path, kinds, column):
    """With the prefix of its base model, or without, which the other class has."""
    made, loaded = kinds
    row = Row("tied", of(made, **DECODER, tie_word_embeddings=True), tokens)
    source = make_source(row, tmp_path / "in")
    kind = getattr(transformers, loaded)
    source = replace(
        source, model_class=kind, row=replace(row, make=lambda: kind(row.make().config))
    )
    source = replace(source, outputs=row.outputs(source.load(source.folder)))
    assert cell(source, *column, tmp_path, skip="*q_proj*") == "loads"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fused", [False, True])
def test_experts_that_are_converted_or_fused_load_on_a_gpu(sources, tmp_path, fused):
    """Without one transformers dequantizes no stacks."""
    source, middle, out = sources("Qwen3-MoE"), tmp_path / "in", tmp_path / "out"
    if fused:
        source.load(source.folder).save_pretrained(middle, save_original_format=False)
        report = octofold.quantize_checkpoint(middle, out, family="finegrained-fp8")
        assert "model.layers.0.mlp.experts.gate_up_proj" in report.quantized
    else:
        octofold.quantize_checkpoint(source.folder, middle, "tensor", family="compressed-tensors")
        assert not octofold.convert_checkpoint(middle, out, "deepseek-v3").requantized
    wide = save_dequantized(out, source.folder, tmp_path / "wide")
    outputs = [
        source.row.outputs(source.load(wide)),
        source.row.outputs(source.load_as_on_a_gpu(out)),
    ]
    assert torch.equal(*outputs)


def test_a_pipeline_is_refused_and_its_models_are_not(sources, tmp_path):
    import diffusers

    pipe = tmp_path / "pipe"
    unet = sources("UNet")
    unet.load(unet.folder).save_pretrained(pipe / "unet")
    scheduler = diffusers.DDIMScheduler()
    scheduler.save_pretrained(pipe / "scheduler")
    index = {
        "_class_name": "DDIMPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "scheduler": ["diffusers", "DDIMScheduler"],
    }
    (pipe / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(octofold.InvalidArgumentError, match=r"one by one.*'unet'.*torchao"):
        octofold.quantize_checkpoint(pipe, tmp_path / "out", family="torchao")
    octofold.quantize_checkpoint(pipe / "unet", tmp_path / "unet", family="torchao")
    (pipe / "unet").rename(tmp_path / "wide")
    (tmp_path / "unet").rename(pipe / "unet")
    loaded = diffusers.DDIMPipeline.from_pretrained(pipe, torch_dtype=torch.bfloat16)
    assert type(loaded.unet.conv_in.weight) is torch.nn.Parameter
    assert relative_error(unet.row.outputs(loaded.unet), unet.outputs) < 0.1


def test_the_report_says_what_was_left_alone(sources, tmp_path, capsys):
    from octofold_tool.checkpoint_options import show

    source = sources("gpt-oss")
    report = octofold.quantize_checkpoint(
        source.folder, tmp_path / "out", skip="*.o_proj.*", family="finegrained-fp8"
    )
    stacks = {name for name, reason in report.left_alone.items() if "biases" in reason}
    assert stacks == {
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.down_proj",
    }
    assert report.left_alone["lm_head.weight"] == "its name matches '*lm_head*'"
    assert report.left_alone["model.layers.0.self_attn.o_proj.weight"].endswith("'*.o_proj.*'")
    assert set(report.left_alone) <= set(report.copied)
    show(report)
    printed = capsys.readouterr().out
    assert "2 left as they are, because it is a stack of experts with biases" in printed
    assert "model.layers.0.mlp.experts.down_proj" in printed


def test_experts_that_transformers_cannot_size_are_refused(tmp_path):
    sizes = {"d_model": 128, "d_ff": 128, "d_kv": 64, "num_heads": 2, "vocab_size": 64}
    config = transformers.SwitchTransformersConfig(**sizes, num_layers=2, num_experts=2)
    transformers.SwitchTransformersForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(octofold.InvalidArgumentError, match=r"'family'.*no size.*experts"):
        octofold.quantize_checkpoint(tmp_path, tmp_path / "out", family="finegrained-fp8")
