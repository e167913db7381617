"""The example of training with JAX, on the CPU."""

import re

import octofold
import pytest

from tests.project.gallery_runs import of_the_gallery
from tests.project.project_support import EXAMPLES, refused

pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")

SCRIPT = EXAMPLES / "train_with_jax.py"


def test_fp8_trains_as_fp32_does():
    output = of_the_gallery("train_with_jax.py")
    losses = re.findall(r"^loss in FP\d+: (\d\.\d+) -> (\d\.\d+)$", output, re.M)
    assert len(losses) == 2, output
    assert all(float(last) < 0.8 * float(first) for first, last in losses), output
    (error,) = re.findall(
        r"^relative error of answers with weights in FP8: (\d\.\d+)$", output, re.M
    )
    assert 0.02 < float(error) < 0.15


def test_a_recipe_that_is_none_is_refused():
    with pytest.raises(octofold.InvalidArgumentError, match="recipe"):
        refused(SCRIPT, "--steps", "1", "--recipe", "none")
