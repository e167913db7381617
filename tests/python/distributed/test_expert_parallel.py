"""Experts that are spread over ranks beside the same experts in one process."""

import octofold
import pytest
import torch
from octofold.distributed import experts

from tests.python.distributed.expert_problems import (
    BLOCKS,
    EXPERTS,
    Problem,
    compare,
    disagreement,
    error,
    in_fp8,
    leaf,
    parts_of,
    problem,
    refused,
    step,
)
from tests.python.distributed.rank_processes import DEVICE, here, on_ranks
from tests.python.nn.expert_support import truth

FIXED = {"capacity": 64}


def ragged():
    """Tokens of each rank: few, none, many."""
    return [37, 0, 5, 64][: torch.distributed.get_world_size()]


def alike(tokens=24):
    return [tokens] * torch.distributed.get_world_size()


# y and the gradients by x, routing weights, w13, w2, b13, b2.
NAMES = ("y", "x", "topk_weights", "w13", "w2", "b13", "b2")


def both(rank, p, recipe, **options):
    """On this rank, and in one process: what step() gives."""
    own, rows, experts_ = p.part(rank)
    wanted = parts_of(step(octofold.experts, p, recipe=recipe), rows, experts_)
    return step(experts, own, recipe=recipe, **options), wanted


@pytest.mark.parametrize("wire", ["fp8", "input"])
@pytest.mark.parametrize("options", [{}, FIXED, {"halves": 2}], ids=["exact", "capacity", "halves"])
@pytest.mark.parametrize(("recipe", "slots"), [("blocks", 1), ("blocks", 2), ("rowwise", 1)])
@on_ranks
def test_bits_of_one_process(rank, recipe, slots, wire, options):
    """If each token's experts are on one rank, all that has no scale of all tokens is the same."""
    recipe = BLOCKS if recipe == "blocks" else recipe
    p = problem(ragged(), slots=slots, bias=True)
    if slots > 1:  # neighbours, which are on one rank
        first = p.ids[:, :1].clamp(min=0) // 2 * 2
        p = p._replace(ids=torch.where(p.ids < 0, -1, first + torch.arange(slots) % 2).int())
    actual, wanted = both(rank, p, recipe, wire=wire, **options)
    of_weights = recipe is BLOCKS and wire == "input" and "halves" not in options
    same = ["y"] + ["x", "topk_weights"] * (wire == "input") + ["w13", "w2"] * of_weights
    limit = 0.005 if of_weights else 0.06
    compare(actual, wanted, [name in same for name in NAMES], limit)


def forward_and_backward(rank, tokens, recipe, wire, **options):
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


@pytest.mark.parametrize("options", [{}, FIXED], ids=["exact", "capacity"])
@pytest.mark.parametrize("wire", ["fp8", "input"])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
@on_ranks
def test_forward_and_backward(rank, recipe, wire, options):
    forward_and_backward(rank, ragged(), recipe, wire, **options)


@on_ranks
def test_sums_over_ranks_in_float32(rank):
    forward_and_backward(rank, alike(), "blockwise", "input", combine_dtype=torch.float32)


@pytest.mark.parametrize("tokens", [0, 1])
@on_ranks
def test_nobody_has_tokens(rank, tokens):
    forward_and_backward(rank, alike(tokens), "blockwise", "fp8")


def in_fp64(x, ids, weights, w13, w2, b13, b2):
    return truth(ids)(x, weights, w13, w2)


@on_ranks
def test_error_by_codes(rank):
    """Codes on the wire add to the error of FP8 itself: nothing to y; to the gradients by x next to
    nothing, by weights, some of whose operands are cast twice, a tenth."""
    p = problem([300, 200, 260, 240][: torch.distributed.get_world_size()])
    own, rows, experts_ = p.part(rank)
    wide = Problem(p.tokens, *(None if t is None else t.double() for t in p[1:]))
    exact = parts_of(step(in_fp64, wide), rows, experts_)
    one = parts_of(step(octofold.experts, p, recipe=BLOCKS), rows, experts_)
    many = step(experts, own, recipe=BLOCKS)
    errors = [(error(a, t), error(b, t)) for a, b, t in zip(one, many, exact, strict=True)]
    for (of_one, of_many), limit in zip(errors, (1.02, 1.1, 1.25, 1.25, 1.25), strict=True):
        assert of_many < limit * of_one, errors


