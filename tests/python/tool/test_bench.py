"""octofold bench gemm and evidence: what they measure and check, and the reports that commands show
and write."""

import json

import numpy as np
import octofold
import pytest
from octofold_tool import bench, products, report
from octofold_tool.__main__ import main
from octofold_tool.measure import decibels, interleaved_seconds, relative_error

from tests.python.reference import GRANULARITIES


def test_writes_table_json_and_chart(capsys, tmp_path):
    json_path, png_path = tmp_path / "bench.json", tmp_path / "bench.png"
    arguments = ["--shape", "64,130,300", "--shape", "1,128,256", "--rounds", "5"]
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
    assert document["options"]["granularities"] == ["1x128", "128x128"]
    first = document["results"][0]
    assert first["relative_error"] < 2.5e-3
    assert first["rounds"] == 5
    assert first["ratio"] == pytest.approx(
        first["milliseconds_float32"] / first["milliseconds_fp8"]
    )
    assert png_path.read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.png"]


def test_names_the_shapes_that_it_leaves_out(capsys):
    shapes = ["--shape", "16,16,16", "--shape", "100000,100000,100000"]
    assert main(["bench", "gemm", *shapes, "--rounds", "5"]) == 0
    out, err = capsys.readouterr()
    assert "Left out" in out
    assert "100000,100000,100000" in out
    assert "1 of 2 shapes" in err


def test_a_wrong_product_is_not_timed(capsys, monkeypatch):
    true_gemm = octofold.gemm

    def one_element_off(*args, **kwargs):
        result = true_gemm(*args, **kwargs)
        result[0, 0] += 100
        return result

    monkeypatch.setattr(octofold, "gemm", one_element_off)
    assert main(["bench", "gemm", "--shape", "4,4,64", "--rounds", "5"]) == 2
    assert "a fault of ours" in capsys.readouterr().err


def test_a_product_that_is_not_written_is_not_timed(capsys, monkeypatch):
    true_gemm = octofold.gemm

    def lazy(*args, out=None, **kwargs):
        return true_gemm(*args, **kwargs) if out is None else out

    monkeypatch.setattr(octofold, "gemm", lazy)
    assert main(["bench", "gemm", "--shape", "4,4,64", "--rounds", "5"]) == 2
    assert "was not written everywhere" in capsys.readouterr().err


PAIRS = (("tensor", "tensor"), ("channel", "channel"), ("1x128", "128x128"), ("1x128", "1x128"))


@pytest.mark.slow
@pytest.mark.parametrize("granularities", PAIRS, ids=",".join)
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "float16"])
def test_every_granularity_and_output_passes_its_check(granularities, out_dtype):
    options = products.GemmOptions(("e4m3", "e5m2"), granularities, out_dtype, 5, 1.0)
    for shape in ((3, 5, 200), (100, 700, 300)):
        products.measure(shape, options)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_some_rows_are_dequantized_as_all_are(rng, granularity):
    x = octofold.quantize(rng.standard_normal((300, 200)).astype(np.float32), granularity)
    rows = np.array([299, 0, 127, 128, 5])
    np.testing.assert_array_equal(products.dequantized_rows(x, rows), x.dequantize()[rows])


def test_sweeps_are_powers_of_two(monkeypatch):
    seen = []

    class Report:
        def show(self):
            pass

    def run(shapes, options, title):
        seen.extend(shapes)
        return Report()

    monkeypatch.setattr("octofold_tool.cpu_bench.run", run)
    sweeps = ["--sweep", "7168,2048", "--sweep", "64,128"]
    assert main(["bench", "gemm", "--device", "cpu", *sweeps]) == 0
    assert seen[:3] == [(1, 7168, 2048), (2, 7168, 2048), (4, 7168, 2048)]
    assert seen[14:16] == [(16384, 7168, 2048), (1, 64, 128)]
    assert len(seen) == 30


def test_relative_error_and_decibels():
    assert relative_error([1.0, 1.0], [1.0, 2.0]) == pytest.approx(1 / np.sqrt(5))
    assert relative_error([0.0], [0.0]) == 0
    assert relative_error([1.0], [0.0]) == float("inf")
    assert decibels(0.1) == pytest.approx(20)
    assert decibels(0) == float("inf")


def test_rounds_alternate_their_order():
    order = []
    calls = [lambda: order.append("a"), lambda: order.append("b")]
    seconds = interleaved_seconds(calls, rounds=4)
    assert "".join(order) == "abbaabba"
    assert [len(times) for times in seconds] == [4, 4]
    assert len(interleaved_seconds(calls, rounds=9, budget=0)[0]) == 5


def test_a_failed_write_leaves_what_was_there(tmp_path):
    class FullDisk:
        def savefig(self, file, **_):
            file.write(b"half a picture")
            raise OSError(28, "No space left on device", str(target))

    target = tmp_path / "chart.png"
    target.write_bytes(b"the old picture")
    with pytest.raises(OSError, match="No space left"):
        report.write_png(target, FullDisk())
    assert target.read_bytes() == b"the old picture"
    assert list(tmp_path.iterdir()) == [target]


def test_a_narrow_terminal_loses_no_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    values = [f"{value}.25" for value in range(10)]
    report.print_table("title", [f"column{value}" for value in range(10)], [values], totals=values)
    out = capsys.readouterr().out
    for value in values:
        assert out.count(value) == 2
    assert "…" not in out


def test_pipes_get_plain_text(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    report.print_table("title", ["a"], [["1"]], totals=["1"])
    assert list(report.tracked("counting", [1, 2])) == [1, 2]
    out, err = capsys.readouterr()
    assert "\x1b" not in out
    assert err == ""


@pytest.mark.parametrize(("color", "codes"), [("", "\x1b[1;36m"), ("1", "\x1b[1m")])
def test_no_color_is_respected(capsys, monkeypatch, color, codes):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", color)
    report.console().print("text", style="bold cyan")
    assert codes in capsys.readouterr().out


@pytest.fixture
def no_times(monkeypatch):
    pytest.importorskip("torch")

    class Report:
        def show(self):
            print("times")

    monkeypatch.setattr(bench, "measured", lambda *_: Report())


@pytest.mark.usefixtures("no_times")
def test_each_part_of_the_evidence_has_a_case(capsys, tmp_path):
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


@pytest.mark.usefixtures("no_times")
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
