"""octofold.tuning: tables are written as the library reads them."""

import dataclasses
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import octofold
import pytest
from octofold import tuning
from octofold.kernel_cache import GemmProblem
from octofold.tuning import Choice

NO_COMPONENT = octofold.Component(True, "")
GPU = octofold.Gpu(0, "NVIDIA H200", 9, 0, 132, 1 << 37, NO_COMPONENT)
PROBLEM = GemmProblem(300, 4096, 7168)
CHOICE = Choice(PROBLEM, "128x96.w2.c1x1x1.b1.early", 21.12345, 24.0)
TABLES = Path(__file__).parents[2] / "src" / "plan" / "tables"
if not TABLES.exists():
    pytest.skip("needs the tables of the sources", allow_module_level=True)
SHIPPED = len(json.loads((TABLES / "NVIDIA_H200.json").read_text())["products"])


@pytest.fixture
def folder(tmp_path):
    """Runs code in a process of its own, which keeps tables here: one reads its environment
    once."""

    def run(code, **environment):
        setup = (
            "import octofold, json; from octofold import tuning;"
            "from octofold.kernel_cache import GemmProblem; from octofold.tuning import Choice;"
            f"gpu = octofold.Gpu(0, 'NVIDIA H200', 9, 0, 132, 1, octofold.Component(True, ''));"
            f"choice = {CHOICE!r};"
        )
        environment = {"OCTOFOLD_CACHE_DIR": str(tmp_path), **environment}
        return subprocess.run(
            [sys.executable, "-c", setup + code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    return run


def test_what_is_written_is_followed(folder, tmp_path):
    code = "print(tuning.write([choice], gpu)); print(tuning.table(gpu))"
    file, table = folder(code).splitlines()
    assert file == str(tmp_path / "tuning" / "NVIDIA_H200.json")
    assert table == repr(tuning.Table(tmp_path / "tuning" / "NVIDIA_H200.json", "", 1, SHIPPED))
    document = json.loads((tmp_path / "tuning" / "NVIDIA_H200.json").read_text())
    (key,) = document["products"]
    assert key.startswith("gemm: m 300, n 4096, k 7168, a e4m3 1x128")
    assert document["products"][key] == {
        "candidate": CHOICE.candidate,
        "microseconds": 21.123,
        "planned_microseconds": 24.0,
    }
    assert document["octofold"] == octofold.__version__
    assert list((tmp_path / "tuning").iterdir()) == [tmp_path / "tuning" / "NVIDIA_H200.json"]


def test_products_are_replaced_and_kept(folder, tmp_path):
    folder(
        "from dataclasses import replace;"
        "other = replace(choice, problem=GemmProblem(1, 4096, 7168));"
        "third = replace(choice, problem=GemmProblem(2, 4096, 7168));"
        "tuning.write([choice, other], gpu);"
        "tuning.write([replace(choice, candidate='x'), third], gpu)"
    )
    products = json.loads((tmp_path / "tuning" / "NVIDIA_H200.json").read_text())["products"]
    found = {key.split(",")[0]: value["candidate"] for key, value in products.items()}
    others = {"gemm: m 1": CHOICE.candidate, "gemm: m 2": CHOICE.candidate}
    assert found == {"gemm: m 300": "x", **others}


def test_of_what_is_not_followed_nothing_is_kept(folder, tmp_path):
    file = tmp_path / "tuning" / "NVIDIA_H200.json"
    said = folder(
        "from dataclasses import replace\n"
        "other = replace(choice, problem=GemmProblem(1, 64, 128))\n"
        "for change in ({'octofold': '0.0.1'}, {'gpu': 'NVIDIA H100'}, {'products': []}):\n"
        "    file = tuning.write([choice], gpu)\n"
        "    document = {**json.loads(file.read_text()), **change}\n"
        "    file.write_text(json.dumps(document))\n"
        "    print(tuning.table(gpu).fault)\n"
        "    tuning.write([other], gpu)\n"
        "    print(*json.loads(file.read_text())['products'])\n"
    ).splitlines()
    assert [line.split(",")[0] for line in said[1::2]] == ["gemm: m 1"] * 3
    faults = (
        "'octofold': expected",
        "expected NVIDIA H200, got NVIDIA H100",
        "an object, got array",
    )
    for fault, text in zip(faults, said[::2], strict=True):
        assert fault in text
    assert list(file.parent.iterdir()) == [file]


def test_places(folder, tmp_path):
    none = folder("print(tuning.table(gpu).file, tuning.table(gpu).shipped)", OCTOFOLD_TUNING="0")
    assert none == "None 0"
    own = tmp_path / "own.json"
    code = "print(tuning.write([choice], gpu), tuning.clear(gpu), tuning.clear(gpu))"
    assert folder(code, OCTOFOLD_TUNING=str(own)) == f"{own} True False"
    assert not own.exists()


def test_a_folder_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "tuning").write_text("a file")
    code = (
        "\ntry: tuning.write([choice], gpu)"
        "\nexcept octofold.IoError as error: print(isinstance(error, FileExistsError), error)"
    )
    said = folder(code)
    assert said.startswith("True tuning.write: ")
    assert said.endswith("NVIDIA_H200.json': File exists")
    assert stat.S_ISREG((tmp_path / "tuning").stat().st_mode)


def test_candidates_and_what_is_planned():
    names = tuning.candidates(PROBLEM)
    assert len(set(names)) == len(names) > 40
    for m in (1, 16, 64, 300, 4096):
        assert tuning.planned(dataclasses.replace(PROBLEM, m=m)) in names
    fast = dataclasses.replace(PROBLEM, a_granularity="tensor", b_granularity="tensor")
    assert tuning.planned(fast) in tuning.candidates(fast)
    assert tuning.planned(dataclasses.replace(PROBLEM, m=512), 64) in names


@pytest.mark.parametrize("file", sorted(TABLES.iterdir()), ids=lambda file: file.stem)
def test_tables_that_come_along_gain(file):
    products = json.loads(file.read_text())["products"]
    assert len(products) > 20
    for key, choice in products.items():
        m, n, k = (int(re.search(rf"\b{size} (\d+)", key)[1]) for size in "mnk")
        problem = GemmProblem(m, n, k)
        assert tuning._key(problem) == key
        assert choice["candidate"] in tuning.candidates(problem)
        assert choice["candidate"] != tuning.planned(problem)
        if "planned_microseconds" in choice:  # else the planner's has not been timed there
            assert choice["microseconds"] * 1.03 < choice["planned_microseconds"] + 0.02


def test_bad_arguments():
    with pytest.raises(octofold.InvalidArgumentError, match="'gpu'"):
        tuning.table("cuda")
    with pytest.raises(octofold.InvalidArgumentError, match="'gpu'"):
        tuning.table(-1)
    with pytest.raises(octofold.UnavailableError, match="index 99"):
        tuning.table(99)
    with pytest.raises(octofold.InvalidArgumentError, match="multiprocessors"):
        tuning.planned(PROBLEM, 1)
    with pytest.raises(octofold.InvalidArgumentError, match="'a'"):
        tuning.planned(dataclasses.replace(PROBLEM, a="float32"))
