"""Fresh random numbers for each run: the seed is in the header, --seed or OCTOFOLD_TEST_SEED, which
C++ tests read too, repeats a run."""

import os
import secrets

import numpy as np
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of the random inputs")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--seed") is None:
        config.option.seed = int(os.environ.get("OCTOFOLD_TEST_SEED") or secrets.randbits(32))


def pytest_report_header(config: pytest.Config) -> str:
    return f"octofold random inputs: --seed={config.getoption('--seed')}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    # The test's name counts too, so that a test alone sees what it sees among all.
    seed = request.config.getoption("--seed")
    return np.random.default_rng([seed, *request.node.name.encode()])
