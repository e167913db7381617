"""octofold.tuning: tables are written as the library reads them."""

import contextlib
import json
import stat
import threading
from pathlib import Path

import numpy as np
import octofold
import pytest
from octofold import tuning
from octofold.tuning import Choice

from tests.python.own_process import python

NO_COMPONENT = octofold.Component(True, "")
GPU = octofold.Gpu(0, "NVIDIA H200", 9, 0, 132, 1 << 37, NO_COMPONENT)
PROBLEM = "gemm: m 300, n 4096, k 7168"
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
            "from octofold.tuning import Choice;"
            f"gpu = octofold.Gpu(0, 'NVIDIA H200', 9, 0, 132, 1, octofold.Component(True, ''));"
            f"choice = {CHOICE!r};"
        )
        return python(setup + code, **{"OCTOFOLD_CACHE_DIR": str(tmp_path)} | environment).strip()

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
        "other = replace(choice, problem='gemm: m 1, n 4096, k 7168');"
        "third = replace(choice, problem='gemm: m 2, n 4096, k 7168');"
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
        "other = replace(choice, problem='gemm: m 1, n 64, k 128')\n"
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
        "\nexcept octofold.IoError as error: print(isinstance(error, NotADirectoryError), error)"
    )
    said = folder(code)
    assert said == f"True cannot open '{tmp_path / 'tuning'}': Not a directory"
    assert stat.S_ISREG((tmp_path / "tuning").stat().st_mode)


def test_candidates_and_what_is_planned():
    names = tuning.candidates(PROBLEM)
    assert len(set(names)) == len(names) > 40
    for m in (1, 16, 64, 300, 4096):
        assert tuning.planned(f"gemm: m {m}, n 4096, k 7168") in names
    fast = f"{PROBLEM}, a e4m3 tensor, b e4m3 tensor"
    assert tuning.planned(fast) in tuning.candidates(fast)
    assert tuning.planned("gemm: m 512, n 4096, k 7168", 64) in names


def test_a_recording_has_each_product_once():
    a, b = (octofold.quantize(np.ones((rows, 256), np.float32)) for rows in (5, 64))
    x, w = np.ones((5, 256), np.float16), octofold.quantize(np.ones((64, 256), np.float32))
    with tuning.recording() as outer:
        octofold.gemm(a, b)
        with contextlib.suppress(KeyError), tuning.recording() as inner:
            thread = threading.Thread(target=octofold.gemm_weight_only, args=(x, w))
            thread.start()
            thread.join()
            octofold.gemm(a, b, out_dtype="float32", bias=np.ones(64, np.float32))
            raise KeyError
        octofold.gemm(a, b)
    octofold.gemm(a, b, out_dtype="float16")
    form = "m 5, n 64, k 256, a e4m3 1x128, b e4m3 1x128"
    weights = "m 5, n 64, k 256, x float16, w e4m3 1x128, out float16"
    assert inner == [
        f"gemm_weight_only: {weights}",
        f"gemm: {form}, out float32, bias float32",
    ]
    assert outer == [f"gemm: {form}, out bfloat16", *inner]
    assert [tuning.complete(problem) for problem in outer] == outer


def test_a_candidate_is_refused_on_the_cpu():
    a = octofold.quantize(np.ones((5, 256), np.float32))
    with tuning.using("64x16"):
        with tuning.using(None):
            octofold.gemm(a, a)
        with pytest.raises(octofold.InvalidArgumentError, match=r"'candidate'.*on the CPU"):
            octofold.gemm(a, a)
    octofold.gemm(a, a)
    with pytest.raises(octofold.InvalidArgumentError, match="'candidate'"):
        tuning.using("64x16")(octofold.gemm)(a, a)


def test_problems_are_run():
    pytest.importorskip("torch")
    out = tuning.run("gemm: m 5, n 64, k 256, out float32", device="cpu")
    assert (tuple(out.shape), float(out.norm()) > 0) == ((5, 64), True)
    with pytest.raises(octofold.InvalidArgumentError, match="got out_unaligned"):
        tuning.run("gemm: m 5, n 64, k 256, out_unaligned", device="cpu")


@pytest.mark.parametrize("file", sorted(TABLES.iterdir()), ids=lambda file: file.stem)
def test_tables_that_come_along_gain(file):
    products = json.loads(file.read_text())["products"]
    assert len(products) > 20
    for key, choice in products.items():
        assert tuning.complete(key) == key
        assert choice["candidate"] in tuning.candidates(key)
        assert choice["candidate"] != tuning.planned(key)
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
        tuning.planned(f"{PROBLEM}, a float32")
