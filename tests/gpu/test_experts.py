"""Expert layers on a GPU: wrong ids, experts without tokens, and graphs whose routing changes from
replay to replay; and experts over ranks, a group of one: the bits of octofold.experts(), no
synchronization with a capacity, graphs, streams, and DeepEP's masked layout. What all layers do is
test_layers.py's; tests/python/distributed has several GPUs, with OCTOFOLD_RANKS_DEVICE=cuda."""

import copy
from functools import partial

import octofold
import pytest
from octofold.distributed import experts, parallelize_experts
from octofold.distributed.deepep import masked_experts

from tests.gpu.gpu_support import (
    DEVICE,
    ON_GPU,
    captured,
    needs_gpu,
    nothing_waits,
    skip_without,
    torch,
)
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
from tests.python.nn.expert_support import choices, poisoned_memory
from tests.python.nn.layer_support import relative_error

skip_without("grouped products")

nn = octofold.nn
RECIPES = ("blockwise", "rowwise", "tensorwise")


def experts_of(recipe="blockwise", **options):
    return nn.Experts(HIDDEN, INNER, EXPERTS, recipe=recipe, **BF16 | options)


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
@pytest.mark.parametrize("rank", [0, 3])
def test_graph_of_inference(rank):
    """Few tokens; FP8 weights, which nothing casts, and adapters beside them."""
    module = experts_of()
    frozen = nn.Experts.from_weights(
        *(octofold.quantize(weight.detach(), "128x128 torchao") for weight in module.parameters())
    )
    x, (ids, weights) = random(8, HIDDEN), routing(8)
    term = random(EXPERTS, rank, HIDDEN), random(EXPERTS, 2 * INNER, rank)
    adapters = {"gate_up_proj": term} if rank else None

    def call():
        with torch.no_grad():
            return frozen(x, ids, weights, adapters)

    graph, y = captured(call)
    for _ in range(20):
        x.copy_(random(8, HIDDEN))
        ids.copy_(routing(8)[0])
        graph.replay()
        assert torch.equal(y, call())


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "rendezvous"), 1)
    backend = "nccl" if ON_GPU else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def operands(tokens=TOKENS):
    ids, weights = routing(tokens)
    w13 = random(EXPERTS, 2 * INNER, HIDDEN, scale=HIDDEN**-0.5)
    w2 = random(EXPERTS, HIDDEN, INNER, scale=INNER**-0.5)
    return random(tokens, HIDDEN), ids, weights, w13, w2, random(tokens, HIDDEN)


def differentiated(layer, x, ids, weights, w13, w2, dy, **options):
    return step(partial(layer, **options), (x, ids, weights, w13, w2), dy)


def assert_alike(left, right, same, limit=2**-7):
    """same: of products of as many rows. Others a GPU may make by another kernel."""
    for one, other in zip(left, right, strict=True):
        assert relative_error(one, other) < limit
    if same or not ON_GPU:
        assert_equal(left, right)


