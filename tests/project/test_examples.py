"""The examples on the CPU, as the gallery runs them, and with more arguments. Training a language
model is in test_training_example.py.

A command of the gallery runs once for the site's build and for these tests, until something that it
depends on changes (scripts/example_runs.py).
"""

import re
import sys

import example_runs
import octofold
import pytest

from tests.project.code_blocks import GALLERY, blocks
from tests.project.project_support import EXAMPLES, refused, run

pytest.importorskip("torch")

COMMANDS = [
    example_runs.command_of(block.code) for block in blocks(GALLERY) if block.language == "console"
]
CACHE = EXAMPLES / "generate_with_fp8_cache.py", "--device", "cpu"
EXPERTS = EXAMPLES / "mixture_of_experts.py", "--device", "cpu", "--tokens", "12"


def of_the_gallery(program):
    """The output of the gallery's run of a program."""
    command = next(command for command in COMMANDS if program in command)
    return example_runs.run(command).output


def test_every_example_is_in_the_gallery():
    programs = [*EXAMPLES.glob("*.py"), *(EXAMPLES.parent / "cpp").glob("*.cpp")]
    for program in programs:
        assert any(program.name in command for command in COMMANDS), program


def test_a_cache_in_fp8_gives_the_tokens_of_plain_attention():
    output = of_the_gallery("generate_with_fp8_cache.py")
    assert "same tokens as plain attention over the same codes: 12 of 12" in output
    bytes_ = re.search(r"cache: (\d+) bytes in FP8, (\d+) in FP16", output)
    assert bytes_
    assert 2 * int(bytes_[1]) == int(bytes_[2])


def test_more_tokens_than_the_context_are_refused():
    assert "--tokens: expected 1 to" in refused(*CACHE, "--tokens", "2000")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "chosen"), [(None, "8 of 10"), ("deepseek-v3", "2 of 2")])
def test_errors_of_experts_are_those_of_fp8(model, chosen):
    if model is None:
        output = of_the_gallery("mixture_of_experts.py")
    else:
        output = run(sys.executable, *EXPERTS, "--model", model, "--experts", "2")
    assert f"12 tokens to {chosen} experts" in output
    line = r"^(?:relative error against FP32|of the gradient by \w+): (\d\.\d+)$"
    errors = [float(error) for error in re.findall(line, output, re.M)]
    assert len(errors) == 5, output
    assert all(0.02 < error < 0.12 for error in errors), output


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(EXPERTS, marks=pytest.mark.slow, id="torch"),
        pytest.param((EXAMPLES / "train_with_jax.py", "--steps", "1"), id="jax"),
    ],
)
def test_a_recipe_that_is_none_is_refused(program):
    if "jax" in program[0].name:
        pytest.importorskip("jax_tvm_ffi")
    with pytest.raises(octofold.InvalidArgumentError, match="recipe"):
        refused(*program, "--recipe", "none")


@pytest.mark.slow
def test_main_grad_trains_as_grad_does():
    output = of_the_gallery("main_grad_optimizer.py")
    losses = re.findall(r"^loss with .*: +(\d\.\d+) -> (\d\.\d+)$", output, re.M)
    assert len(losses) == 2, output
    assert all(float(last) < 0.8 * float(first) for first, last in losses)


def test_a_rollout_has_the_bits_of_its_trainer():
    output = of_the_gallery("refit_rollout.py")
    lines = re.findall(r"^step \d+: loss (\d\.\d+), 0 log-probabilities differ$", output, re.M)
    assert len(lines) == 20, output
    assert float(lines[-1]) < 0.5 * float(lines[0])


def test_jax_trains_in_fp8_as_in_fp32():
    pytest.importorskip("jax_tvm_ffi")
    output = of_the_gallery("train_with_jax.py")
    losses = re.findall(r"^loss in FP\d+: (\d\.\d+) -> (\d\.\d+)$", output, re.M)
    assert len(losses) == 2, output
    assert all(float(last) < 0.8 * float(first) for first, last in losses), output
    (error,) = re.findall(
        r"^relative error of answers with weights in FP8: (\d\.\d+)$", output, re.M
    )
    assert 0.02 < float(error) < 0.15


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(example_runs, "KEPT", tmp_path / "examples")
    return tmp_path


def test_a_run_is_kept(kept):
    command = f"date +%N >> {kept}/log; ls; echo '<svg/>' > chart.svg"
    first, second = example_runs.run(command), example_runs.run(command)
    assert first == second
    assert len((kept / "log").read_text().splitlines()) == 1
    assert "examples" in first.output  # it is beside the examples
    assert [path.name for path in first.pictures] == ["chart.svg"]


def test_another_command_or_library_is_another_run(monkeypatch):
    before = example_runs.key("echo")
    assert example_runs.key("echo") == before
    assert example_runs.key("echo 1") != before

    class Other:
        def read_text(self, name):
            return "another wheel"

    monkeypatch.setattr(example_runs, "distribution", lambda name: Other())
    assert example_runs.key("echo") != before


def test_a_failure_is_not_kept(kept):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no luck"):
            example_runs.run("echo no luck; false")
    assert not list((kept / "examples").glob("*/output.txt"))


def test_commands_of_several_lines():
    assert example_runs.command_of("$ echo a \\\n  b\n") == "echo a    b"
