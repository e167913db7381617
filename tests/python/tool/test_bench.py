"""octofold bench gemm: what it measures and writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import octofold
import pytest
from octofold_tool import bench
from octofold_tool.__main__ import main
from octofold_tool.measure import decibels, interleaved_seconds, relative_error
from octofold_tool.suites import SUITES


def test_writes_table_json_and_chart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    json_path, png_path = tmp_path / "bench.json", tmp_path / "bench.png"
    arguments = ["--shape", "64,130,300", "--shape", "1,128,256", "--rounds", "3"]
    assert (
        main(["bench", "gemm", *arguments, "--json", str(json_path), "--png", str(png_path)]) == 0
    )

    assert "64,130,300" in capsys.readouterr().out
    document = json.loads(json_path.read_text())
    assert document["environment"]["octofold"] == octofold.__version__
    assert [(row["m"], row["n"], row["k"]) for row in document["results"]] == [
        (64, 130, 300),
        (1, 128, 256),
    ]
    first = document["results"][0]
    assert first["relative_error"] < 2.5e-3
    assert first["rounds"] == 3
    assert first["ratio"] == pytest.approx(
        first["milliseconds_float32"] / first["milliseconds_fp8"]
    )
    assert png_path.read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.png"]


def test_names_the_shapes_that_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--shape", "16,16,16", "--shape", "100000,100000,100000"]
    assert main(["bench", "gemm", *shapes, "--rounds", "3"]) == 0
    assert "Left out" in (out := capsys.readouterr().out)
    assert "100000,100000,100000" in out


def test_a_wrong_product_is_not_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    true_gemm = octofold.gemm

    def off_by_a_little(*args: Any, **kwargs: Any) -> Any:
        result = true_gemm(*args, **kwargs)
        result[0, 0] *= 3
        return result

    monkeypatch.setattr(octofold, "gemm", off_by_a_little)
    assert main(["bench", "gemm", "--shape", "4,4,64", "--rounds", "3"]) == 2
    assert "a fault of ours" in capsys.readouterr().err


def test_suites_are_shapes() -> None:
    assert set(SUITES) == {"deepseek-v3", "llama-70b", "square"}
    for shapes in SUITES.values():
        assert len(set(shapes)) == len(shapes)
        assert all(len(shape) == 3 and min(shape) >= 1 for shape in shapes)


def test_relative_error_and_decibels() -> None:
    assert relative_error([1.0, 1.0], [1.0, 2.0]) == pytest.approx(1 / np.sqrt(5))
    assert relative_error([0.0], [0.0]) == 0
    assert decibels(0.1) == pytest.approx(20)
    assert decibels(0) == float("inf")


def test_rounds_alternate_their_order() -> None:
    order: list[str] = []
    seconds = interleaved_seconds([lambda: order.append("a"), lambda: order.append("b")], rounds=4)
    assert "".join(order) == "abbaabba"
    assert [len(times) for times in seconds] == [4, 4]


@pytest.mark.parametrize("text", ["1,2,3,4", "a,b,c", "1,-2,3", ""])
def test_bad_shapes(text: str) -> None:
    with pytest.raises(bench.argparse.ArgumentTypeError, match="expected M,N,K"):
        bench.parse_shape(text)
