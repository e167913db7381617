"""The examples on the CPU, as the gallery runs them, and with more arguments. Training a language
model is in test_training_example.py.

A command of the gallery runs once for the site's build and for these tests (example_runs.py).
"""

import re
import sys

import octofold
import pytest

from tests.project.gallery_runs import COMMANDS, of_the_gallery
from tests.project.project_support import EXAMPLES, refused, run

pytest.importorskip("torch")

CACHE = EXAMPLES / "generate_with_fp8_cache.py", "--device", "cpu"
EXPERTS = EXAMPLES / "mixture_of_experts.py", "--device", "cpu", "--tokens", "12"


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


@pytest.mark.slow
def test_a_recipe_that_is_none_is_refused():
    with pytest.raises(octofold.InvalidArgumentError, match="recipe"):
        refused(*EXPERTS, "--recipe", "none")


@pytest.mark.slow
def test_main_grad_trains_as_grad_does():
    output = of_the_gallery("main_grad_optimizer.py")
    losses = re.findall(r"^loss with .*: +(\d\.\d+) -> (\d\.\d+)$", output, re.M)
    assert len(losses) == 2, output
    assert all(float(last) < 0.8 * float(first) for first, last in losses)
