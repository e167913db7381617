"""Fresh random numbers for each run: the seed is in the header, --seed repeats a run. And which
tests run: --quarantine=without leaves those of quarantine.txt out, --quarantine=only runs no
others."""

import secrets
from pathlib import Path

import numpy as np
import pytest

QUARANTINE = Path(__file__).parent / "quarantine.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of the random inputs")
    parser.addoption("--quarantine", choices=["without", "only"], help="of tests/quarantine.txt")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--seed") is None:
        config.option.seed = secrets.randbits(32)


def pytest_report_header(config: pytest.Config) -> str:
    return f"octofold random inputs: --seed={config.getoption('--seed')}"


def quarantined() -> tuple[str, ...]:
    """What identifiers of tests begin with."""
    lines = QUARANTINE.read_text().splitlines()
    return tuple(line.split()[1] for line in lines if line.startswith("pytest "))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--quarantine")
    if wanted is None:
        return
    names = quarantined()
    left_out = [item for item in items if item.nodeid.startswith(names) != (wanted == "only")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid.startswith(names) == (wanted == "only")]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    # Of the test's name too, so that a test alone sees what it sees among all.
    seed = request.config.getoption("--seed")
    return np.random.default_rng([seed, *request.node.name.encode()])
