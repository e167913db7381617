"""Experts that are spread over ranks beside the same experts in one process: what the ranks run."""

from typing import NamedTuple

import octofold
import torch
from octofold._ranks import ranks_of, require_agreement
from octofold.distributed import experts

HIDDEN, INNER, EXPERTS, SLOTS = 256, 128, 8, 3
BF16 = torch.bfloat16
DEVICE = torch.device("cpu")
"""The device of operands: a worker on GPUs sets it."""


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
    return Problem(tokens, *(None if t is None else t.to(DEVICE) for t in made))


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
# y and the gradients by x, routing weights, w13, w2, b13, b2.
NAMES = ("y", "x", "topk_weights", "w13", "w2", "b13", "b2")


def both(rank, p, recipe, **options):
    """On this rank, and in one process: what step() gives."""
    own, rows, experts_ = p.part(rank)
    wanted = parts_of(step(octofold.experts, p, recipe=recipe), rows, experts_)
    return step(experts, own, recipe=recipe, **options), wanted


def bits_of_one_process(rank, tokens, recipe, slots, wire, options):
    """If each token's experts are on one rank, all that has no scale of all tokens is the same."""
    recipe = BLOCKS if recipe == "blocks" else recipe
    p = problem(tokens, slots=slots, bias=True)
    if slots > 1:  # neighbours, which are on one rank
        first = p.ids[:, :1].clamp(min=0) // 2 * 2
        p = p._replace(ids=torch.where(p.ids < 0, -1, first + torch.arange(slots) % 2).int())
    actual, wanted = both(rank, p, recipe, wire=wire, **options)
    of_weights = recipe is BLOCKS and wire == "input" and "halves" not in options
    same = ["y"] + ["x", "topk_weights"] * (wire == "input") + ["w13", "w2"] * of_weights
    limit = 0.005 if of_weights else 0.06
    compare(actual, wanted, [name in same for name in NAMES], limit)


def forward_and_backward(rank, tokens, recipe, wire, options):
    """Sums over ranks are rounded once more; the codes of dy are of dy and not of dy · weight; and
    scales of all tokens are those of a rank's."""
    actual, wanted = both(rank, problem(tokens), recipe, wire=wire, **options)
    limit = 0.13 if recipe == "tensorwise" else 0.06  # gradients in e5m2 differ by more
    compare(actual, wanted, [False] * 5, limit)
    of_y = error(actual[0], wanted[0])
    assert of_y < (0.09 if recipe == "tensorwise" else 0.004), of_y
    if wire == "input" and recipe != "tensorwise":
        compare(actual[:3], wanted[:3], [False, False, True], 0.004)
    if options.get("combine_dtype") is torch.float32:
        assert error(actual[0], wanted[0]) < 0.0005


def truth(p):
    """In FP64, the same as step()."""
    p = Problem(p.tokens, *(None if t is None else t.double() for t in p[1:]))
    leaves = [leaf(t) for t in (p.x, p.weights, p.w13, p.w2)]
    x, weights, w13, w2 = leaves
    y = torch.zeros_like(x)
    for e in range(EXPERTS):
        tokens, slots = torch.where(p.ids == e)
        gate, up = (x[tokens] @ w13[e].t()).chunk(2, 1)
        h = (torch.nn.functional.silu(gate) * up) @ w2[e].t()
        y = y.index_add(0, tokens, h * weights[tokens, slots].unsqueeze(1))
    y.backward(p.dy)
    return [y.detach(), *(t.grad for t in leaves)]


def error_by_codes(rank, tokens):
    """Codes on the wire add to the error of FP8 itself: nothing to y; to the gradients by x next to
    nothing, by weights, some of whose operands are cast twice, a tenth."""
    p = problem(tokens)
    own, rows, experts_ = p.part(rank)
    exact = parts_of(truth(p), rows, experts_)
    one = parts_of(step(octofold.experts, p, recipe=BLOCKS), rows, experts_)
    many = step(experts, own, recipe=BLOCKS)
    errors = [(error(a, t), error(b, t)) for a, b, t in zip(one, many, exact, strict=True)]
    for (of_one, of_many), limit in zip(errors, (1.02, 1.1, 1.25, 1.25, 1.25), strict=True):
        assert of_many < limit * of_one, errors
    return errors


