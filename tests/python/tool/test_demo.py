"""octofold demo: the model is the model, and the numbers are what FP8 ought to give."""

import json

import matplotlib.image
import numpy as np
import octofold
import pytest
from octofold_tool import demo_results, linear_layers, minilm, schemes
from octofold_tool.__main__ import main
from octofold_tool.arrays import NumPyArrays

try:
    FOLDER = minilm.model_folder()
except minilm.ToolError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def model():
    return minilm.MiniLm(FOLDER)


def test_model_is_that_of_transformers(model):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sentence = "The gulls quarrel over the bread that the children throw."
    bert = transformers.BertModel.from_pretrained(FOLDER, dtype=torch.float64).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(FOLDER)(sentence, return_tensors="pt")
    with torch.no_grad():
        (states,) = bert(**inputs).last_hidden_state
    expected = torch.nn.functional.normalize(states.mean(dim=0), dim=0).numpy()
    actual = model.embed([sentence], model.linear)[0]
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.slow
def test_demo_end_to_end(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0

    out = capsys.readouterr().out
    assert "0.query" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "cosine similarity" in out
    document = json.loads((tmp_path / "octofold-demo" / "demo.json").read_text())
    layers = document["layers"]
    assert len(layers) == 36
    for layer in layers:
        assert layer["error_dequantized"] < 3e-4
        assert 1e-3 < layer["error_unquantized"] < 0.06  # e4m3 keeps 4 bits: 2^-4 at worst
        assert layer["snr_db"] == pytest.approx(-20 * np.log10(layer["error_unquantized"]))
        blocks = -(-layer["n"] // 128) * -(-layer["k"] // 128)
        assert layer["bytes_fp8"] == layer["n"] * layer["k"] + 4 * blocks
        assert layer["bytes_float32"] == 4 * layer["n"] * layer["k"]
    found = document["answers"]
    assert len(found["cosines"]) == document["sentences"] >= 40
    assert 0.99 < found["worst"] <= found["mean"] < 1
    assert found["largest_lost_lead"] < 0.02  # FP8 swaps only what is nearly as near
    assert "answers_with_fp8_attention" not in document
    assert document["parameters"]["weight_granularity"] == "128x128"
    advisor = document["advisor"]
    plan = octofold.models.Plan.load(tmp_path / "octofold-demo" / "plan.json")
    assert advisor["changed"] == {layer.name: layer.chosen for layer in plan.changed}
    assert advisor["changed"].keys() < {layer["name"] for layer in layers}
    assert 0 < advisor["error"] <= advisor["max_error"]
    assert "Octofold's plan for BertModel" in out
    image = matplotlib.image.imread(tmp_path / "octofold-demo" / "demo.png")
    assert image.shape[1] > 1000
    assert image.std() > 0.05  # something is drawn


@pytest.mark.slow
def test_weights_alone(capsys, tmp_path):
    """Less is lost than with activations in FP8 too; FP8 keys and values add to it."""
    page = tmp_path / "page.txt"
    page.write_text("The gulls quarrel over bread.\nBirds fight for food.\nNobody rows today.\n")
    command = ["demo", "--weight-only", "--text", str(page), "--output-dir", str(tmp_path)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "activations FP16" in out
    assert "keys and values" in out
    table, _ = out.split("\n\nWritten")
    assert max(map(len, table.splitlines())) <= 100
    document = json.loads((tmp_path / "demo.json").read_text())
    assert document["parameters"]["activation_dtype"] == "float16"
    for layer in document["layers"]:
        assert layer["error_dequantized"] < 3e-4
        assert 1e-3 < layer["error_unquantized"] < 0.05
    alone, both = document["answers"], document["answers_with_fp8_attention"]
    assert len(alone["cosines"]) == len(both["cosines"]) == 3
    assert 0.995 < both["worst"] < 1
    assert 0.995 < alone["worst"] < 1
    assert alone["cosines"] != both["cosines"]


def test_attention_in_fp8_is_attention():
    rng = np.random.default_rng(5)
    query, key, value = (rng.standard_normal((3, 7, 32)).astype(np.float32) for _ in range(3))
    expected = minilm.exact_attention(query, key, value)
    actual = schemes.Fp8Attention(NumPyArrays())(query, key, value)
    assert actual.shape == expected.shape
    assert 1e-4 < np.linalg.norm(actual - expected) / np.linalg.norm(expected) < 0.08


def test_own_text_and_json(capsys, tmp_path):
    page, folder = tmp_path / "page.txt", tmp_path / "out"
    page.write_text("Two sentences, one per line.\n\nThey are compared.\n")
    assert main(["demo", "--text", str(page), "--output-dir", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "demo.json").read_text())
    assert printed["sentences"] == 2
    assert printed["answers"]["same_nearest"] == 2
    assert printed["environment"]["octofold"]


def test_text_that_is_no_text(capsys, tmp_path):
    page = tmp_path / "page.txt"
    page.write_bytes(b"\xff\xfe\x00")
    assert main(["demo", "--text", str(page)]) == 2
    assert "expected UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["/proc/no-such-folder", "file", "file/below"])
def test_unwritable_folder(capsys, monkeypatch, tmp_path, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["demo", "--output-dir", folder]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"octofold: {folder}: ")
    assert err.count("\n") == 1


def test_every_layer_is_in_the_chart(model):
    layers = [
        linear_layers.LayerResult(name, 1, 1, 1, 0.0, 0.01, 40.0, 4, 2, 1.0, 1.0, 1.0)
        for name in model.linear_names()
    ]
    some = demo_results.Answers([0.99, 0.98], 2, 0.0)
    figure = demo_results.chart(
        demo_results.DemoResults(
            2, "a CPU", schemes.Scheme(NumPyArrays(), True), layers, {"one": some, "other": some}
        )
    )
    lines = {line.get_label(): len(line.get_xdata()) for line in figure.axes[0].get_lines()}
    assert lines == dict.fromkeys(
        ("query", "key", "value", "attention.output", "intermediate", "output"), 6
    )
    assert len(figure.axes[1].patches) == 4


def test_answers_are_compared():
    before = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1]], np.float32)
    after = before[[1, 0, 2, 3]]
    result = demo_results.compare_answers(before, after)
    np.testing.assert_allclose(result.cosines, [0.8, 0.8, 1, 1], atol=1e-6)
    # Nearest: 1 2 1 2 before, 2 0 0 2 after. The third's was at 0.96, what replaced it at 0.6.
    assert result.same_nearest == 1
    assert result.largest_lost_lead == pytest.approx(0.96 - 0.6, abs=1e-6)
