"""The scripts of bench/gpu, as far as they go without a GPU; their times mean nothing there."""

import importlib
import itertools
import json
import runpy
import sys

import pytest

from tests.project.project_support import REPOSITORY, run

torch = pytest.importorskip("torch")

FOLDER = REPOSITORY / "bench" / "gpu"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
# Scripts that a CPU can run: the options that make them short, and the sections that write lines.
ON_A_CPU = {
    "advisor.py": (["--models", "dit"], {"advisor"}),
    "attention.py": ([], {"attention"}),
    "batch_invariance.py": ([], {"gemm", "weight-only", "attention"}),
    "casts.py": (["--only", "1x128"], {"cast"}),
    "diffusers_dit.py": ([], {"diffusers"}),
    "dot.py": ([], {"dot"}),
    "gemm_cast.py": ([], {"gemm with cast"}),
    "experts.py": (["--no-peers"], {"layer", "step", "few", "few casts", "kept", "host"}),
    "fused_casts.py": (["--only", "norm"], {"fused cast"}),
    "gated_gemm.py": ([], {"gated gemm"}),
    "gemm.py": (["1/20,256,512"], {"gemm"}),
    "grouped.py": (["--no-peers"], {"grouped"}),
    "layerwise.py": (["--only", "layers"], {"layerwise"}),
    "linear.py": (
        ["--no-torchao", "--no-compiled", "--recipes", "rowwise", "--tokens", "3"],
        {"layer", "products", "block", "inference", "host"},
    ),
    "transformers_experts.py": (
        ["--layers", "1", "--only", "eager", "parts"],
        {"eager", "parts"},
    ),
    "weight_casts.py": ([], {"weight casts", "host"}),
    "weight_only.py": ([], {"weight-only"}),
    "grouped_weight_only.py": ([], {"grouped-weight-only"}),
}
# Scripts that two ranks run, on gloo: options and sections, too.
PARALLEL_ON_A_CPU = {
    "parallel_experts.py": (
        "--layers qwen3 --hidden 256 --inner 128 --experts 16 --tokens 40 --rounds 2",
        {"error", "step", "exchange", "traffic"},
    ),
    "parallel_fsdp.py": (
        "--tokens 128 --layers 1 --hidden 1024 --inner 1024 --rounds 2",
        {"fsdp"},
    ),
    "parallel_layers.py": (
        "--no-compiled --recipes blockwise --rounds 2",
        {"errors", "parallel layer"},
    ),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, monkeypatch, capsys):
    if script.startswith("jax"):
        pytest.importorskip("jax_tvm_ffi")
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(FOLDER / script), run_name="__main__")
    assert f"bench/gpu/{script}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("script", ON_A_CPU)
def test_everything_is_right_and_measured(script, tmp_path):
    if script.startswith("diffusers"):
        pytest.importorskip("diffusers")
    path = tmp_path / "results.jsonl"
    arguments, sections = ON_A_CPU[script]
    options = ("--device", "cpu", "--rounds", "2", *arguments)
    run(sys.executable, FOLDER / script, path, *options)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["section"] == "environment"
    assert {line["section"] for line in lines[1:]} - {"missing"} == sections


@pytest.mark.slow
@pytest.mark.parametrize("script", PARALLEL_ON_A_CPU)
def test_everything_is_right_and_measured_on_two_ranks(script, tmp_path):
    path = tmp_path / "results.jsonl"
    arguments, sections = PARALLEL_ON_A_CPU[script]
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    run(*torchrun, "--nproc-per-node", "2", FOLDER / script, path, *arguments.split())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (lines[0]["section"], lines[0]["ranks"]) == ("environment", 2)
    assert {line["section"] for line in lines[1:]} == sections


@pytest.mark.slow
def test_jax_programs_are_right():
    pytest.importorskip("jax_tvm_ffi")
    script = FOLDER / "jax_programs.py"
    lines = run(sys.executable, script, "--device", "cpu", "--shape", "32,64,256").splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["product", "with", "step"]


def test_the_limit_of_time_ends_a_run(tmp_path):
    path = tmp_path / "results.jsonl"
    output = run(sys.executable, FOLDER / "dot.py", path, "--device", "cpu", "--seconds", "0")
    assert "stopped after 0 s" in output
    assert len(path.read_text().splitlines()) == 1


def test_a_wrong_result_of_ours_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "x.jsonl"), "--device", "cpu"])
    common = importlib.import_module("common.run")
    measure = importlib.import_module("common.measure")
    parser = common.new_parser("", rounds=2, seconds=9)
    with common.Run(parser.parse_args()) as made:
        for name, error in (("right", 1e-3), ("wrong", 1.0), ("unwritten", float("nan"))):
            build = measure.Build(
                name,
                lambda error=error: measure.Implementation([lambda: None], lambda: error),
                ours=True,
            )
            found = measure.measure(made, "test", name, [build])
            assert list(found) == (["right"] if name == "right" else [])
            assert made.exit_code == (name != "right")


def test_rules_of_the_advisors_script_are_torchaos(monkeypatch):
    filters = pytest.importorskip("torchao.float8")
    monkeypatch.syspath_prepend(FOLDER)
    script = importlib.import_module("advisor")
    sizes = (8, 16, 1000, 1024, 1040, 2048, 2064, 4096, 4112, 11008)
    for recipe in ("rowwise", "tensorwise"):
        theirs = filters._auto_filter_for_recipe(recipe, filter_fqns=[])
        _, ours = script.RULES[f"torchao {recipe}"]
        for out_features, in_features in itertools.product(sizes, sizes):
            layer = torch.nn.Linear(in_features, out_features, device="meta")
            assert ours(out_features, in_features) == theirs(layer, "layer")
