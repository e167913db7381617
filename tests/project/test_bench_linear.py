"""tests/gpu/bench_linear.py on the CPU, where its times mean nothing."""

import json
import sys
from pathlib import Path

import pytest
from project_support import REPOSITORY, run

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

SCRIPT = REPOSITORY / "tests" / "gpu" / "bench_linear.py"
SMALL = ("--device", "cpu", "--rounds", "2", "--no-torchao", "--no-compiled")


def rows_of(path: Path, section: str) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["section"] == section]


def test_every_section_measures(tmp_path: Path) -> None:
    path = tmp_path / "linear.jsonl"
    output = run(sys.executable, SCRIPT, path, *SMALL, "--recipes", "rowwise", "--tokens", "3")
    assert "× BF16" in output
    ways = ["BF16", "octofold rowwise"]
    layers = rows_of(path, "layer")
    assert [(row["passes"], row["way"]) for row in layers] == [
        (passes, way) for passes in ("forward", "both") for way in ways
    ]
    assert [row["way"] for row in rows_of(path, "block")] == [*ways, "octofold rowwise, fused"]
    assert [row["tokens"] for row in rows_of(path, "inference")] == [3]
    assert [row["recipe"] for row in rows_of(path, "products")] == ["bfloat16", "rowwise"]
    assert len(rows_of(path, "host")) == 4
    assert rows_of(path, "failed") == []
    fp8 = next(row for row in rows_of(path, "errors") if row["way"] == ways[1])
    assert all(0.01 < fp8[result] < 0.1 for result in ("y", "dx", "dw"))


def test_the_limit_of_time_ends_a_run(tmp_path: Path) -> None:
    path = tmp_path / "linear.jsonl"
    output = run(sys.executable, SCRIPT, path, *SMALL, "--seconds", "0")
    assert "stopped after 0 s" in output
    assert len(rows_of(path, "environment")) == 1
    assert rows_of(path, "layer") == []
