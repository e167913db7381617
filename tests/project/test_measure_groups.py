"""tests/gpu/measure_grouped.py and measure_experts.py on the CPU; times mean nothing there."""

import json
import sys
from pathlib import Path

import pytest
from project_support import REPOSITORY, run

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

GROUPED = REPOSITORY / "tests" / "gpu" / "measure_grouped.py"
EXPERTS = REPOSITORY / "tests" / "gpu" / "measure_experts.py"
SMALL = ("--device", "cpu", "--rounds", "2")


def rows_of(path: Path, section: str) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["section"] == section]


def test_products_of_groups_are_right_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "grouped.jsonl"
    output = run(sys.executable, GROUPED, path, *SMALL, "--no-peers")
    assert rows_of(path, "failed") == []
    measured = [(row["case"].partition(" ")[0], row["way"]) for row in rows_of(path, "grouped")]
    recipe = "1x128·channel"
    pairs = ("1x128·1x128", recipe, "1x128·128x128", "channel·channel")
    assert measured == [
        ("contiguous", "octofold"),
        ("contiguous", "octofold, zipf"),
        ("masked", "octofold"),
        *(("k", f"octofold {pair}{sizes}") for sizes in ("", ", unaligned") for pair in pairs),
        *(
            ("gradients", f"octofold {pair}, zipf")
            for pair in (recipe, "1x128·1x128", "tensor·tensor")
        ),
        ("gradients", f"octofold {recipe}"),
        *(("decode", f"octofold{rows}") for rows in ("", ", zipf", ", masked")),
        *(("gated", f"octofold{sizes}") for sizes in ("", ", zipf")),
    ]
    assert all(section in output for section in ("contiguous", "masked", "decode", "gated"))


def test_expert_layers_are_right_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "experts.jsonl"
    output = run(sys.executable, EXPERTS, path, *SMALL, "--no-peers")
    assert rows_of(path, "failed") == []
    assert len(rows_of(path, "layer")) == 7
    assert len(rows_of(path, "steps")) == 3
    assert len(rows_of(path, "host")) == 4
    assert "TFLOPS" not in output  # which are of graphs
    of_training = [row for row in rows_of(path, "errors") if row["trains"]]
    names = ("y", "dx", "dweights", "dw13", "dw2")
    assert all(0.02 < row[name] < 0.2 for row in of_training for name in names)
    assert of_training


@pytest.mark.parametrize("script", [GROUPED, EXPERTS])
def test_the_limit_of_time_ends_a_run(script: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    output = run(sys.executable, script, path, *SMALL, "--seconds", "0")
    assert "stopped after 0 s" in output
    assert [json.loads(line)["section"] for line in path.read_text().splitlines()] == [
        "environment"
    ]
