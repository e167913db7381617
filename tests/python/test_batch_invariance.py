"""Rows of a product that do not depend on the rows beside them: fewer of them, elsewhere, in other
company, by the kernels that are chosen for that many."""

import itertools

import numpy as np
import octofold
import pytest
from octofold import Masked, Rows, ScaledTensor
from octofold.ops import Gathered

from tests.python import reference
from tests.python.casting import GRANULARITIES
from tests.python.devices import (
    cpu_only,
    device,
    gated_gemm,
    gemm,
    gemm_weight_only,
    gemm_weight_only_gradient,
    grouped_gemm,
    grouped_gemm_weight_only,
    grouped_gemm_weight_only_gradient,
    is_hopper,
    on_gpu,
    quantize,
)
from tests.python.own_process import python

pytestmark = pytest.mark.usefixtures("each_device")

PAIRS = (("1x128", "128x128"), ("1x128", "1x128"), ("channel", "channel"), ("tensor", "128x128"))
every_granularity = pytest.mark.parametrize("granularity", GRANULARITIES)
every_pair = pytest.mark.parametrize("pair", PAIRS[:3], ids="-".join)


def most():
    """Rows of the whole product."""
    return 1100 if on_gpu() else 300


def sets_of_rows(rng, count):
    """Some of so many rows, from anywhere, for each of the sizes that kernels are chosen by."""
    for size in (1, 2, 7, 16, 17, 33, 40, 64, 100, 128, 129, 300, 777, 1100):
        if size <= count:
            yield rng.permutation(count)[:size]


def numbers(rng, *shape, dtype="float32"):
    """Numbers of magnitudes so different that the order of a sum shows."""
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-7, 7, shape))
    return values.astype(reference.DTYPES[dtype])


def bits(x):
    """The bits of an array, or of a cast's codes and scales."""
    parts = (x.data, x.scale) if isinstance(x, ScaledTensor) else (x,)
    return [np.ascontiguousarray(part).view(f"u{part.itemsize}") for part in parts]


def assert_rows(some, whole, rows=slice(None)):
    for actual, expected in zip(bits(some), bits(whole), strict=True):
        np.testing.assert_array_equal(actual, expected[rows])


def rows_of(x, rows):
    """The same rows, anywhere, with the scales that they have."""
    if not isinstance(x, ScaledTensor):
        return x[rows]
    scale = x.scale if x.granularity == "tensor" else x.scale[rows]
    return ScaledTensor(x.data[rows], scale, x.granularity)


def check(product, rng, count):
    """product(rows): the results of these rows among so many."""
    whole = product(np.arange(count))
    for rows in sets_of_rows(rng, count):
        assert_rows(product(rows), whole, rows)


# Pairs of granularities, and what else a product has: C and a bias are added in one order, however
# the result leaves.
KINDS = [
    *((pair, dtype, "alone") for pair in PAIRS for dtype in ("float32", "bfloat16")),
    *((PAIRS[0], "float32", what) for what in ("c and bias", "in place")),
    (PAIRS[2], "bfloat16", "fast accumulation"),
]


@pytest.mark.parametrize(("pair", "dtype", "what"), KINDS, ids=str)
def test_gemm(pair, dtype, what, rng):
    # On a GPU: K that is split where rows are few, with a tail and without; K for threads to load.
    for n, k in ((576, 7168), (264, 2064), (392, 1003)) if on_gpu() else ((140, 515),):
        a, b = (
            octofold.quantize(numbers(rng, count, k), unit)
            for count, unit in zip((most(), n), pair, strict=True)
        )
        c, bias = numbers(rng, most(), n), numbers(rng, n)

        def product(rows, a=a, b=b, c=c, bias=bias):
            options = {"out_dtype": dtype, "batch_invariant": True}
            if what == "fast accumulation":
                options["fast_accumulation"] = True
            if what in ("c and bias", "in place"):
                options |= {"c": c[rows], "bias": bias}
            if what == "in place":
                options |= {"out": options["c"], "out_dtype": None}
            return gemm(rows_of(a, rows), b, **options)

        check(product, rng, most())


