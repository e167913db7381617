"""octofold bench evidence: that it computes each part, and tells what is wrong."""

import json

import octofold
import pytest
from octofold_tool import bench
from octofold_tool.__main__ import main

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_times(monkeypatch):
    class Report:
        def show(self):
            print("times")

    monkeypatch.setattr(bench, "measured", lambda *_: Report())


def test_each_part_has_a_case(capsys, tmp_path):
    path = tmp_path / "evidence.json"
    arguments = ["--device", "cpu", "--seconds", "0", "--seed", "5", "--json", str(path)]
    assert main(["bench", "evidence", *arguments]) == 0
    document = json.loads(path.read_text())
    assert document["seed"] == 5
    found = {finding["what"]: finding for finding in document["findings"]}
    assert len(found) == 14
    assert all(each["cases"] == 1 or each["missing"] for each in found.values())
    assert found["products: rows"]["worst"] > 0.1  # BF16 rounds
    out = capsys.readouterr().out
    assert "attention" in out
    assert "times" in out


@pytest.mark.parametrize("name", ["attention", "gemm"])
def test_what_is_wrong_is_named_with_the_seed(capsys, monkeypatch, name):
    true = getattr(octofold, name)
    calls = []

    def wrong(*arguments, **options):
        result = true(*arguments, **options)
        calls.append(result)
        result.view(-1)[0] += 7.0 * len(calls)
        return result

    monkeypatch.setattr(octofold, name, wrong)
    arguments = ["--device", "cpu", "--seconds", "0", "--seed", "6"]
    assert main(["bench", "evidence", *arguments]) == 2
    error = capsys.readouterr().err
    assert "--seed 6: wrong, a fault of ours" in error
    assert {"attention": "queries", "gemm": "a row by itself"}[name] in error
