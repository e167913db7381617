"""The advisor on a GPU: its plan keeps its bound, and takes the time that it predicts; the layers
that it makes compute. On the CPU (OCTOFOLD_TEST_DEVICE=cpu) what is not of times."""

import copy

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, HALVES, ON_GPU, needs_gpu, skip_without, torch
from tests.python.models.advise_support import make_ids, make_model
from tests.python.nn.layer_support import relative_error

skip_without("products with FP8 weights")
models = octofold.models
DTYPE = getattr(torch, HALVES[-1])
LIMIT = 0.15
"""Largest error of the predicted time relative to the measured one, in a test on a machine that may
be shared; the figure that is wanted, 5 %, is that of bench/gpu/advisor.py (in the tree up to
e4b453a9)."""


def stack(width, hidden, blocks, generator):
    """Linear layers of two sizes, with an addition around each pair."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(width, hidden, bias=False, device=DEVICE, dtype=DTYPE)
            self.down = torch.nn.Linear(hidden, width, device=DEVICE, dtype=DTYPE)

        def forward(self, x):
            y = torch.nn.functional.layer_norm(x, (width,))
            return x + self.down(torch.nn.functional.gelu(self.up(y)))

    return torch.nn.Sequential(*[Block() for _ in range(blocks)])


@pytest.mark.parametrize("max_error", [0.01, 0.5])
def test_a_small_model_keeps_its_bound(max_error):
    model, ids = make_model(device=DEVICE, dtype=DTYPE), make_ids(device=DEVICE)
    target = "bytes"
    plan = models.advise(model, ids, target, max_error=max_error)
    assert plan.machine == octofold.models.advisor.model.machine_of(DEVICE)
    with torch.no_grad():
        expected = model.eval()(ids)["logits"]
        actual = models.apply(model, plan)(ids)["logits"]
    assert relative_error(actual, expected) == pytest.approx(plan.whole.error, rel=0.05, abs=1e-4)
    assert plan.whole.error <= max_error
    if max_error == 0.5:
        assert len(plan.changed) == 5
    assert (plan.timing is not None) == ON_GPU


@pytest.mark.parametrize("way", [*octofold.models.advisor.ways.WAYS])
def test_every_way_computes_what_the_cpu_does(way, generator):
    linear = torch.nn.Linear(384, 640, device=DEVICE, dtype=DTYPE)
    x = torch.randn(70, 384, device=DEVICE, generator=generator).to(DTYPE)
    row = octofold.models.advisor.ways.WAYS[way]
    if why_not := row.why_not(x.device, [DTYPE]):
        pytest.skip(why_not)
    with torch.no_grad():
        actual = row.make(linear)(x)
        expected = row.make(copy.deepcopy(linear).cpu())(x.cpu())
        exact = linear.float()(x.float())
    assert actual.dtype == DTYPE
    assert relative_error(actual.cpu(), expected) < 1e-2
    assert 1e-3 < relative_error(actual, exact) < 0.05


def plan_of(model, inputs, **options):
    plan = models.advise(model, inputs, **options)
    print(octofold.models.text_report(plan))
    return plan


@needs_gpu
@pytest.mark.times
def test_the_time_is_what_was_predicted(generator):
    model = stack(4096, 11008, 3, generator)
    x = torch.randn(4096, 4096, device=DEVICE, generator=generator).to(DTYPE)
    plan = plan_of(model, x, max_error=0.2)
    whole = plan.whole
    assert plan.timing == "CUDA graph"
    assert whole.seconds_predicted == pytest.approx(whole.seconds_planned, rel=LIMIT)
    assert whole.seconds_planned < whole.seconds_own
    assert plan.changed
    assert whole.error <= 0.2
    assert models.Plan.from_json(plan.to_json()) == plan
    before = copy.deepcopy(model)
    with torch.no_grad():
        error = relative_error(models.apply(model, plan)(x), before(x))
    assert error == pytest.approx(whole.error, rel=0.05)


@needs_gpu
def test_small_layers_are_left_alone_where_nothing_is_faster(generator):
    model = stack(64, 64, 2, generator)
    x = torch.randn(16, 64, device=DEVICE, generator=generator).to(DTYPE)
    plan = plan_of(model, x, max_error=0.5)
    assert plan.target == "time"
    assert plan.whole.seconds_planned <= 1.05 * plan.whole.seconds_own


@needs_gpu
def test_a_model_that_no_graph_captures_is_timed_from_python(generator):
    inner = stack(1024, 4096, 2, generator)

    class Waits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            y = self.inner(x)
            return y * float(y.abs().amax() > 0)  # a capture must not wait

    x = torch.randn(8192, 1024, device=DEVICE, generator=generator).to(DTYPE)
    plan = plan_of(Waits(), x, max_error=0.5)
    assert plan.timing == "calls from Python"
    assert any("no CUDA graph" in note for note in plan.notes)
    assert plan.whole.seconds_own > 0
    torch.cuda.synchronize()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@needs_gpu
@pytest.mark.times
def test_decoding_takes_the_bandwidth_of_fp8(generator):
    """One token: whatever reads the weights in FP8 gains."""
    model = stack(4096, 14336, 3, generator)
    x = torch.randn(1, 4096, device=DEVICE, generator=generator).to(DTYPE)
    plan = plan_of(model, x, max_error=0.2)
    assert plan.changed
    assert plan.whole.seconds_planned < 0.9 * plan.whole.seconds_own
    assert plan.whole.seconds_predicted == pytest.approx(plan.whole.seconds_planned, rel=0.15)
