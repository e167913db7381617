"""The operations of bench/gpu, as far as they go without a GPU; their times mean nothing there."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import octofold
import pytest

from tests.project.project_support import REPOSITORY, outcome, run

torch = pytest.importorskip("torch")

FOLDER = REPOSITORY / "bench" / "gpu"
RUN = FOLDER / "run.py"
OPERATIONS = sorted(
    path.stem
    for path in (FOLDER / "operations").glob("*.py")
    if "\ndef measure(" in path.read_text(encoding="utf-8")
)
# Operations that a CPU can run: the options that make them short, and the sections that write
# lines.
ON_A_CPU = {
    "attention": ([], {"attention"}),
    "casts": (["--only", "1x128 deepgemm", "rms norm"], {"cast"}),
    "diffusers_dit": ([], {"diffusers"}),
    "experts": (["--no-peers"], {"layer", "few"}),
    "gemm": (["1/20,256,512"], {"gemm"}),
    "gemm_fused": ([], {"gemm with cast", "gated gemm"}),
    "grouped": (["--no-peers"], {"grouped"}),
    "grouped_weight_only": ([], {"grouped-weight-only"}),
    "linear": (
        ["--no-torchao", "--no-compiled", "--recipes", "rowwise", "--tokens", "3"],
        {"layer", "block", "inference"},
    ),
    "transformers_experts": (["--layers", "1", "--only", "eager"], {"eager"}),
    "transformers_model": (
        ["--layers", "1", "--only", "prefill", "lora"],
        {"prefill", "lora"},
    ),
    "weight_only": ([], {"weight-only"}),
}
# Two ranks run these, on gloo: options and sections, too.
PARALLEL_ON_A_CPU = {
    "parallel_experts": (
        "--layers qwen3 --hidden 256 --inner 128 --experts 16 --tokens 40 --rounds 2",
        {"error", "step"},
    ),
    "parallel_fsdp": (
        "--tokens 128 --layers 1 --hidden 1024 --inner 1024 --rounds 2",
        {"fsdp"},
    ),
    "parallel_layers": (
        "--no-compiled --recipes blockwise --rounds 2",
        {"errors", "parallel layer"},
    ),
}
ONLY_ON_A_GPU = {"parallel_products", "regret"}


def test_an_operation_is_tried_or_needs_a_gpu():
    assert sorted([*ON_A_CPU, *PARALLEL_ON_A_CPU, *ONLY_ON_A_GPU]) == OPERATIONS


def test_the_runner_names_the_operations():
    said = run(sys.executable, RUN, "--help")
    assert all(name in said for name in OPERATIONS)
    unknown = outcome(sys.executable, RUN, "none")
    assert unknown.returncode == 2
    assert "gemm" in unknown.stdout


@pytest.mark.parametrize("operation", OPERATIONS)
def test_help(operation, monkeypatch, capsys):
    if operation.startswith("diffusers"):
        pytest.importorskip("diffusers")
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module(f"operations.{operation}")
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module("common.run").parsed(module, ["--help"])
    assert f"bench/gpu/run.py {operation}" in capsys.readouterr().out


@pytest.mark.parametrize("script", ["compare_wheels.py", "jax_programs.py"])
def test_help_of_scripts_of_their_own(script):
    if script.startswith("jax"):
        pytest.importorskip("jax_tvm_ffi")
    assert f"bench/gpu/{script}" in run(sys.executable, FOLDER / script, "--help")


@pytest.mark.slow
@pytest.mark.parametrize("operation", ON_A_CPU)
def test_everything_is_right_and_measured(operation, tmp_path):
    if operation.startswith("diffusers"):
        pytest.importorskip("diffusers")
    path = tmp_path / "results.jsonl"
    arguments, sections = ON_A_CPU[operation]
    run(sys.executable, RUN, operation, path, "--device", "cpu", "--rounds", "2", *arguments)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["section"] == "environment"
    assert {line["section"] for line in lines[1:]} - {"missing"} == sections


@pytest.mark.slow
@pytest.mark.parametrize("operation", PARALLEL_ON_A_CPU)
def test_everything_is_right_and_measured_on_two_ranks(operation, tmp_path):
    path = tmp_path / "results.jsonl"
    arguments, sections = PARALLEL_ON_A_CPU[operation]
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    run(*torchrun, "--nproc-per-node", "2", RUN, operation, path, *arguments.split())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (lines[0]["section"], lines[0]["ranks"]) == ("environment", 2)
    assert {line["section"] for line in lines[1:]} == sections


@pytest.mark.slow
def test_jax_programs_are_right():
    pytest.importorskip("jax_tvm_ffi")
    script = FOLDER / "jax_programs.py"
    lines = run(sys.executable, script, "--device", "cpu", "--shape", "32,64,256").splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["product", "with", "step"]


@pytest.mark.slow
def test_two_builds_take_turns(tmp_path):
    for name in ("old", "new"):
        shutil.copytree(Path(octofold.__file__).parent, tmp_path / name / "octofold")
    command = ("--device", "cpu", "--rounds", "2", "--shape", "20,256,512", "--bound", "1000")
    sites = (tmp_path / "old", tmp_path / "new")
    said = run(sys.executable, FOLDER / "compare_wheels.py", *sites, *command)
    assert "products 20,256,512" in said
    assert "octofold.quantize(out=)" in said


def test_the_limit_of_time_ends_a_run(tmp_path):
    path = tmp_path / "results.jsonl"
    output = run(sys.executable, RUN, "gemm", path, "--device", "cpu", "--seconds", "0")
    assert "stopped after 0 s" in output
    assert len(path.read_text().splitlines()) == 1


def test_a_wrong_result_of_ours_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    common = importlib.import_module("common.run")
    measure = importlib.import_module("common.measure")
    gemm = importlib.import_module("operations.gemm")
    options = common.parsed(gemm, [str(tmp_path / "x.jsonl"), "--device", "cpu", "--rounds", "2"])
    with common.Run(options) as made:
        for name, error in (("right", 1e-3), ("wrong", 1.0), ("unwritten", float("nan"))):
            build = measure.Build(
                name,
                lambda error=error: measure.Implementation([lambda: None], lambda: error),
                ours=True,
            )
            found = measure.measure(made, "test", name, [build])
            assert list(found) == (["right"] if name == "right" else [])
            assert made.exit_code == (name != "right")
