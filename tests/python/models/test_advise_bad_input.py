"""Wrong arguments of advise() and apply(): errors that name them, and nothing half done."""

import dataclasses
import functools
import json
import operator
import re

import octofold
import pytest
from octofold.models.advisor.plan import Option

from tests.python.models.advise_support import make_ids, make_model, torch

models = octofold.models
refused = octofold.InvalidArgumentError


@pytest.fixture(scope="module")
def plan():
    return models.advise(make_model(), make_ids(), max_error=0.04, ways=["blockwise", "cast"])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], "an empty list"),
        (7, "got int"),
        ({1: 2}, "keys"),
        (make_model(), "got Model"),
        ((), "TypeError: .*missing"),
        (torch.zeros(2, 3), "Error: "),
        ({"idx": make_ids()}, "TypeError: .*idx"),
        (lambda model: None, "gives none"),
        (lambda model: make_ids(), "gives none"),
        (lambda model: torch.ones(3), "calls none"),
        (lambda model: model(make_ids())["logits"] * torch.nan, "finite"),
        (lambda model: torch.tensor([1, torch.nan]) * model(make_ids())["logits"].max(), "finite"),
    ],
)
def test_inputs_that_do_not_fit(inputs, words):
    model = make_model()
    with pytest.raises(refused, match=f"argument 'inputs': .*{words}"):
        models.advise(model, inputs)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.training


def test_models_that_are_none():
    ids = make_ids()
    with pytest.raises(refused, match=r"argument 'model': expected a torch.nn.Module, got list"):
        models.advise([], ids)
    with pytest.raises(refused, match=r"argument 'model': .*got Conv1d"):
        models.advise(torch.nn.Conv1d(3, 3, 1), torch.zeros(1, 3, 5))
    with torch.device("meta"):
        empty = make_model(device="meta")
    with pytest.raises(refused, match=r"argument 'model': .*meta"):
        models.advise(empty, ids)
    mixed = make_model()
    mixed.head.to("meta")
    with pytest.raises(refused, match=r"argument 'model': .*meta"):
        models.advise(mixed, ids)


def test_several_devices(monkeypatch):
    class Elsewhere(torch.nn.Module):
        """Says that it lies on two GPUs, of which there need not be one."""

        def parameters(self, recurse=True):
            where = (torch.device("cuda", 0), torch.device("cuda", 1))
            return iter([type("Tensor", (), {"device": device}) for device in where])

    with pytest.raises(
        refused, match=r"argument 'model': expected a model on one device, got cuda"
    ):
        models.advise(Elsewhere(), make_ids())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"target": "speed"}, refused, "argument 'target': expected one of time, bytes, error"),
        ({"target": "time"}, octofold.UnsupportedError, "argument 'target': .*without a GPU"),
        ({"max_error": 0}, refused, "argument 'max_error': expected a number above 0, got 0"),
        ({"max_error": -0.1}, refused, "max_error"),
        ({"max_error": float("nan")}, refused, "max_error"),
        ({"max_error": "small"}, refused, "max_error"),
        ({"max_bytes": 1.5}, refused, "max_bytes"),
        ({"max_bytes": True}, refused, "max_bytes"),
        ({"max_bytes": 10, "max_error": 0.1}, refused, "max_bytes"),
        ({"target": "error"}, refused, "max_bytes"),
        ({"target": "error", "max_error": 0.1}, refused, "max_error"),
        ({"target": "bytes", "max_bytes": 10**9}, refused, "max_bytes"),
        ({"ways": []}, refused, "argument 'ways': .*blockwise.*weight-only-channel.*cast"),
        ({"ways": "cast"}, refused, "ways"),
        ({"ways": ["fp4"]}, refused, "ways.*fp4"),
        ({"max_bytes": 1}, refused, r"argument 'max_bytes': expected at least \d+"),
    ],
)
def test_bounds_and_ways(options, error, words):
    with pytest.raises(error, match=words):
        models.advise(make_model(), make_ids(), **options)


