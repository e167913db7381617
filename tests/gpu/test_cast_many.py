"""Many casts by one launch on the GPU: casts of weights that a step of the optimizer renews, in
graphs too."""

import copy
import itertools

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, captured, needs, needs_gpu, torch
from tests.python.nn.expert_support import choices

nn = octofold.nn
BF16 = torch.bfloat16


def models(recipe, dtype=BF16):
    """Linear layers, a gated MLP of three, experts; and the same again."""
    options = {"recipe": recipe, "device": DEVICE, "dtype": dtype}
    linears = [
        nn.Linear(*size, force_fp8=True, **options)
        for size in ((512, 256), (512, 256), (256, 512), (512, 512))
    ]
    model = torch.nn.ModuleDict(
        {
            "linear": linears[3],
            "mlp": nn.MLP.from_linears(*linears[:3]),
            "experts": nn.Experts(512, 256, 8, **options),
        }
    )
    return model, copy.deepcopy(model)


def forward(model, x, ids, weights):
    return model["experts"](model["mlp"](model["linear"](x)), ids, weights)


def routed(tokens=96):
    ids = choices((tokens,), 8, 2, empty=3).to(DEVICE)
    return normal_x(tokens), ids, torch.rand((tokens, 2), device=DEVICE)


def normal_x(tokens):
    return torch.randn(tokens, 512, device=DEVICE).to(BF16)


def optimizer_of(model):
    on_gpu = DEVICE.type == "cuda"
    return torch.optim.AdamW(model.parameters(), 1e-3, capturable=on_gpu)


def train(model, optimizer, x, ids, weights):
    optimizer.zero_grad()
    y = forward(model, x, ids, weights)
    y.square().mean().backward()
    optimizer.step()
    return y.detach()


def assert_same_weights(model, other):
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)


@needs_gpu
@needs("grouped products")
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
@pytest.mark.parametrize("steps_in_graph", [True, False])
def test_graphs_read_casts_that_steps_renew(recipe, steps_in_graph):
    """Replays, whose routing, data and weights change, beside eager steps that cast anew."""
    model, anew = models(recipe)
    optimizer, other = optimizer_of(model), optimizer_of(anew)
    handle = nn.cast_after_step(optimizer, model)
    x, ids, weights = routed()

    def call():
        optimizer.zero_grad(set_to_none=False)
        y = forward(model, x, ids, weights)
        y.square().mean().backward()
        if steps_in_graph:
            optimizer.step()
        return y.detach()

    graph, y = captured(call)
    anew.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(4):
        for tensor, new in zip((x, ids, weights), routed(), strict=True):
            tensor.copy_(new)
        graph.replay()
        if not steps_in_graph:
            optimizer.step()
        assert torch.equal(y, train(anew, other, x, ids, weights))
        assert_same_weights(model, anew)
        with torch.no_grad():
            assert torch.equal(forward(model, x, ids, weights), forward(anew, x, ids, weights))
    with torch.no_grad():
        for parameter in itertools.chain(model.parameters(), anew.parameters()):
            parameter.mul_(1.5)
    handle.casts()
    graph.replay()
    assert torch.equal(y, train(anew, other, x, ids, weights))
