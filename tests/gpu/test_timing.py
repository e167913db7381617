"""octofold._timing on a GPU: graphs, events, and captures that fail."""

import pytest
from octofold._timing import EVENTS, GRAPH, Method, NotCapturableError, captured, timings

from tests.gpu.gpu_support import DEVICE, needs_gpu, torch

pytestmark = needs_gpu


@pytest.mark.times
def test_graphs_and_events_agree():
    x, out = (torch.randn(4096, 4096, device=DEVICE) for _ in "ab")
    calls = [lambda: torch.mm(x, x, out=out)] * 4
    calls[0]()
    found = timings({method.kind: method.sampler(calls) for method in (GRAPH, EVENTS)}, rounds=5)
    assert 0.8 < found["graph"].microseconds / found["events"].microseconds < 1.25


@pytest.mark.times
def test_what_lasts_is_no_faster_than_a_burst():
    x, out = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in "ab")
    calls = [lambda: torch.mm(x, x, out=out)]
    calls[0]()
    lasting = Method("graph", rest=0.1, sustained=0.3)
    found = timings({"burst": GRAPH.sampler(calls), "lasting": lasting.sampler(calls)}, rounds=3)
    assert 0.95 < found["lasting"].microseconds / found["burst"].microseconds < 2


def test_a_replay_writes_what_it_returns():
    x = torch.ones(8, device=DEVICE)
    double = captured(lambda: 2 * x)
    x.fill_(3)
    assert torch.equal(double(), torch.full_like(x, 6))


def test_a_capture_that_fails_is_said_and_left():
    x, stream = torch.ones(8, device=DEVICE), torch.cuda.current_stream()
    with pytest.raises(NotCapturableError):
        captured(lambda: x.sum().item())
    assert torch.cuda.current_stream() == stream
    assert torch.equal(captured(lambda: x + 1)(), torch.full_like(x, 2))
