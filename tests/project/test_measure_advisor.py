"""tests/gpu/measure_advisor.py, tried where there is no GPU; and its copy of torchao's rules."""

import importlib
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "gpu" / "measure_advisor.py"


def test_the_script_runs(tmp_path):
    output = tmp_path / "lines.jsonl"
    command = [sys.executable, str(SCRIPT), str(output), "--device", "cpu", "--models", "dit"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == 5
    for line in lines:
        assert math.isfinite(line["error"])
        assert line["advisor_error"] <= max(line["error"], 1e-3) * 1.0001
        assert sum(line["ways"].values()) == line["advisor_layers"]
    assert lines[0]["layers"] == lines[0]["advisor_layers"] == 17


def test_rules_are_torchaos(monkeypatch):
    filters = pytest.importorskip("torchao.float8")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    script = importlib.import_module("measure_advisor")
    sizes = (8, 16, 1000, 1024, 1040, 2048, 2064, 4096, 4112, 11008)
    for recipe in ("rowwise", "tensorwise"):
        theirs = filters._auto_filter_for_recipe(recipe, filter_fqns=[])
        _, ours = script.RULES[f"torchao {recipe}"]
        for out_features, in_features in itertools.product(sizes, sizes):
            layer = torch.nn.Linear(in_features, out_features, device="meta")
            assert ours(out_features, in_features) == theirs(layer, "layer")
