"""Experts between DeepEP's dispatch and combine: buffers made in the layouts of its documentation.

What DeepEP does is stood in for by torch: tokens of two ranks, seen from the second one."""

import octofold
import pytest
import torch
from octofold.distributed.deepep import contiguous_experts, masked_experts

from tests.python.distributed.expert_problems import (
    BLOCKS,
    EXPERTS,
    HIDDEN,
    INNER,
    error,
    leaf,
    problem,
)

RANKS, RANK, PER = 2, 1, EXPERTS // 2
OWN = slice(RANK * PER, (RANK + 1) * PER)


def received(p):
    """The rank's share by Buffer.dispatch(): all tokens that have an expert here, in order."""
    local = p.ids.long() - OWN.start
    local = torch.where((local >= 0) & (local < PER), local, -1)
    tokens = (local >= 0).any(1).nonzero().flatten()
    return tokens, local[tokens], p.weights[tokens]


def pair(x):
    made = octofold.quantize(x, "1x128 torchao")
    return made.data, made.scale


def sums(layer, p, **options):
    """The part of y that comes from the rank's experts."""
    ids = torch.where((p.ids >= OWN.start) & (p.ids < OWN.stop), p.ids, -1).int()
    return layer(p.x, ids, p.weights, p.w13, p.w2, **options)


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
def test_contiguous(recipe, codes):
    p = problem([30, 20], bias=True)
    tokens, ids, weights = received(p)
    x = pair(p.x[tokens]) if codes else p.x[tokens]
    own = (t[OWN] for t in (p.w13, p.w2, p.b13, p.b2))
    w13, w2, b13, b2 = own
    with torch.no_grad():
        y, _ = contiguous_experts(x, ids, weights, w13, w2, recipe=recipe, b13=b13, b2=b2)
    wanted = sums(octofold.experts, p, recipe=recipe, b13=p.b13, b2=p.b2)[tokens]
    if recipe != "tensorwise" and not (codes and recipe == "rowwise"):  # which is cast twice
        assert torch.equal(y, wanted)
    assert error(y, wanted) < 0.05
    assert y.dtype == torch.bfloat16


@pytest.mark.parametrize("codes", [False, True])
def test_contiguous_trains(codes):
    p = problem([30, 20])
    q = p._replace(x=leaf(p.x), weights=leaf(p.weights), w13=leaf(p.w13), w2=leaf(p.w2))
    sums(octofold.experts, q, recipe=BLOCKS).backward(p.dy)
    tokens, ids, weights = received(p)
    take = pair if codes else lambda t: t
    w13, w2 = leaf(p.w13[OWN]), leaf(p.w2[OWN])
    count = int((ids >= 0).sum())
    x, dy = take(p.x[tokens]), take(p.dy[tokens])
    _, backward = contiguous_experts(x, ids, weights, w13, w2, recipe=BLOCKS, rows=count)
    made = backward(dy)
    limit = 0.06 if codes else 0.002
    of_slots = torch.where(ids >= 0, q.weights.grad[tokens], 0)
    assert error(made.x, q.x.grad[tokens]) <= limit
    assert error(made.weights, of_slots) <= limit
    assert error(made.w13, q.w13.grad[OWN]) <= limit
    assert error(made.w2, q.w2.grad[OWN]) <= limit
    assert made.b13 is None
    with torch.no_grad():
        _, backward = contiguous_experts(x, ids, weights, w13, w2)
    with pytest.raises(octofold.InvalidArgumentError, match="no_grad"):
        backward(dy)


def packed(p, places):
    """The memory that Buffer.low_latency_dispatch() gives: for each expert its tokens in the first
    of the places, scales column by column, and what memory held in the others."""
    x = torch.full((PER, places, HIDDEN), float("nan"), dtype=torch.bfloat16)
    counts = torch.zeros(PER, dtype=torch.int32)
    of_places = []
    for e in range(PER):
        tokens, slots = torch.where(p.ids == OWN.start + e)
        x[e, : len(tokens)] = p.x[tokens]
        counts[e] = len(tokens)
        of_places.append((tokens, slots))
    codes, scale = pair(x)
    columns = torch.empty(PER, HIDDEN // 128, places).transpose(1, 2).copy_(scale)
    assert columns.stride() == (places * HIDDEN // 128, 1, places)
    return x, (codes, columns), counts, of_places


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise"])
def test_masked(recipe, codes):
    p = problem([30, 20], bias=True, only=6)
    places = 64
    x, as_codes, counts, of_places = packed(p, places)
    out = torch.full((PER, places, HIDDEN), 7.0, dtype=torch.bfloat16)
    w13, w2, b13, b2 = (t[OWN] for t in (p.w13, p.w2, p.b13, p.b2))
    y = masked_experts(
        as_codes if codes else x,
        counts,
        *(w13, w2),
        recipe=recipe,
        b13=b13,
        b2=b2,
        expected_rows=16,
        out=out,
    )
    assert y is out
    combined = torch.zeros(p.x.shape)  # as low_latency_combine() weights them
    for e, (tokens, slots) in enumerate(of_places):
        assert (y[e, len(tokens) :] == 7).all()
        weighted = y[e, : len(tokens)].float() * p.weights[tokens, slots].unsqueeze(1)
        combined.index_add_(0, tokens, weighted)
    wanted = sums(octofold.experts, p, recipe=recipe, b13=p.b13, b2=p.b2)
    if codes and recipe == "rowwise":
        assert error(combined, wanted) < 0.05
    else:
        assert torch.equal(combined.bfloat16(), wanted)


def test_bad_buffers():
    p = problem([30, 20])
    tokens, ids, weights = received(p)
    codes, scale = pair(p.x[tokens])
    w13, w2 = p.w13[OWN], p.w2[OWN]
    counts = torch.zeros(PER, dtype=torch.int32)

    def refused(words, function, *arguments, **options):
        with pytest.raises(octofold.InvalidArgumentError, match=words):
            function(*arguments, w13, w2, **options)

    refused("recv_x.*bfloat16", contiguous_experts, p.x[tokens].float(), ids, weights)
    refused("recv_x.*ue8m0", contiguous_experts, (codes, scale.int()), ids, weights)
    refused("recv_topk_idx", contiguous_experts, (codes, scale), ids[:3], weights)
    refused("recv_topk_weights", contiguous_experts, (codes, scale), ids, weights.double())
    refused("packed_recv_x", masked_experts, (codes, scale), counts)
    refused("recipe.*share", masked_experts, p.x[None], counts, recipe="tensorwise")
    w13 = octofold.nn.Fp8Weight.cast(w13, "channel", PER)
    refused("w13.*scales of 128x128", masked_experts, (codes, scale), counts)
    refused("w13.*scales of 128x128", contiguous_experts, (codes, scale), ids, weights)
    assert INNER
