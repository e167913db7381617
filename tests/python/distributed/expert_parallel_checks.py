"""Experts that are spread over ranks beside the same experts in one process: what the ranks run."""

from typing import NamedTuple

import octofold
import torch
from octofold.distributed.expert_parallel import experts

HIDDEN, INNER, EXPERTS, SLOTS = 256, 128, 8, 3
BF16 = torch.bfloat16


class Problem(NamedTuple):
    """Operands of all ranks' tokens and experts; tokens: how many each rank has."""

    tokens: list
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor
    dy: torch.Tensor
    b13: torch.Tensor | None = None
    b2: torch.Tensor | None = None

    def part(self, rank):
        """Of one rank: its tokens, and its experts."""
        begin = sum(self.tokens[:rank])
        rows = slice(begin, begin + self.tokens[rank])
        per = EXPERTS // len(self.tokens)
        own = slice(rank * per, (rank + 1) * per)
        x, ids, weights, dy = (t[rows] for t in (self.x, self.ids, self.weights, self.dy))
        w13, w2, b13, b2 = (
            None if t is None else t[own] for t in (self.w13, self.w2, self.b13, self.b2)
        )
        return Problem(self.tokens, x, ids, weights, w13, w2, dy, b13, b2), rows, own


def problem(tokens, slots=SLOTS, bias=False, gone=0.1, only=EXPERTS, dtype=BF16):
    """only: the choices are among so many experts, the last ones."""
    g = torch.Generator().manual_seed(7)

    def numbers(*shape, scale=1.0):
        return (torch.randn(shape, generator=g) * scale).to(dtype)

    count = sum(tokens)
    scores = torch.rand((count, EXPERTS), generator=g)
    scores[:, : EXPERTS - only] = -1
    ids = scores.topk(slots, dim=1)[1].int()
    ids = torch.where(torch.rand(ids.shape, generator=g) < gone, -1, ids).int()
    weights = torch.rand((count, slots), generator=g) + 0.1
    return Problem(
        tokens,
        numbers(count, HIDDEN),
        ids,
        weights,
        numbers(EXPERTS, 2 * INNER, HIDDEN, scale=HIDDEN**-0.5),
        numbers(EXPERTS, HIDDEN, INNER, scale=INNER**-0.5),
        numbers(count, HIDDEN),
        numbers(EXPERTS, 2 * INNER) if bias else None,
        numbers(EXPERTS, HIDDEN) if bias else None,
    )


def leaf(tensor):
    return None if tensor is None else tensor.detach().clone().requires_grad_()


def step(layer, p, **options):
    """y, and the gradients by x, the routing weights, the experts' weights and biases."""
    leaves = [leaf(t) for t in (p.x, p.weights, p.w13, p.w2, p.b13, p.b2)]
    x, weights, w13, w2, b13, b2 = leaves
    y = layer(x, p.ids, weights, w13, w2, b13=b13, b2=b2, **options)
    y.backward(p.dy)
    return [y.detach(), *(t.grad for t in leaves if t is not None)]


def parts_of(results, rows, own):
    """Of results in one process, what a rank should have."""
    tokens, experts_ = results[:3], results[3:]
    return [t[rows] for t in tokens] + [t[own] for t in experts_]


def error(actual, wanted):
    if wanted.numel() == 0:
        return 0.0
    norm = wanted.float().norm()
    difference = (actual.float() - wanted.float()).norm()
    return float(difference / norm) if norm else float(difference)


def compare(actual, wanted, same, limit):
    """same: for each result whether its bits are those of one process."""
    for index, (left, right) in enumerate(zip(actual, wanted, strict=True)):
        assert left.shape == right.shape, (index, left.shape, right.shape)
        assert left.dtype == right.dtype, (index, left.dtype, right.dtype)
        if same[index]:
            assert torch.equal(left, right), (index, error(left, right))
        assert error(left, right) <= limit, (index, error(left, right))


def forward_and_backward(rank, tokens, recipe, wire, options, bias=False):
    p = problem(tokens, bias=bias)
    own, rows, experts_ = p.part(rank)
    whole = step(octofold.experts, p, recipe=recipe)
    wanted = parts_of(whole, rows, experts_)
    actual = step(experts, own, recipe=recipe, wire=wire, **options)
    same = [False] * len(actual)
    # Codes of a row are what they are in one process, and sums over ranks are rounded once more.
    limit = 0.004 if wire == "input" and recipe != "tensorwise" else 0.06
    compare(actual, wanted, same, limit)
    assert error(actual[0], wanted[0]) < (0.03 if recipe == "tensorwise" else 0.004)