def test_gemm_that_casts(rng):
    """The same bits as of the cast and the product one after another, too."""
    count, n, k = (64, 576, 7168) if on_gpu() else (300, 140, 515)
    x, b = numbers(rng, count, k, dtype="bfloat16"), numbers(rng, n, k)
    b = octofold.quantize(b, "128x128")
    check(lambda rows: gemm(x[rows], b, batch_invariant=True), rng, count)
    apart = gemm(quantize(x), b, batch_invariant=True)
    assert_rows(gemm(x, b, batch_invariant=True), apart)


SIZES_OF_GROUPS = (0, 1, 300, 64, 7)


@every_pair
@pytest.mark.parametrize("kind", ["rows", "masked"])
def test_groups(kind, pair, rng):
    """A row of a group beside many, beside none, and as a product of its own."""
    groups, room, n, k = len(SIZES_OF_GROUPS), 300, 128, 2064 if on_gpu() else 515
    a = octofold.quantize(numbers(rng, groups * room, k), pair[0])
    b = octofold.quantize(numbers(rng, groups, n, k), pair[1], matrices=groups)
    options = {"out_dtype": "float32", "batch_invariant": True}

    def product(counts, expected):
        """The first rows of each group."""
        if kind == "masked":
            of_groups = ScaledTensor(a.data.reshape(groups, room, k), a.scale, a.granularity)
            return grouped_gemm(
                of_groups, b, Masked(np.array(counts, np.int32), expected), **options
            )
        places = [room * group + np.arange(count) for group, count in enumerate(counts)]
        ends = np.array([0, *itertools.accumulate(counts)], np.int32)
        rows = grouped_gemm(rows_of(a, np.concatenate(places)), b, Rows(ends), **options)
        return np.split(rows, ends[1:-1])

    many = product(SIZES_OF_GROUPS, room)
    few = product([min(count, 2) for count in SIZES_OF_GROUPS], 4)
    for group, count in enumerate(SIZES_OF_GROUPS):
        assert_rows(few[group][: min(count, 2)], many[group][: min(count, 2)])
        if count:
            own = rows_of(a, room * group + np.arange(count))
            assert_rows(gemm(own, b[group], **options), many[group][:count])


def test_gated_gemm(rng):
    """Its sums are gemm()'s; codes seldom show in which order they were made."""
    n, k = (768, 2064) if on_gpu() else (256, 400)
    a = octofold.quantize(numbers(rng, most(), k))
    b = octofold.quantize(numbers(rng, n, k), "128x128")
    check(lambda rows: gated_gemm(rows_of(a, rows), b, batch_invariant=True), rng, most())


FORWARD = gemm_weight_only, grouped_gemm_weight_only
BACKWARD = gemm_weight_only_gradient, grouped_gemm_weight_only_gradient
both_ways = pytest.mark.parametrize("products", [FORWARD, BACKWARD], ids=["forward", "gradient"])


def weight_only(rows, product, x, w, **options):
    options = {"out_dtype": "float32", "batch_invariant": True} | options
    return product(rows_of(x, rows), w, **options)


def weight_shapes():
    """On Hopper blocks share the tiles of the second, and not of the first; TMA has not the last
    two, of which one row alone would fit."""
    return ((512, 2048), (264, 7168), (200, 301), (1, 2047)) if on_gpu() else ((140, 515),)


@both_ways
@every_granularity
@pytest.mark.parametrize("types", [("bfloat16", "e4m3"), ("float16", "e5m2")], ids="-".join)
def test_weight_only(types, granularity, products, rng):
    product, (dtype, w_dtype) = products[0], types
    for n, k in weight_shapes():
        w = octofold.quantize(numbers(rng, n, k), f"{w_dtype} {granularity}")
        x = numbers(rng, most(), k if products is FORWARD else n, dtype=dtype)
        check(lambda rows, x=x, w=w: weight_only(rows, product, x, w), rng, most())
        if products is FORWARD:
            more = {"bias": numbers(rng, n), "out_dtype": dtype}
            check(lambda rows, x=x, w=w, o=more: weight_only(rows, product, x, w, **o), rng, most())
        whole = weight_only(slice(None), product, x, w)
        x[:5], x[6:40], x[41:] = np.inf, np.nan, -np.inf
        assert_rows(weight_only(slice(None), product, x, w)[[5, 40]], whole, [5, 40])


