"""The GPU's tests. gpu_support.py says when they are skipped, docs/gpu.md how to run them."""

import pytest


@pytest.fixture
def generator(rng):
    """torch's random numbers on the tests' device, seeded by --seed and the test's name."""
    from gpu_support import DEVICE, torch

    return torch.Generator(DEVICE).manual_seed(int(rng.integers(2**63)))