def equal_halves(rank, tokens, wire, capacity):
    """Two halves have the bits of one batch, but where weights' gradients sum in another order."""
    own, *_ = problem(tokens).part(rank)
    one, two = (
        step(experts, own, recipe=BLOCKS, wire=wire, capacity=capacity, halves=n) for n in (1, 2)
    )
    compare(two, one, [True, True, True, False, False], 0.04)


def one_way(rank, tokens):
    """Nothing is differentiated, or single operands are."""
    p, *_ = problem(tokens, bias=True).part(rank)
    everything = step(experts, p)
    with torch.no_grad():
        y = experts(p.x, p.ids.long(), p.weights, p.w13, p.w2, b13=p.b13, b2=p.b2)
    assert error(y, everything[0]) < 0.004
    for index, name in enumerate(("x", "weights", "w13", "w2", "b13", "b2")):
        q = p._replace(**{name: leaf(getattr(p, name))})
        y = experts(q.x, q.ids, q.weights, q.w13, q.w2, b13=q.b13, b2=q.b2)
        y.backward(q.dy)
        assert torch.equal(getattr(q, name).grad, everything[index + 1]), name


def fp8_weights(rank, tokens):
    """Weights of a checkpoint: no gradient of theirs; that by x goes through them."""
    p = problem(tokens)
    own, rows, _ = p.part(rank)

    def codes(w):
        made = octofold.quantize(w.flatten(0, 1), "128x128", matrices=len(w))
        return octofold.ScaledTensor(made.data.view(w.shape), made.scale, "128x128")

    def run(layer, q):
        x, weights = leaf(q.x), leaf(q.weights)
        y = layer(x, q.ids, weights, codes(q.w13), codes(q.w2))
        y.backward(q.dy)
        return [y.detach(), x.grad, weights.grad]

    wanted = [t[rows] for t in run(octofold.experts, p)]
    actual = run(experts, own)
    compare(actual, wanted, [False] * 3, 0.06)
    assert error(actual[0], wanted[0]) < 0.004


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
    odd = rank == 1
    arguments = {"x": p.x, "topk_ids": p.ids, "topk_weights": p.weights, "w13": p.w13, "w2": p.w2}
    words = ["on rank 1", f"(this is rank {rank} of"]
    match kind:
        case "recipe":
            arguments["recipe"] = "rowwise" if odd else "blockwise"
            words.append("blockwise on rank 0 and rowwise on rank 1")
        case "k":
            arguments["topk_ids"] = p.ids[:, :2] if odd else p.ids
            arguments["topk_weights"] = p.weights[:, :2] if odd else p.weights
            words.append("topk_ids")
        case "dtype":
            arguments["x"] = p.x.float() if odd else p.x
        case "experts":
            arguments["w13"], arguments["w2"] = (w[: 1 if odd else None] for w in (p.w13, p.w2))
            words.append("w13")
        case "shape":
            arguments["x"] = p.x[:, :128] if odd else p.x
            words.append(f"[..., {HIDDEN}]")
        case "wire":
            arguments["wire"] = "input" if odd else "fp8"
        case "capacity":
            arguments["capacity"] = 3 if odd else 4
        case "splits":
            arguments["capacity"] = 4 if odd else None
        case "gradient":
            arguments["x"] = leaf(p.x) if odd else p.x
            words.append("requires_grad")
        case "order":
            words, arguments["capacity"] = ["order", "rank 1"], 4
    if kind == "order" and odd:
        return refused(lambda: require_agreement("another", ranks_of("", "", None)), *words)
    return refused(lambda: experts(**arguments), "octofold.distributed.experts", *words)


