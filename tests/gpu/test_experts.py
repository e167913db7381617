"""Expert layers on a GPU: FP8 weights, edges, wrong ids, experts without tokens, and graphs whose
routing changes from replay to replay. What all layers do is test_layers.py's."""

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, captured, needs_gpu, skip_without, torch
from tests.gpu.layer_support import (
    BF16,
    EXPERTS,
    HIDDEN,
    INNER,
    SLOTS,
    TOKENS,
    assert_equal,
    random,
    routing,
    step,
)
from tests.python.nn.expert_support import poisoned_memory
from tests.python.nn.layer_support import relative_error

skip_without("grouped products")

nn = octofold.nn
RECIPES = ("blockwise", "rowwise", "tensorwise")


def experts_of(recipe="blockwise", **options):
    return nn.Experts(HIDDEN, INNER, EXPERTS, recipe=recipe, **BF16 | options)


def test_fp8_weights():
    """A checkpoint's as they are: what the weights give that these are the casts of."""
    module = experts_of()
    frozen = [
        octofold.quantize(weight.detach(), "128x128 torchao")
        for weight in (module.gate_up_proj, module.down_proj)
    ]
    (ids, weights), x = routing(), random(TOKENS, HIDDEN)
    with torch.no_grad():
        made = nn.Experts.from_weights(*frozen)(x, ids, weights)
        assert torch.equal(made, module(x, ids, weights))
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for leaf, layer in zip(leaves, (module, nn.Experts.from_weights(*frozen)), strict=True):
        layer(leaf, ids, weights).sum().backward()
    assert torch.equal(leaves[0].grad, leaves[1].grad)


def test_edges():
    """No tokens; all that goes nowhere; all that goes to one expert."""
    module = experts_of(bias=True)
    nowhere = torch.full((7, SLOTS), -1, dtype=torch.int32, device=DEVICE)
    weights = torch.rand((7, SLOTS), device=DEVICE)
    x = random(7, HIDDEN)
    for result in step(module, (x, nowhere, weights), x):
        assert not result.any()
    for result in step(module, (x[:0], nowhere[:0], weights[:0]), x[:0]):
        assert not result.any()
    ids, weights = torch.full_like(nowhere, 3), torch.full_like(weights, 1 / SLOTS)
    y, *_ = step(module, (x, ids, weights), x)
    once, *_ = step(module, (x, ids[:, :1].contiguous(), torch.ones_like(weights[:, :1])), x)
    assert relative_error(y, once) < 2**-8


@needs_gpu
def test_wrong_ids_go_nowhere():
    module = experts_of()
    x, dy = random(TOKENS, HIDDEN), random(TOKENS, HIDDEN)
    ids, weights = routing()
    wrong = torch.where(ids < 0, torch.randint_like(ids, EXPERTS, 2**31 - 1), ids)
    wrong[ids < 0] *= torch.randint_like(wrong[ids < 0], 2) * 2 - 1
    expected = step(module, (x, ids, weights), dy)
    assert_equal(step(module, (x, wrong, weights), dy), expected)
    wide = torch.where(ids < 0, wrong.long() << 31, ids.long())
    assert_equal(step(module, (x, wide, weights), dy), expected)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("recipe", RECIPES)
def test_nobody_reads_experts_without_tokens(recipe, tokens):
    """Their codes and scales, which are not written, are NaN."""
    module, x, dy = experts_of(recipe), random(tokens, HIDDEN), random(tokens, HIDDEN)
    ids, weights = routing(tokens, empty=EXPERTS - SLOTS)
    with nn.keep_casts(module):
        expected = step(module, (x, ids, weights), dy)
        with torch.no_grad():
            y = module(x, ids, weights)
    with poisoned_memory():
        assert_equal(step(module, (x, ids, weights), dy), expected)
        with torch.no_grad():
            assert torch.equal(module(x, ids, weights), y)


@needs_gpu
def test_graph_of_100_routings():
    """The choice in it, forward and backward, of logits that change; weights that are cast in each
    replay."""
    module, x, dy = experts_of(), random(TOKENS, HIDDEN), random(TOKENS, HIDDEN)
    logits = random(TOKENS, EXPERTS, dtype=torch.float32)

    def call():
        module.zero_grad()
        leaves = [t.detach().clone().requires_grad_() for t in (x, logits)]
        ids, weights = nn.route(leaves[1], SLOTS, "sigmoid", True, None, 4, 2, 2.5)
        y = module(leaves[0], ids, weights)
        y.backward(dy)
        gradients = [t.grad.clone() for t in (*leaves, *module.parameters())]
        return [y.detach(), ids, *gradients]

    graph, results = captured(call)
    seen = set()
    for _ in range(100):
        popular = random(1, EXPERTS, dtype=torch.float32)
        logits.copy_(random(TOKENS, EXPERTS, dtype=torch.float32) + 2 * popular)
        graph.replay()
        actual = [t.clone() for t in results]
        assert_equal(actual, call())
        seen.add(tuple(torch.bincount(actual[1].flatten(), minlength=EXPERTS).tolist()))
    assert len(seen) == 100


@needs_gpu
def test_graph_of_inference():
    """Few tokens; FP8 weights, which nothing casts."""
    module = experts_of()
    frozen = nn.Experts.from_weights(
        *(octofold.quantize(weight.detach(), "128x128 torchao") for weight in module.parameters())
    )
    x, (ids, weights) = random(8, HIDDEN), routing(8)

    def call():
        with torch.no_grad():
            return frozen(x, ids, weights)

    graph, y = captured(call)
    for _ in range(20):
        x.copy_(random(8, HIDDEN))
        ids.copy_(routing(8)[0])
        graph.replay()
        assert torch.equal(y, call())
