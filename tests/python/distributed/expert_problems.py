"""Operands of experts that are spread over ranks, and what their results are held against."""

from typing import NamedTuple

import octofold
import torch
from octofold.distributed import experts

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
        """The part of one rank: its tokens, and its experts."""
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
    made = (
        numbers(count, HIDDEN),
        ids,
        weights,
        numbers(EXPERTS, 2 * INNER, HIDDEN, scale=HIDDEN**-0.5),
        numbers(EXPERTS, HIDDEN, INNER, scale=INNER**-0.5),
        numbers(count, HIDDEN),
        numbers(EXPERTS, 2 * INNER) if bias else None,
        numbers(EXPERTS, HIDDEN) if bias else None,
    )
    return Problem(tokens, *made)


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
    """The part that a rank should have of results in one process."""
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


# The weights' gradients have a scale for 128 rows of an expert, and not one for all tokens.
BLOCKS = octofold.nn.Recipe(
    output=octofold.nn.Product("1x128 torchao", "128x128 torchao"),
    grad_input=octofold.nn.Product("1x128 torchao", "128x128 torchao"),
    grad_weight=octofold.nn.Product("1x128 torchao", "1x128 torchao"),
)


def in_fp8(weights):
    """The experts' weights as a checkpoint in FP8 has them."""
    made = octofold.quantize(weights.flatten(0, 1), "128x128", matrices=len(weights))
    return octofold.ScaledTensor(made.data.view(weights.shape), made.scale, "128x128")


def refused(function, *parts):
    """Asserts that it raises on this rank, with these words; returns the error's class name."""
    try:
        function()
    except octofold.Error as caught:
        text = str(caught)
        assert all(part in text for part in parts), text
        return type(caught).__name__
    raise AssertionError("nothing was raised")


def disagreement(rank, tokens, kind):
    """All ranks raise, and say what differs."""
    p, *_ = problem(tokens).part(rank)
    arguments = {"x": p.x, "topk_ids": p.ids, "topk_weights": p.weights, "w13": p.w13, "w2": p.w2}
    if kind == "capacity":
        arguments["capacity"] = 4
    of_the_odd_one, word = {
        "recipe": ({"recipe": "rowwise"}, "blockwise on rank 0 and rowwise on rank 1"),
        "k": ({"topk_ids": p.ids[:, :2], "topk_weights": p.weights[:, :2]}, "topk_ids"),
        "dtype": ({"x": p.x.float()}, "x"),
        "experts": ({"w13": p.w13[:1], "w2": p.w2[:1]}, "w13"),
        "shape": ({"x": p.x[:, :128]}, f"[..., {HIDDEN}]"),
        "wire": ({"wire": "input"}, "wire"),
        "capacity": ({"capacity": 3}, "capacity"),
        "splits": ({"capacity": 4}, "capacity"),
        "gradient": ({"x": leaf(p.x)}, "requires_grad"),
    }[kind]
    if rank == 1:
        arguments |= of_the_odd_one
    words = "octofold.distributed.experts", word, "on rank 1", f"(this is rank {rank} of"
    return refused(lambda: experts(**arguments), *words)
