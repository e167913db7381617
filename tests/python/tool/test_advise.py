"""octofold advise: a plan of the user's model, as files that say what was measured."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import octofold
import pytest
from octofold_tool import advised_demo, minilm
from octofold_tool.__main__ import main

torch = pytest.importorskip("torch")

try:
    FOLDER = minilm.model_folder()
except minilm.ToolError as error:
    pytest.skip(str(error), allow_module_level=True)

PAGE = "The gulls quarrel over bread.\nBirds fight for food on the beach.\nNobody rows today.\n"
MODULE = """
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    return model, [(torch.randn(20, 256),)]

def wrong():
    return 3
"""


@pytest.fixture
def failure(run):
    """Calls `octofold advise` and returns what it says as it fails."""

    def said(*arguments):
        code, _, err = run("advise", *arguments)
        assert code == 2
        return err

    return said


def test_a_function_of_the_user(capsys, failure, monkeypatch, tmp_path):
    (tmp_path / "my_advised_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    name = "my_advised_module:make"
    assert main(["advise", name, "--device", "cpu", "--max-error", "0.05"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2" in out
    assert str(tmp_path) not in sys.path
    folder = tmp_path / "octofold-advice"
    assert sorted(path.name for path in folder.iterdir()) == [
        "plan.json", "report.html", "report.txt",
    ]  # fmt: skip
    plan = octofold.models.Plan.load(folder / "plan.json")
    assert plan.max_error == 0.05
    assert plan.machine == "cpu"
    assert (folder / "report.txt").read_text() == octofold.models.text_report(plan)
    assert "fewest bytes under an error of at most 5 %" in octofold.models.text_report(plan)

    assert main(["advise", name, "--device", "cpu", "--max-bytes", "3e5"]) == 0
    assert octofold.models.Plan.load(folder / "plan.json").target == "error"
    assert "max_bytes" in failure(name, "--device", "cpu", "--max-bytes", "10")
    assert "ways" in failure(name, "--device", "cpu", "--ways", "fp4")
    assert "without a GPU" in failure(name, "--device", "cpu", "--target", "time")
    assert "expected to return" in failure("my_advised_module:wrong")
    assert "nothing" in failure("my_advised_module:nothing")


def test_the_html_is_whole_and_needs_nothing_else(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Conv1d(3, 3, 1))
    model[0].register_parameter("a<b>&", None)
    plan = octofold.models.advise(model, lambda model: model(torch.randn(3, 64)), max_error=0.1)
    page = octofold.models.html_report(plan)
    elements = list(ElementTree.fromstring(page).iter())  # every tag is closed
    assert len([element for element in elements if element.tag.endswith("svg")]) == 1
    assert not any(element.tag.endswith("script") for element in elements)
    attributes = [pair for element in elements for pair in element.attrib.items()]
    assert all(value.startswith("#") for name, value in attributes if name.endswith("href"))
    for words in ("src=", "url(h", "@import", "matplotlib.org"):
        assert words not in page
    for words in ("prefers-color-scheme:dark", "Conv1d", "times are left out", "64 → 64"):
        assert words in page


def test_a_folder_of_transformers(failure, monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    Path("page.txt").write_text(PAGE)
    options = ["--device", "cpu", "--text", "page.txt", "--output-dir", "plan"]
    assert main(["advise", str(FOLDER), *options, "--ways", "cast", "--max-error", "0.03"]) == 0
    plan = octofold.models.Plan.load("plan/plan.json")
    assert plan.model == "BertModel"
    assert 10 < len(plan.changed) < len(plan.layers) == 37
    assert plan.whole.error <= 0.03
    assert {other.kind for other in plan.others} == {"BertAttention", "BertSelfAttention"}

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "transformers cannot load it" in failure(str(empty))


def test_what_is_wrong_is_said_in_a_line(failure, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "expected a folder, or module:function" in failure("nowhere")
    assert "no_such_module" in failure("no_such_module:make")
    assert "for a model in a folder" in failure("a:b", "--text", "page.txt")
    if not torch.cuda.is_available():
        assert "no GPU to measure on" in failure("a:b", "--device", "cuda")
    for wrong in ("-1", "many", "inf", "nan"):
        with pytest.raises(SystemExit):
            main(["advise", "a:b", f"--max-bytes={wrong}"])
    with pytest.raises(SystemExit):
        main(["advise", "a:b", "--max-bytes", "1", "--max-error", "1"])


def test_a_folder_without_a_tokenizer(failure, monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(FOLDER / name)
    message = failure(str(tmp_path), "--device", "cpu")
    assert "no files of a tokenizer, such as tokenizer.json, to make inputs from text" in message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("octofold.json", "{}"),
        ("config.json", '{"quantization_config": {"quant_method": "octofold"}}'),
    ],
)
def test_folders_of_octofolds_own_are_refused(failure, monkeypatch, tmp_path, name, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    assert "in FP8 already, as octofold.models.save()" in failure(str(tmp_path), "--device", "cpu")


def test_without_transformers_it_is_named(failure, monkeypatch, tmp_path):
    from octofold_tool import advise

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(advise.importlib.util, "find_spec", lambda name: None)
    assert "needs transformers: pip install" in failure(str(tmp_path), "--device", "cpu")


def test_the_demo_says_where_torch_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(advised_demo.importlib.util, "find_spec", lambda name: None)
    text, document = advised_demo.advise_demo(PAGE.splitlines(), tmp_path)
    assert "needs torch: pip install torch" in text
    assert document is None
    assert not list(tmp_path.iterdir())
