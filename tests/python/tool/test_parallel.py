"""What plans reckon, against counts by other means."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octofold_tool.parallel import rates, ways
from octofold_tool.parallel.exchanges import Traffic
from octofold_tool.parallel.layers import Phase, exposed
from octofold_tool.parallel.links import Exchange, Group
from octofold_tool.parallel.memory import STATES, memory_of
from octofold_tool.parallel.models import Routing, load_model, model_of
from octofold_tool.parallel.rates import Product
from octofold_tool.parallel.routing import copies_of_token
from octofold_tool.parallel.schemes import enumerate_schemes
from octofold_tool.parallel.steps import ranked
from octofold_tool.parallel.ways import BF16, FP8, FP8_PRODUCTS
from octofold_tool.parallel.work import cast_seconds, products_of
from octofold_tool.report import ToolError
from parallel_support import (
    DENSE,
    EXPERTS,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    RATES,
    VOCABULARY,
    links,
    planner,
    scheme,
)

SIZE = HIDDEN // HEADS


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [("llama-3-70b", 70.55e9, 69.5e9), ("deepseek-v3", 671e9, 36.6e9)],
)
def test_parameters_of_known_models(name, parameters, active):
    model = load_model(name)
    assert model.parameters == pytest.approx(parameters, rel=5e-4)
    assert model.active_parameters == pytest.approx(active, rel=5e-3)


def test_latents_without_a_rank_for_queries():
    latent = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    model = model_of({**DENSE, **latent, "q_lora_rank": None}, "lite")
    sizes = {linear.name: linear.size for linear in model.layers[0].linears}
    assert sizes["q"] == HEADS * 48 * HIDDEN
    assert sizes["latents"] == 80 * HIDDEN
    assert sizes["kv_b"] == HEADS * 64 * 64


def gathered_by_rings(inside, hosts):
    """Parts that each GPU receives over NVLink and over the network: rings are run step by step."""
    have = {(h, i): {(h, i)} for h in range(hosts) for i in range(inside)}
    network, nvlink = dict.fromkeys(have, 0), dict.fromkeys(have, 0)
    for axis, size, received in ((0, hosts, network), (1, inside, nvlink)):
        passed = {gpu: set(parts) for gpu, parts in have.items()}
        for _ in range(size - 1):
            sent = dict(passed)
            for h, i in have:
                before = ((h - 1) % hosts, i) if axis == 0 else (h, (i - 1) % inside)
                passed[h, i] = sent[before]
                received[h, i] += len(sent[before] - have[h, i])
                have[h, i] |= sent[before]
    assert all(len(parts) == inside * hosts for parts in have.values())
    return max(nvlink.values()), max(network.values())


@pytest.mark.parametrize("inside", [1, 2, 4, 8])
@pytest.mark.parametrize("hosts", [1, 2, 3, 8])
def test_gathers_move_what_rings_move(inside, hosts):
    group, part = Group(inside, hosts), 1000
    nvlink, network = gathered_by_rings(inside, hosts)
    exchange = links().gather(group, part * group.size)
    assert exchange.nvlink_bytes == pytest.approx(part * nvlink)
    assert exchange.network_bytes == pytest.approx(part * network)
    share = (group.size - 1) / group.size
    assert nvlink + network == pytest.approx(share * group.size)
    assert links().all_reduce(group, 1.0).nvlink_bytes == pytest.approx(
        2 * links().reduce_scatter(group, 1.0).nvlink_bytes
    )


def test_seconds_are_those_of_the_slower_link_and_of_the_steps():
    group = Group(4, 2)
    slow = links(nvlink=100.0, network=10.0, latency=0.5)
    # 8 parts of 100 bytes: 6 come over NVLink, 1 over the network; 3 steps and 1
    assert slow.gather(group, 800.0) == Exchange(600.0, 100.0, 10.0 + 2.0)


def test_groups_lie_in_hosts_by_their_numbers():
    assert links(per_host=8).group(16, 2) == Group(4, 4)
    assert links(per_host=8).group(4, 8) == Group(1, 4)
    assert links(per_host=8).group(4, 1) == Group(4, 1)


@pytest.mark.parametrize("routing", [Routing(8, 2), Routing(8, 2, 4, 2), Routing(8, 3, 2, 1)])
@pytest.mark.parametrize(("ranks", "per_host"), [(2, 2), (4, 2), (8, 4), (8, 8), (4, 1)])
def test_copies_of_a_token_by_all_its_choices(routing, ranks, per_host):
    size = routing.experts // routing.groups
    nvlink = network = choices = 0
    for groups in itertools.combinations(range(routing.groups), routing.top_groups):
        reachable = [e for e in range(routing.experts) if e // size in groups]
        for chosen in itertools.combinations(reachable, routing.top_k):
            visited = {expert * ranks // routing.experts for expert in chosen}
            choices += ranks
            for own in range(ranks):  # its GPU
                hosts = {rank // per_host for rank in visited}
                network += len(hosts - {own // per_host})
                nvlink += sum(rank % per_host != own % per_host for rank in visited)
    found = copies_of_token(routing, ranks, ranks // per_host)
    assert found == pytest.approx((nvlink / choices, network / choices))


def test_parts_that_cut_groups_are_refused():
    with pytest.raises(ValueError, match="cut the groups"):
        copies_of_token(Routing(12, 2, 3, 1), 2, 1)


def traffic_of_layer(way, tensor, shards, micro_batches=1):
    made = planner()
    step = made.step(scheme(tensor=tensor, shards=shards, micro_batches=micro_batches), way)
    return step.layers["dense"]


@pytest.mark.parametrize(("way", "bytes_"), [(FP8, 1 + 4 / 16384), (BF16, 2.0), (FP8_PRODUCTS, 2)])
def test_bytes_of_sharded_weights(way, bytes_):
    """Four GPUs of a host, then four hosts; norms travel in BF16."""
    weights = (HEADS + 2 * KV_HEADS) * SIZE * HIDDEN + HIDDEN * HIDDEN + 3 * INNER * HIDDEN
    found = traffic_of_layer(way, tensor=1, shards=16)[Traffic.WEIGHTS]
    total = 2 * (weights * bytes_ + 2 * HIDDEN * 2)  # forward and backward
    assert found.nvlink_bytes == pytest.approx(total * 12 / 16)
    assert found.network_bytes == pytest.approx(total * 3 / 16)
    sums = traffic_of_layer(way, tensor=1, shards=16)[Traffic.GRADIENTS]
    assert sums.nvlink_bytes == pytest.approx((weights + 2 * HIDDEN) * 4 * 12 / 16)


@pytest.mark.parametrize(("way", "one", "both"), [(FP8, 1 + 1 / 32, 2 + 1 / 16), (BF16, 2, 2)])
def test_bytes_of_a_tensor_group(way, one, both):
    """Two column-parallel layers read x in forward and its transpose in backward; two row-parallel
    ones read dY; each of the four has sums to scatter."""
    found = traffic_of_layer(way, tensor=4, shards=4)
    elements = 2048 * 4 * HIDDEN * 3 / 4  # three parts of four come from others
    assert found[Traffic.INPUTS].nvlink_bytes == pytest.approx(4 * elements * one)
    assert found[Traffic.OUTPUT_GRADIENTS].nvlink_bytes == pytest.approx(2 * elements * both)
    assert found[Traffic.OUTPUTS].nvlink_bytes == pytest.approx(4 * elements * 2)
    assert all(found[kind].network_bytes == 0 for kind in (Traffic.INPUTS, Traffic.OUTPUTS))


def test_bytes_of_experts():
    made = planner(EXPERTS)
    step = made.step(scheme(shards=16, experts=16), FP8)
    nvlink, network = copies_of_token(made.model.routing, 16, 4)
    elements = 2 * 2048 * HIDDEN  # forward and backward
    found = step.layers["experts"]
    assert found[Traffic.DISPATCH].network_bytes == pytest.approx(elements * network * (1 + 1 / 32))
    assert found[Traffic.COMBINE].nvlink_bytes == pytest.approx(elements * nvlink * 2)


def test_replicas_are_summed_once_a_step():
    one, four = (traffic_of_layer(FP8, 1, 4, micro_batches=m) for m in (1, 4))
    assert one[Traffic.REPLICAS] == four[Traffic.REPLICAS]
    assert one[Traffic.WEIGHTS] == four[Traffic.WEIGHTS]
    steps = [planner().step(scheme(shards=4, micro_batches=m), FP8).traffic for m in (1, 4)]
    assert steps[0][Traffic.REPLICAS] == steps[1][Traffic.REPLICAS]
    assert 4 * steps[0][Traffic.WEIGHTS].seconds == pytest.approx(steps[1][Traffic.WEIGHTS].seconds)


def test_memory_of_a_small_model():
    made = planner()
    whole = memory_of(made.context(scheme(), BF16), STATES["fp32"])
    assert whole.state == 16 * made.model.parameters
    assert whole.layers == 0  # nothing is gathered, and nothing cast
    sharded = memory_of(made.context(scheme(shards=16), FP8), STATES["bf16"])
    assert sharded.state == pytest.approx(8 * made.model.parameters / 16)
    # x of qkv, o and gate_up, and h, as codes; sums before norms; gate and up; q, k, v, result
    kept = 3 * HIDDEN + INNER + 2 * 2 * HIDDEN + 4 * INNER + 2 * (2 * HEADS + 2 * KV_HEADS) * SIZE
    head = 2 * HIDDEN + 2 * HIDDEN + 6 * VOCABULARY
    assert sharded.activations == pytest.approx(2048 * (3 * kept + head))


def test_work_is_counted_once():
    """Products of all layers, as operations, are six for each weight and token."""
    made = planner()
    for tensor in (1, 2, 4):
        at = made.context(scheme(tensor=tensor, shards=4), FP8)
        flops = sum(
            layer.count * product.flops
            for layer in made.model.layers
            for linear in layer.linears
            for backward in (False, True)
            for product in products_of(linear, at, backward)
        )
        assert flops == pytest.approx(6 * made.model.active_parameters * 2048)


bandwidths = st.floats(1e8, 1e13)
names = st.sampled_from([(c, t, s, e) for c in (0, 1) for t in (1, 2, 4) for s in (1, 2, 4)
                         for e in (1, 4, 16) if (c or e == 1)])  # fmt: skip


@given(names, bandwidths, bandwidths, st.floats(1, 100), st.booleans(), st.booleans())
def test_more_bandwidth_is_never_slower(name, nvlink, network, factor, inside, overlap):
    which, tensor, shards, experts = name
    config = (DENSE, EXPERTS)[which]
    faster = (nvlink * factor, network) if inside else (nvlink, network * factor)
    times = [
        planner(config, nvlink=a, network=b, overlap=overlap)
        .step(scheme(tensor=tensor, shards=shards, experts=experts, recompute=True), FP8)
        .seconds
        for a, b in ((nvlink, network), faster)
    ]
    assert times[1] <= times[0] * (1 + 1e-12)


@given(names)
def test_codes_are_about_half_of_bfloat16(name):
    which, tensor, shards, experts = name
    made = planner((DENSE, EXPERTS)[which])
    plan = scheme(tensor=tensor, shards=shards, experts=experts)
    codes, bfloat16 = (made.step(plan, way).layers for way in (FP8, BF16))
    for layer in codes:
        for kind in codes[layer]:
            ratio = (codes[layer][kind].nvlink_bytes + codes[layer][kind].network_bytes) / (
                bfloat16[layer][kind].nvlink_bytes + bfloat16[layer][kind].network_bytes
            )
            halved = kind in (Traffic.WEIGHTS, Traffic.INPUTS, Traffic.DISPATCH)
            if layer == "ends" or not halved:  # BF16 for all; dY travels twice
                assert 1 <= ratio <= 1 + 1 / 31
            else:
                assert 0.5 < ratio < 0.52


def phase_of(products, exchanges, shared=0.0):
    return Phase(products, 0.0, 0.0, 0.0, shared, exchanges)


def test_what_no_work_hides():
    def exchange(seconds):
        return Exchange(seconds=seconds)

    one = phase_of(
        10.0,
        {
            Traffic.INPUTS: exchange(4.0),
            Traffic.DISPATCH: exchange(3.0),
            Traffic.COMBINE: exchange(3.0),
            Traffic.WEIGHTS: exchange(9.0),
        },
        shared=5.0,
    )
    left = exposed(one, overlap_tensor=False)
    assert dataclasses.astuple(left) == (4.0, 1.0, 4.0)  # 5 of 10 hide experts, 5 hide weights
    assert exposed(one, overlap_tensor=True).tensor == 0.0
    assert exposed(one, overlap_tensor=False, sums=2.0).fsdp == 6.0


def test_every_scheme_is_listed_or_counted():
    model = model_of(EXPERTS, "small")
    found, left_out = enumerate_schemes(model, 16, 4, tokens=2048, sequence=512)
    shards = {1: 3, 2: 3, 4: 2}  # none, a host's, all; a host's are none where TP takes them
    assert len(found) + left_out.total() == sum(shards.values()) * 5 * 7 * 2
    assert len(set(found)) == len(found)
    for one in found:
        assert one.tensor * one.shards * one.replicas == 16
        assert one.experts * one.expert_shards * one.expert_replicas == 16
        assert 2048 // one.micro_batches * one.tensor % 512 == 0
    assert {one.tensor for one in found} == {1, 2, 4}


def test_heads_that_do_not_divide_are_counted():
    model = model_of({**DENSE, "num_key_value_heads": 1}, "small")
    found, left_out = enumerate_schemes(model, 4, 4, tokens=2048, sequence=512)
    assert {one.tensor for one in found} == {1}
    assert left_out["tensor parallel: the heads do not divide"] > 0


def test_ranks():
    planned, _ = planner(EXPERTS).planned()
    best = ranked(planned, FP8)
    times = [one.steps[FP8.name].seconds for one in best]
    assert times == sorted(times)
    assert times[0] == min(one.steps[FP8.name].seconds for one in planned)
    kinds = [(one.scheme.tensor, one.scheme.shards, one.scheme.experts) for one in best]
    assert len(kinds) == len(set(kinds))


def test_recomputing_takes_time_and_saves_memory():
    made = planner()
    once, twice = (made.step(scheme(shards=16, recompute=r), FP8) for r in (False, True))
    assert twice.seconds > once.seconds
    assert twice.memory.activations < once.memory.activations
    assert twice.traffic[Traffic.WEIGHTS] == once.traffic[Traffic.WEIGHTS]


def test_codes_are_sent_for_fp8_products_alone():
    with pytest.raises(ValueError, match="codes are sent for FP8 products alone"):
        ways.Way("wrong", fp8_products=False, fp8_wire=True)


def test_the_nearest_rate_is_taken():
    for measured in RATES.products:
        for fp8 in (True, False):
            near = dataclasses.replace(measured.product, m=measured.m * 1.01)
            assert RATES.seconds(near, fp8) == pytest.approx(measured.seconds(fp8) * 1.01)
    far = Product("weight", 1, 1.0, 1.0, 1.0)
    assert RATES.flops_per_second(far, True) < 1e15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "expected an object of schema 1, got 2"),
        ({"copy": 0}, "expected copy as a number above 0, got 0"),
        ({"machine": None}, "expected machine as text, got None"),
        ({"products": 3}, "expected a list of products, got 3"),
        ({"products": []}, "expected a product of kind 'rows'"),
        ({"products": [{"kind": "columns"}]}, "kind is one of rows, weight"),
        ({"products": [{"kind": "rows", "groups": 1, "m": 1, "n": 1, "k": "x"}]}, "expected k as"),
    ],
)
def test_faults_of_rates_are_named(tmp_path, change, message):
    document = json.loads(rates.COMMITTED.read_text())
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({**document, **change}))
    with pytest.raises(ToolError, match=message):
        rates.load_rates(path)


def test_rates_are_measured(monkeypatch, tmp_path):
    """On the CPU, as far as that goes: all but CUDA's graphs and events."""
    torch = pytest.importorskip("torch")
    from octofold._timing import CPU
    from octofold_tool.parallel import measure_rates

    kinds = [Product(kind, groups, 128, 256, 128) for kind in rates.KINDS for groups in (1, 2)]
    device = torch.device("cpu")
    plan = measure_rates.Plan(kinds, (256, 256), (2, 128, 64), device, CPU, CPU, 2, 10**6)
    found = measure_rates.measured(plan)
    assert [measured.product for measured in found.products] == kinds
    path = tmp_path / "rates.json"
    path.write_text(found.text())
    assert rates.load_rates(path) == found
    assert len(measure_rates.products()) == len(set(measure_rates.products()))


