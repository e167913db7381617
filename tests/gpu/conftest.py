"""The GPU's tests. gpu_support.py says when they are skipped, docs/gpu.md how to run them."""

import os
from pathlib import Path

import pytest


class Failures:
    """Says them as they come: a run on a lent machine may be cut off before it says anything."""

    def __init__(self, config):
        self._config = config

    def pytest_runtest_logreport(self, report):
        if report.failed:
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            reporter.write_line(f"\n{report.nodeid}: {report.longreprtext}")


_OTHERS = {"PYTEST_XDIST_WORKER", "OCTOFOLD_TARGET"}


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # xdist's workers hand theirs on
        config.pluginmanager.register(Failures(config))


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("times") and not _OTHERS.isdisjoint(os.environ):
            reason = "its times mean nothing beside other tests, or as another GPU"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def generator(rng):
    """torch's random numbers on the tests' device, seeded by --seed and the test's name."""
    from tests.gpu.gpu_support import DEVICE, torch

    return torch.Generator(DEVICE).manual_seed(int(rng.integers(2**63)))
