"""Groups of two and four processes, for a module of tests."""

import os

import pytest

from tests.python.distributed.rank_processes import DEVICE, Processes

# Changes that another version of torch brings show with two processes: the quick tests, those of
# the matrix, leave four out where both do the same.
SIZES = [
    pytest.param(2, id="2 processes"),
    pytest.param(4, id="4 processes", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=SIZES)
def processes(request):
    yield from _processes(request.param)


@pytest.fixture(scope="module")
def two_processes():
    yield from _processes(2)


@pytest.fixture(scope="module")
def four_processes():
    yield from _processes(4)


def _processes(size):
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    if DEVICE == "cuda" and torch.cuda.device_count() < size:
        pytest.skip(f"{size} GPUs")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    started = Processes(size)
    yield started
    started.stop()