def test_a_plan_survives_its_file(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    assert models.Plan.load(path) == plan == models.Plan.from_json(plan.to_json())
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        models.Plan.load(tmp_path / "nowhere.json")
    with pytest.raises(octofold.IoError, match="no-folder"):
        plan.save(tmp_path / "no-folder" / "plan.json")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(octofold.BadFormatError, match=re.escape(str(path))):
        models.Plan.load(path)


GONE = object()


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["format"], 1, "'format': expected 2, got 1"),
        (["format"], GONE, "'format': expected 2"),
        (["layers"], None, "'layers': expected a list"),
        (["layers"], [3], r"'layers\[0\]': expected an object"),
        (["target"], "speed", "'target': expected one of"),
        (["extra"], 1, "'extra': expected no such field"),
        (["whole", "error"], GONE, "'whole.error': expected a value"),
        (["max_error"], "0.1", "'max_error': expected a number"),
        (["max_error"], float("nan"), "'max_error'"),
        (["runs"], True, "'runs'"),
        (["notes"], [1], r"'notes\[0\]': expected a string"),
        (["layers", 0, "chosen"], "fp4", r"'layers\[0\]'.*'chosen': expected a way that there is"),
        (["layers", 0, "chosen"], "rowwise", r"'layers\[0\]'.*'chosen': .*measured there"),
        (["layers", 0, "calls", 0, "dtype"], "int8", r"calls\[0\]'.*'dtype'"),
        (["layers", 0, "in_features"], -1, r"'layers\[0\]'.*'in_features'"),
        (["layers", 0, "in_features"], 1.5, r"'layers\[0\]\.in_features'"),
        (["layers", 0, "name"], "head", "'layers': expected no name twice"),
    ],
)
def test_files_that_lie(plan, path, value, words):
    content = json.loads(plan.to_json())
    *outer, last = path
    place = functools.reduce(operator.getitem, outer, content)
    place[last] = value
    if value is GONE:
        del place[last]
    with pytest.raises(octofold.BadFormatError, match=words):
        models.Plan.from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "expected a plan in JSON") for text in ("", "{", "nonsense", "[" * 100_000, "1")),
        ("[{}]", "got list"),
    ],
)
def test_files_that_are_no_plans(text, words):
    with pytest.raises(octofold.BadFormatError, match=words):
        models.Plan.from_json(text)


def unchanged(model, plan, words, **options):
    before = {name: id(module) for name, module in model.named_modules()}
    with pytest.raises(octofold.Error, match=words):
        models.apply(model, plan, **options)
    assert {name: id(module) for name, module in model.named_modules()} == before


def changed_layers(plan, **changes):
    """The plan with other fields in its last layer that is changed."""
    last = plan.changed[-1]
    layers = [
        dataclasses.replace(layer, **changes) if layer is last else layer for layer in plan.layers
    ]
    return dataclasses.replace(plan, layers=tuple(layers))


def test_plans_for_another_model(plan):
    assert len(plan.changed) > 1
    unchanged(make_model(blocks=3), plan, "'plan': .*other parameters or buffers.*strict=False")
    unchanged(make_model(blocks=1), plan, "there is no 'blocks.1.up'")
    unchanged(
        make_model(width=64),
        plan,
        "'blocks.0.up' is of 64 → 128 in float32, not 128 → 256 in float32",
    )
    unchanged(make_model(dtype=torch.bfloat16), plan, "in bfloat16, not 128 → 256 in float32")
    model = make_model()
    models.apply(model, plan)
    unchanged(model, plan, "of 128 → 256 in float8_e4m3fn, not 128 → 256 in float32")
    with pytest.warns(UserWarning, match="other parameters"):
        models.apply(make_model(blocks=3), plan, strict=False)
    with (
        pytest.warns(UserWarning, match="names, shapes and dtypes"),
        pytest.raises(refused, match=r"layers that it changes, got .* there is no 'blocks.1"),
    ):
        models.apply(make_model(blocks=1), plan, strict=False)


def test_a_lie_about_a_layer_leaves_all_as_they_are(plan):
    unchanged(make_model(), changed_layers(plan, name="nowhere"), "'nowhere'")
    unchanged(make_model(), changed_layers(plan, in_features=127), "not 127 →")
    options = (*plan.layers[0].options, Option("weight-only-128x128", 0.02, 0.02, None, 9))
    weight_only = changed_layers(plan, options=options, chosen="weight-only-128x128")
    unchanged(make_model(), weight_only, "its input is float32")
    for wrong in ({"chosen": "fp4"}, {"chosen": "rowwise"}, {"out_features": -1}):
        with pytest.raises(refused, match=f"argument '{next(iter(wrong))}'"):
            changed_layers(plan, **wrong)


def test_plans_of_another_gpu(plan):
    other = dataclasses.replace(plan, machine="NVIDIA H200 (9.0)")
    words = r"'plan': expected one that was measured .*, cpu.*got one of NVIDIA H200 \(9\.0\)"
    unchanged(make_model(), other, words)
    model = make_model()
    with pytest.warns(UserWarning, match="NVIDIA H200") as warned:
        models.apply(model, other, strict=False)
    assert warned[0].filename == __file__
    assert any(isinstance(p, octofold.nn.Fp8Weight) for p in model.parameters())


def test_what_is_no_plan():
    with pytest.raises(refused, match=r"argument 'plan': expected a Plan of advise.., got dict"):
        models.apply(make_model(), {})
    with pytest.raises(refused, match=r"argument 'model'"):
        models.apply(None, None)