@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("wire", ["fp8", "input"])
@on_ranks
def test_two_halves_are_one_batch(rank, wire, capacity):
    """Two halves have the bits of one batch, but where weights' gradients sum in another order."""
    own, *_ = problem(ragged()[::-1]).part(rank)
    one, two = (
        step(experts, own, recipe=BLOCKS, wire=wire, capacity=capacity, halves=n) for n in (1, 2)
    )
    compare(two, one, [True, True, True, False, False], 0.04)


@pytest.mark.skipif(DEVICE == "cpu", reason="graphs need GPUs")
@pytest.mark.parametrize("halves", [1, 2])
@on_ranks
def test_graphs(rank, halves):
    """Forward and backward with a capacity, replayed with other routing, and nothing waits."""
    tokens = alike(128)
    p, *_ = problem(tokens).part(rank)
    p = Problem(tokens, *(None if t is None else here(t) for t in p[1:]))
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


@on_ranks
def test_single_gradients(rank):
    """Nothing is differentiated, or single operands are."""
    p, *_ = problem(ragged(), bias=True).part(rank)
    everything = step(experts, p)
    with torch.no_grad():
        y = experts(p.x, p.ids.long(), p.weights, p.w13, p.w2, b13=p.b13, b2=p.b2)
    assert error(y, everything[0]) < 0.004
    for index, name in enumerate(("x", "weights", "w13", "w2", "b13", "b2")):
        q = p._replace(**{name: leaf(getattr(p, name))})
        y = experts(q.x, q.ids, q.weights, q.w13, q.w2, b13=q.b13, b2=q.b2)
        y.backward(q.dy)
        assert torch.equal(getattr(q, name).grad, everything[index + 1]), name


@on_ranks
def test_fp8_weights(rank):
    """Weights of a checkpoint: no gradient of theirs; that by x goes through them."""
    p = problem(alike())
    own, rows, _ = p.part(rank)

    def run(layer, q):
        x, weights = leaf(q.x), leaf(q.weights)
        y = layer(x, q.ids, weights, in_fp8(q.w13), in_fp8(q.w2))
        y.backward(q.dy)
        return [y.detach(), x.grad, weights.grad]

    wanted = [t[rows] for t in run(octofold.experts, p)]
    actual = run(experts, own)
    compare(actual, wanted, [False] * 3, 0.06)
    assert error(actual[0], wanted[0]) < 0.004


KINDS = ["recipe", "k", "dtype", "experts", "shape", "wire", "capacity", "splits", "gradient"]


@pytest.mark.parametrize("kind", KINDS)
@on_ranks
def test_ranks_disagree(rank, kind):
    assert disagreement(rank, alike(), kind) == "InvalidArgumentError"


@pytest.mark.parametrize("capacity", [None, 64])
@on_ranks
def test_bad_ids(rank, capacity):
    p, *_ = problem(alike()).part(rank)
    ids = p.ids.clone()
    if rank == 1:
        ids[0, 0] = EXPERTS
    words = "topk_ids", "others on rank 1"
    refused(lambda: experts(p.x, ids, p.weights, p.w13, p.w2, capacity=capacity), *words)


@on_ranks
def test_too_little_room_raises(rank):
    """On the CPU all ranks raise; local_rows likewise."""
    p, *_ = problem(alike(), gone=0).part(rank)
    run = (p.x, p.ids, p.weights, p.w13, p.w2)
    refused(
        lambda: experts(*run, capacity=3), "capacity", "too few on rank", f"this is rank {rank}"
    )
    refused(lambda: experts(*run, capacity=64, local_rows=3), "local_rows", "too few on rank")
    assert experts(*run, capacity=64, local_rows=256).shape == p.x.shape


@pytest.mark.parametrize(("capacity", "local_rows"), [(7, None), (64, 5)])
@on_ranks
def test_too_little_room_is_counted(rank, capacity, local_rows):
    """If nobody raises (as on a GPU), rows beyond are left out as if their ids were -1, and
    counted."""
    import octofold.distributed.expert_parallel.plan as plan

    tokens = alike()
    p = problem(tokens, gone=0)
    own, rows, _ = p.part(rank)
    counter = torch.zeros(1, dtype=torch.int64)
    options = {"capacity": capacity, "local_rows": local_rows, "dropped": counter}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_is_compiling", lambda: True)
        actual = step(experts, own, recipe="rowwise", wire="input", **options)
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
