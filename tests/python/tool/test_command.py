"""The command line itself: help, errors, exit codes, info, quantize."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import octofold
import pytest
from octofold_tool.__main__ import main
from safetensors import deserialize
from safetensors.numpy import save_file


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `octofold ARGUMENTS`."""
    try:
        code = main(arguments)
    except SystemExit as exit_:  # argparse's --help and errors
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["demo", "info", "bench", "quantize"]),
        (["demo"], ["128x128", "--output-dir", "--text"]),
        (["info"], ["driver", "NVRTC", "--json"]),
        (["bench", "gemm"], ["--suite", "deepseek-v3", "llama-70b", "square", "--shape"]),
        (["quantize"], ["weight_scale_inv", "--skip", "*embed*", "lm_head", ".index.json"]),
    ],
)
def test_help_says_what_for(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    code, out, _ = run(capsys, *arguments, "--help")
    assert code == 0
    for word in words:
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["bench", "gemm", "--suite", "cubes"], "invalid choice: 'cubes'"),
        (["bench", "gemm", "--shape", "1,2"], "expected M,N,K, each at least 1, got '1,2'"),
        (["bench", "gemm", "--shape", "1,0,2"], "expected M,N,K"),
        (["bench", "gemm", "--granularity", "1x128"], "expected two"),
        (["bench", "gemm", "--granularity", "1x128,tensor"], "'b.granularity'"),
        (["bench", "gemm", "--dtype", "e4m3,int8"], "int8"),
        (["bench", "gemm", "--rounds", "1"], "at least 3"),
        (["bench", "gemm", "--max-seconds", "0"], "every shape would take more than 0 s"),
        (["bench", "gemm", "--json", "/no/such/folder/x.json"], "/no/such/folder does not exist"),
        (["demo", "--text", "/no/such/page.txt"], "/no/such/page.txt"),
        (["quantize", "in.safetensors"], "required: OUT"),
        (["quantize", "/no/such.safetensors", "out.safetensors"], "/no/such.safetensors"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("octofold")
    assert err.count("\n") == 1
    assert message in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[1] == f"octofold {octofold.__version__}\n"


def test_info_says_what_is_and_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "info")
    for word in ("OpenBLAS", "threads", "driver", "nvrtc"):
        assert word in text
    _, out, _ = run(capsys, "info", "--json")
    document = json.loads(out)
    assert document["cpu"]["available"] is True
    assert document["driver"]["detail"]


def test_missing_extra_names_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    code, _, err = run(capsys, "bench", "gemm", "--shape", "8,8,8")
    assert code == 2
    assert err == "octofold: this needs rich: pip install 'octofold[tool]'\n"


def test_interrupt_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(octofold, "info", interrupted)
    assert run(capsys, "info") == (130, "", "octofold: interrupted\n")


def test_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m octofold_tool info --json | true"
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, b"")


def test_quantize_writes_what_safetensors_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rng: np.random.Generator
) -> None:
    weight = rng.standard_normal((200, 300)).astype(np.float32)
    tensors = {
        "layer.weight": weight,
        "layer.bias": np.ones(200, np.float32),
        "word_embeddings.weight": rng.standard_normal((50, 30)).astype(np.float32),
        "head.weight": rng.standard_normal((10, 300)).astype(np.float32),
    }
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file(tensors, source)

    code, out, _ = run(capsys, "quantize", str(source), str(target), "--skip", "head.*")

    assert code == 0
    assert "1 weights to FP8, 3 tensors copied" in out
    written = dict(deserialize(target.read_bytes()))  # safetensors.numpy knows no FP8
    assert set(written) == {*tensors, "layer.weight_scale_inv"}
    assert written["layer.weight_scale_inv"]["shape"] == [2, 3]
    assert written["layer.weight"]["dtype"] == "F8_E4M3"
    expected = octofold.quantize(weight, granularity="128x128")
    assert bytes(written["layer.weight"]["data"]) == expected.data.tobytes()
    assert bytes(written["head.weight"]["data"]) == tensors["head.weight"].tobytes()

    again = run(capsys, "quantize", str(source), str(target))
    assert again[0] == 2
    assert "out.safetensors" in again[2]


def test_quantize_no_default_skips(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_file({"embed.weight": np.ones((4, 4), np.float32)}, tmp_path / "in.safetensors")
    target = tmp_path / "out.safetensors"
    run(capsys, "quantize", str(tmp_path / "in.safetensors"), str(target), "--no-default-skips")
    assert "embed.weight_scale_inv" in dict(deserialize(target.read_bytes()))
