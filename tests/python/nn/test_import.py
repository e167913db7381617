"""octofold.nn and octofold.linear come with their first use, and torch with them."""

import subprocess
import sys

import octofold
import pytest

pytest.importorskip("torch")


def test_torch_comes_with_the_first_layer():
    script = """
import sys
import octofold
assert "torch" not in sys.modules
assert octofold.linear.__name__ == "linear"
assert octofold.mlp.__name__ == "mlp"
assert octofold.norm_linear.__name__ == "norm_linear"
assert "torch" in sys.modules
assert octofold.nn.recipes.blockwise.name == "blockwise"
assert callable(octofold.nn.convert)
from octofold.nn import Linear
import octofold.nn.recipes
from octofold import *
assert linear is octofold.linear
assert nn is octofold.nn
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


def test_unknown_names():
    with pytest.raises(AttributeError, match="'octofold' has no attribute 'liner'"):
        octofold.liner  # noqa: B018