@every_granularity
@pytest.mark.parametrize("of_x", ["float32", "e4m3", "e5m2 1x128"])
def test_weight_only_of_vectors(of_x, granularity, rng):
    for n, k in weight_shapes():
        w = octofold.quantize(numbers(rng, n, k), granularity)
        x = numbers(rng, 16, k)
        x = octofold.quantize(x, of_x) if " " in of_x else x.astype(reference.DTYPES[of_x])
        whole = weight_only(slice(None), gemm_weight_only, x, w)
        for count in range(1, 16):
            rows = rng.permutation(16)[:count]
            assert_rows(weight_only(rows, gemm_weight_only, x, w), whole, rows)


@both_ways
@every_granularity
@pytest.mark.parametrize("kind", ["rows", "gathered", "masked"])
def test_weight_only_groups(kind, granularity, products, rng):
    """The first row of each group that has any is the same in all batches, and that of a product
    of the group's W: but on Hopper, where blocks share the tiles of a product without groups."""
    n, k = (264, 1152) if on_gpu() else (128, 515)
    columns, (dense, product) = k if products is FORWARD else n, products
    w = octofold.quantize(numbers(rng, 3, n, k), granularity, matrices=3)
    firsts, seen = numbers(rng, 3, columns, dtype="float16"), {}
    if not (on_gpu() and is_hopper()):
        seen = {i: weight_only(slice(i, i + 1), dense, firsts, w[i])[0] for i in range(3)}
    for sizes in ((1, 0, 1), (0, 16, 3), (17, 1, 40), (300, 0, 129), (129, 300, 7)):
        ends = np.array([0, *itertools.accumulate(sizes)], np.int32)
        if kind == "masked":
            room = max(sizes) + 3
            x = numbers(rng, 3, room, columns, dtype="float16")
            x[:, 0] = firsts
            counts = np.array(sizes, np.int32)
            groups = [Masked(counts, expected) for expected in (1, min(8, room), room)]
        else:
            x, groups = numbers(rng, sum(sizes), columns, dtype="float16"), [Rows(ends)]
            present = [group for group in range(3) if sizes[group]]
            x[ends[present]] = firsts[present]
            if kind == "gathered":
                places = rng.permutation(len(x)).astype(np.int32)
                x, given = Gathered(np.empty_like(x), places), x
                x.x[places] = given
        for each in groups:
            out = product(x, w, each, out_dtype="float32", batch_invariant=True)
            for group in range(3):
                if sizes[group]:
                    first = out[group, 0] if kind == "masked" else out[ends[group]]
                    assert_rows(first, seen.setdefault(group, first))
    assert len(seen) == 3


@pytest.fixture
def switch():
    """The switch for all calls of the process."""
    yield octofold.set_batch_invariant
    octofold.set_batch_invariant(False)


def test_the_switch_is_for_all_calls(switch, rng):
    a, b = (octofold.quantize(numbers(rng, rows, 515), "channel") for rows in (300, 140))
    x = numbers(rng, 300, 515, dtype="float16")
    one = gemm(rows_of(a, [7]), b, batch_invariant=True)
    of_weights = gemm_weight_only(x[7:8], b, batch_invariant=True)
    assert octofold.is_batch_invariant() is False
    switch(True)
    assert octofold.is_batch_invariant() is True
    assert_rows(gemm(a, b)[7], one[0])
    assert_rows(gemm_weight_only(x, b)[7], of_weights[0])


def normal(rng, *shape, dtype="float16"):
    import torch

    return torch.from_numpy(rng.standard_normal(shape)).to(device(), getattr(torch, dtype))


