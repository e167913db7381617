"""Each model of a list in each family: the library that owns the model loads the folder and gives
what the codes and scales say, or the folder is refused before it is written."""

import json

import octofold
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("compressed_tensors")
pytest.importorskip("torchao")
pytest.importorskip("diffusers")
from checkpoint_support import raw_tensors, relative_error  # noqa: E402
from family_matrix import CELLS, COLUMNS, ROWS, cell, documented, make_source  # noqa: E402
from matrix_models import DECODER, SIZES, TOKENS, Row, of, tokens  # noqa: E402
from model_support import quiet  # noqa: E402


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


RAGGED = Row(
    "ragged", of("LlamaForCausalLM", "LlamaConfig", **{**DECODER, "intermediate_size": 192}), tokens
)


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


def test_the_table_has_each_cell_and_no_other(said):
    assert list(said) == CELLS


@pytest.mark.parametrize("family", ["finegrained-fp8", "deepseek-v3"])
@pytest.mark.parametrize(
    "name", ["Llama", "gpt-oss", "Phi-3", "BERT", "ModernBERT", "BART", "T5", "Whisper", "Mamba"]
)
def test_layers_on_a_gpu_are_fp8_where_the_file_is(sources, tmp_path, family, name):
    """With a GPU transformers makes FP8 layers before it loads. Where it would, needs none."""
    from transformers.integrations.finegrained_fp8 import FP8Linear, replace_with_fp8_linear

    out = tmp_path / "out"
    report = octofold.quantize_checkpoint(sources(name).folder, out, family=family)
    said = json.loads((out / "config.json").read_text())["quantization_config"]
    config = transformers.FineGrainedFP8Config(**{**said, "fmt": None})
    with torch.device("meta"):
        model = ROWS[name].make()
    # As the quantizer adds to what the config says.
    left = [*config.modules_to_not_convert, *(model._keep_in_fp32_modules or ())]
    replace_with_fp8_linear(model, left, config, pre_quantized=True)
    layers = {
        f"{module_name}.weight": module
        for module_name, module in model.named_modules()
        if isinstance(module, FP8Linear)
    }
    assert set(report.quantized) <= layers.keys()
    # Of layers that are not in the file the weights are tied to others, and not FP8 then.
    assert not set(report.copied) & layers.keys()
    raw = raw_tensors(out)
    for weight in report.quantized:
        assert layers[weight].weight_scale_inv.shape == raw[f"{weight}_scale_inv"].shape


@pytest.mark.parametrize("family", ["compressed-tensors", "torchao", "finegrained-fp8"])
def test_a_folder_with_folders_below_is_whole(sources, tmp_path, family):
    """As sentence-transformers lays them out: the model, and what is done to its outputs."""
    source = tmp_path / "in"
    bert = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    bert.save_pretrained(source)
    modules = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_D"}]
    (source / "modules.json").write_text(json.dumps(modules))
    for name in ("1_Pooling/config.json", "2_D/pytorch_model.bin", ".gitattributes"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(name)
    report = octofold.quantize_checkpoint(source, tmp_path / "out", family=family)
    for path in source.rglob("*"):
        assert path.is_dir() or (tmp_path / "out" / path.relative_to(source)).is_file()
    assert (tmp_path / "out/1_Pooling/config.json") in report.files
    loaded = transformers.BertModel.from_pretrained(tmp_path / "out", dtype="auto").eval()
    with torch.no_grad():
        ours, expected = (model(TOKENS).last_hidden_state for model in (loaded, bert))
    assert relative_error(ours, expected) < 0.1


@pytest.mark.parametrize("name", ["DistilBertForMaskedLM", "ElectraForMaskedLM"])
def test_heads_that_are_not_in_the_file_stay_as_they_are(tmp_path, name):
    config = getattr(transformers, name.replace("ForMaskedLM", "Config"))(vocab_size=96)
    config.n_layers = config.num_hidden_layers = 1
    config.dim = config.hidden_size = config.embedding_size = 128
    config.hidden_dim = config.intermediate_size = 256
    config.n_heads = config.num_attention_heads = 2
    torch.manual_seed(1)
    model = getattr(transformers, name)(config).eval()
    model.save_pretrained(tmp_path / "in")
    octofold.quantize_checkpoint(tmp_path / "in", tmp_path / "out", family="compressed-tensors")
    loaded, found = type(model).from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True
    )
    assert not any(found.values()), found
    with torch.no_grad():
        assert relative_error(loaded.eval()(TOKENS).logits, model(TOKENS).logits) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_torchao_weights_have_the_dtype_of_the_source(tmp_path, dtype):
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).to(dtype).eval()
    model.save_pretrained(tmp_path / "in")
    octofold.quantize_checkpoint(tmp_path / "in", tmp_path / "out", family="torchao")
    loaded = transformers.BertModel.from_pretrained(tmp_path / "out", dtype="auto").eval()
    weight = loaded.encoder.layer[0].attention.self.query.weight
    assert weight.dtype == dtype
    with torch.no_grad():
        ours, expected = (each(TOKENS).last_hidden_state for each in (loaded, model))
    assert relative_error(ours.double(), expected.double()) < 0.1


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


def test_columns_are_families_that_there_are():
    assert {family for family, _ in COLUMNS} < set(octofold.checkpoint_families())