@pytest.mark.parametrize("options", [{}, {"capacity": TOKENS}], ids=["exact", "capacity"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_group_of_one(recipe, options):
    given = operands()
    wanted = differentiated(octofold.experts, *given, recipe=recipe)
    as_they_are = differentiated(experts, *given, recipe=recipe, wire="input", **options)
    assert_alike(as_they_are, wanted, same="capacity" in options)
    by_codes = differentiated(experts, *given, recipe=recipe, **options)
    # One scale of all is one of each row here, which another kernel multiplies.
    same = "capacity" in options and recipe != "tensorwise"
    assert_alike(by_codes[:1], wanted[:1], same, 0.05 if recipe == "tensorwise" else 2**-7)
    halves = differentiated(experts, *given, recipe=recipe, halves=2, **options)
    limit = 0.13 if recipe == "tensorwise" else 0.06
    for one, other, exact in zip(by_codes, halves, wanted, strict=True):
        assert relative_error(one, exact) < limit
        assert relative_error(other, exact) < limit


def block(shared=256):
    return nn.MixtureOfExperts(*(HIDDEN, INNER, EXPERTS, SLOTS, shared), **BF16)


def block_step(module, x, dy):
    return step(module, (x,), dy)


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("capacity", [None, TOKENS])
def test_shared_expert_on_a_second_stream(capacity, halves):
    plain = block()
    spread = parallelize_experts(
        copy.deepcopy(plain), capacity=capacity, halves=halves, wire="input"
    )
    for _ in range(10):
        x, dy = random(TOKENS, HIDDEN), random(TOKENS, HIDDEN)
        wanted, actual = block_step(plain, x, dy), block_step(spread, x, dy)
        if halves == 1:
            assert_alike(actual, wanted, same=capacity is not None)
        for left, right in zip(actual, wanted, strict=True):
            assert relative_error(left, right) < 0.04


@needs_gpu
@pytest.mark.parametrize("wire", ["fp8", "input"])
def test_does_not_synchronize(wire):
    given = operands()
    spread = parallelize_experts(block(), capacity=TOKENS, wire=wire)
    x, dy = given[0], given[-1]
    differentiated(experts, *given, wire=wire, capacity=TOKENS)
    block_step(spread, x, dy)
    with nothing_waits():
        differentiated(experts, *given, wire=wire, capacity=TOKENS, local_rows=2000)
        block_step(spread, x, dy)


@needs_gpu
@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("wire", ["fp8", "input"])
def test_graph_over_forward_and_backward(wire, halves):
    """Replayed with other routing: all to one expert, none, some of each."""
    x, ids, weights, w13, w2, dy = operands()
    options = {"wire": wire, "halves": halves, "capacity": TOKENS}
    graph, results = captured(
        lambda: differentiated(experts, x, ids, weights, w13, w2, dy, **options)
    )
    others = [choices((TOKENS,), EXPERTS, SLOTS, empty=e).to(DEVICE) for e in (0, 3, 8)]
    for other in (*others, torch.full_like(ids, 5), torch.full_like(ids, -1)):
        ids.copy_(other)
        x.copy_(random(TOKENS, HIDDEN))
        graph.replay()
        actual = [t.clone() for t in results]
        assert_equal(actual, differentiated(experts, x, ids, weights, w13, w2, dy, **options))


@pytest.mark.parametrize("codes", [False, True])
def test_deepep_masked(codes):
    """Scales lie column by column; what places that do not count hold is anything."""
    places = 256
    _, _, _, w13, w2, _ = operands()
    counts = torch.randint(0, places // 2, (EXPERTS,), dtype=torch.int32, device=DEVICE)
    counts[3] = 0
    x = random(EXPERTS, places, HIDDEN)
    valid = torch.arange(places, device=DEVICE) < counts.unsqueeze(1)
    x[~valid] = float("nan")
    received = x
    if codes:
        made = octofold.quantize(x, "1x128 torchao")
        scale = torch.empty((EXPERTS, HIDDEN // 128, places), device=DEVICE).transpose(1, 2)
        received = made.data, scale.copy_(made.scale)
    out = torch.full((EXPERTS, places, HIDDEN), 7.0, **BF16)
    with torch.no_grad():
        y = masked_experts(received, counts, w13, w2, expected_rows=64, out=out)
    assert y is out
    assert (y[~valid] == 7).all()
    one = torch.arange(EXPERTS, device=DEVICE).unsqueeze(1).expand(EXPERTS, places)[valid]
    ids = one.int().unsqueeze(1).contiguous()
    wanted = octofold.experts(x[valid], ids, torch.ones(ids.shape, device=DEVICE), w13, w2)
    # One kernel has product, activation and cast; here gate and up are in memory between.
    assert relative_error(y[valid], wanted) < 2**-8
    if ON_GPU:
        graph, results = captured(
            lambda: [masked_experts(received, counts, w13, w2, expected_rows=64, out=out)]
        )
        before = y.clone()
        out.fill_(7)
        graph.replay()
        assert torch.equal(results[0], before)