def check_tensors(outcome, rng, count):
    """outcome(rows): the tensors that belong to these rows."""
    import torch

    whole = outcome(torch.arange(count, device=device()))
    for rows in sets_of_rows(rng, count):
        rows = torch.from_numpy(rows).to(device())
        for some, of_all in zip(outcome(rows), whole, strict=True):
            assert torch.equal(some, of_all[rows])


@pytest.mark.slow
def test_the_switch_reaches_layers(switch, rng):
    """Casts, norms, experts and routing among them. Layers of a GPU without FP8 products take
    torch's, which the switch does not reach."""
    torch = pytest.importorskip("torch")
    gemm(*(octofold.quantize(numbers(rng, 128, 128)) for _ in "ab"))  # skips the test there
    options = {"device": device(), "dtype": torch.bfloat16}
    experts = octofold.nn.Experts(512, 256, 8, **options)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_(std=0.05)
    depth = 7168 if on_gpu() else 1024
    linear = octofold.nn.Linear(depth, 512, force_fp8=True, **options)
    norm = octofold.nn.NormLinear(512, 512, force_fp8=True, **options)
    x = normal(rng, most(), depth, dtype="bfloat16")
    ids = torch.rand(most(), 8, device=device()).argsort()[:, :2].int()
    shares = torch.rand(most(), 2, device=device())
    switch(True)
    with torch.no_grad():
        check_tensors(
            lambda rows: [experts(norm(linear(x[rows])), ids[rows], shares[rows])], rng, most()
        )


def test_experts_hand_it_on(rng):
    torch = pytest.importorskip("torch")
    recipe = octofold.nn.recipes.batch_invariant("blockwise")
    stacks = [
        octofold.quantize(normal(rng, 4, *shape, dtype="float32"), "128x128", matrices=4)
        for shape in ((256, 384), (384, 128))
    ]
    x, dy = (normal(rng, 300, 384) for _ in range(2))
    ids, weights = torch.randint(0, 4, (300, 2)), torch.rand(300, 2)
    ids, weights = ids.to(device()), weights.to(device())

    def outcome(tokens):
        leaf = x[tokens].requires_grad_()
        y = octofold.experts(
            leaf, ids[tokens], weights[tokens], *stacks, recipe=recipe, compute="weight-only"
        )
        return y, *torch.autograd.grad(y, leaf, dy[tokens])

    check_tensors(outcome, rng, 300)


def test_a_layer_hands_it_on(rng):
    """The gradient too, also for more tokens than a copy of the weight is quicker for."""
    torch = pytest.importorskip("torch")
    from octofold.nn import weight_only_linear

    linear = torch.nn.Linear(1024, 264, device=device(), dtype=torch.float16)
    layer = weight_only_linear(linear, batch_invariant=True)
    assert "batch_invariant=True" in repr(layer)
    x, dy = (normal(rng, most(), columns) for columns in (1024, 264))

    def outcome(rows):
        leaf = x[rows].requires_grad_()
        y = layer(leaf)
        return y, *torch.autograd.grad(y, leaf, dy[rows])

    check_tensors(outcome, rng, most())


@cpu_only
def test_a_conversion_hands_it_on():
    torch = pytest.importorskip("torch")
    from octofold.nn import convert_weight_only

    linear = torch.nn.Linear(515, 140, dtype=torch.float16)
    report = convert_weight_only(torch.nn.Sequential(linear), batch_invariant=True)
    assert report.model[0].weight.batch_invariant
    with pytest.raises(octofold.InvalidArgumentError, match="'batch_invariant'"):
        convert_weight_only(linear, activations="auto", batch_invariant=True)


@cpu_only
def test_the_switch_wants_a_bool():
    with pytest.raises(octofold.InvalidArgumentError, match="'enabled': expected True or False"):
        octofold.set_batch_invariant(1)


@cpu_only
def test_the_environment_switches_it_on():
    script = "import octofold; print(octofold.is_batch_invariant())"
    assert python(script, OCTOFOLD_BATCH_INVARIANT="1") == "True\n"