def bad_ids(rank, tokens, capacity):
    p, *_ = problem(tokens).part(rank)
    ids = p.ids.clone()
    if rank == 1:
        ids[0, 0] = EXPERTS
    words = "topk_ids", "others on rank 1"
    return refused(lambda: experts(p.x, ids, p.weights, p.w13, p.w2, capacity=capacity), *words)


def overflow(rank, tokens):
    """On the CPU all ranks raise; local_rows likewise."""
    p, *_ = problem(tokens, gone=0).part(rank)
    run = (p.x, p.ids, p.weights, p.w13, p.w2)
    refused(
        lambda: experts(*run, capacity=3), "capacity", "too few on rank", f"this is rank {rank}"
    )
    refused(lambda: experts(*run, capacity=64, local_rows=3), "local_rows", "too few on rank")
    assert experts(*run, capacity=64, local_rows=256).shape == p.x.shape


def dropped_rows(rank, tokens, capacity, local_rows):
    """If nobody raises (as on a GPU), rows beyond are left out as if their ids were -1, and
    counted."""
    import octofold.distributed.expert_parallel.plan as plan

    p = problem(tokens, gone=0)
    own, rows, _ = p.part(rank)
    counter = torch.zeros(1, dtype=torch.int64)
    plan._is_compiling, before = (lambda: True), plan._is_compiling
    try:
        options = {"capacity": capacity, "local_rows": local_rows, "dropped": counter}
        actual = step(experts, own, recipe="rowwise", wire="input", **options)
    finally:
        plan._is_compiling = before
    assert counter > 0
    if local_rows is not None:
        return
    size, begin, ids = len(tokens), 0, p.ids.clone()
    lost = 0
    for count in tokens:  # of each rank, for each other one, the tokens that come after
        of_rank = ids[begin : begin + count]
        for to in range(size):
            goes = (of_rank // (EXPERTS // size) == to).any(1)
            beyond = goes & (goes.cumsum(0) > capacity)
            lost += int(beyond.sum()) if begin == rows.start else 0
            of_rank[beyond.unsqueeze(1) & (of_rank // (EXPERTS // size) == to)] = -1
        begin += count
    assert int(counter) == lost
    q = p._replace(ids=ids)
    wanted = parts_of(step(octofold.experts, q, recipe="rowwise"), *p.part(rank)[1:])
    compare(actual[:3], wanted[:3], [False, False, True], 0.004)


def graphs(rank, tokens, halves):
    """Forward and backward with a capacity, replayed with other routing, and nothing waits."""
    p, *_ = problem(tokens).part(rank)
    options = {"capacity": max(tokens), "halves": halves}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(experts, p, **options)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = step(experts, p, **options)
    for _ in range(5):
        p.ids.copy_(torch.rand(len(p.ids), EXPERTS).topk(p.ids.shape[1], dim=1)[1].int())
        p.x.copy_(torch.randn(p.x.shape))
        graph.replay()
        actual = [t.clone() for t in results]
        compare(actual, step(experts, p, **options), [True] * 5, 0)
    counter = torch.zeros(1, dtype=torch.int64, device=p.x.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.no_grad():
            experts(p.x, p.ids, p.weights, p.w13, p.w2, capacity=7, dropped=counter)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert counter.item() > 0


def dead_rank(rank, how, seconds):
    """A rank that dies, or does not come: the others raise within the time-out."""
    import os
    import time

    p, *_ = problem([4, 4]).part(rank)
    run = (p.x, p.ids, p.weights, p.w13, p.w2)
    experts(*run)
    if rank == 1 and how == "dies":
        os._exit(1)
    if rank == 1:
        time.sleep(2 * seconds)
        return None
    begin = time.monotonic()
    words = "octofold.distributed.experts", "expected all 2 ranks", "rank 0 of 2"
    kind = refused(lambda: experts(*run), *words)
    assert time.monotonic() - begin < 2 * seconds
    return kind