def test_experts_are_sharded_over_the_rest_of_the_shards():
    one = scheme(tensor=2, shards=8, experts=4)
    assert (one.replicas, one.expert_shards, one.expert_replicas) == (1, 4, 1)
    fewer = scheme(tensor=2, shards=1, experts=8)
    assert (fewer.replicas, fewer.expert_shards, fewer.expert_replicas) == (8, 1, 2)


def test_memory_of_whole_layers():
    """The head's, which is the largest: two gathered in BF16, FP32 gradients of one. Of a model
    without it, layers': two as codes, the transposed cast, FP32 gradients."""
    made = planner({**DENSE, "vocab_size": 65536})
    layers = memory_of(made.context(scheme(shards=16), FP8), STATES["fp32"]).layers
    assert layers == 2 * 65536 * HIDDEN * (2 * 2 + 4)
    made = planner({**DENSE, "vocab_size": 128})
    weights = sum(linear.size for linear in made.model.layers[0].linears)
    layers = memory_of(made.context(scheme(shards=16), FP8), STATES["fp32"]).layers
    assert layers == pytest.approx(weights * (2 * (1 + 4 / 16384) + 1 + 4))


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("way", [FP8, FP8_PRODUCTS, BF16])
def test_casts_of_gathered_tokens(way, tensor):
    """Codes are cast before they are gathered, BF16 after: by every GPU of the tensor group."""
    at = planner().context(scheme(tensor=tensor, shards=4), way)
    linears = {linear.name: linear for linear in at.model.layers[0].linears}
    again = tensor if way is FP8_PRODUCTS else 1
    for name, backward, gathered in (
        *(("qkv", False, True), ("qkv", True, False)),
        *(("o", False, False), ("o", True, True)),
    ):
        linear = linears[name]
        features = linear.out_features if backward else linear.in_features
        rate = RATES.cast_gradients if backward else RATES.cast_inputs
        tokens = 2048 * features * 4 / rate * (again if gathered else 1)
        weight = linear.size / tensor / RATES.cast_rows
        weights = weight * ((3 / 4 + 2 * backward) if way is FP8 else 3)
        expected = 0.0 if way is BF16 else tokens + weights
        assert cast_seconds(linear, at, backward) == pytest.approx(expected)
