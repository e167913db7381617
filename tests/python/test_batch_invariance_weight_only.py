"""Rows of products with FP8 weights alone that do not depend on the rows beside them."""

import itertools

import numpy as np
import octofold
import pytest
from octofold.ops import Gathered, gemm_weight_only_gradient, grouped_gemm_weight_only_gradient

from tests.python.casting import GRANULARITIES

COUNTS = 1, 2, 7, 16, 17, 40, 129, 300


def numbers(rng, *shape):
    """Numbers of magnitudes so different that the order of a sum shows."""
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 6, shape))
    return values.astype(np.float16)


def invariant(product, *arguments):
    result = product(*arguments, out_dtype="float32", batch_invariant=True)
    return result.view(np.int32)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("product", [octofold.gemm_weight_only, gemm_weight_only_gradient])
def test_rows(rng, product, granularity):
    w = octofold.quantize(numbers(rng, 140, 515), granularity)
    x = numbers(rng, 300, 515 if product is octofold.gemm_weight_only else 140)
    whole = invariant(product, x, w)
    for count in COUNTS:
        rows = rng.permutation(300)[:count]
        np.testing.assert_array_equal(invariant(product, x[rows], w), whole[rows])
    x[:5], x[6:40], x[41:] = np.inf, np.nan, -np.inf
    np.testing.assert_array_equal(invariant(product, x, w)[[5, 40]], whole[[5, 40]])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_vectors(rng, granularity):
    w = octofold.quantize(numbers(rng, 140, 515), granularity)
    x = numbers(rng, 16, 515).astype(np.float32)
    codes = octofold.quantize(x)
    whole = invariant(octofold.gemm_weight_only, x, w)
    whole_of_codes = invariant(octofold.gemm_weight_only, codes, w)
    for count in range(1, 16):
        rows = rng.permutation(16)[:count]
        np.testing.assert_array_equal(invariant(octofold.gemm_weight_only, x[rows], w), whole[rows])
        some = octofold.ScaledTensor(codes.data[rows], codes.scale[rows], "1x128")
        np.testing.assert_array_equal(
            invariant(octofold.gemm_weight_only, some, w), whole_of_codes[rows]
        )


@pytest.mark.parametrize("kind", ["rows", "gathered", "masked"])
@pytest.mark.parametrize("gradient", [False, True])
def test_groups(rng, gradient, kind):
    """The first row of each group that has any is the same in all batches, and that of a product
    of the group's W."""
    w = octofold.quantize(numbers(rng, 3, 128, 515), "128x128", matrices=3)
    product, dense = octofold.grouped_gemm_weight_only, octofold.gemm_weight_only
    if gradient:
        product, dense = grouped_gemm_weight_only_gradient, gemm_weight_only_gradient
    columns = 128 if gradient else 515
    firsts = numbers(rng, 3, columns)
    expected = [
        invariant(dense, firsts[i : i + 1], octofold.ScaledTensor(w.data[i], w.scale[i], "128x128"))
        for i in range(3)
    ]
    for sizes in ((1, 0, 1), (0, 16, 3), (129, 1, 40)):
        offsets = np.array([0, *itertools.accumulate(sizes)], np.int32)
        x = numbers(rng, sum(sizes), columns)
        room = max(sizes) + 2
        of_masked = numbers(rng, 3, room, columns)
        of_masked[:, 0] = firsts
        for group, begin in enumerate(offsets[:-1]):
            if sizes[group]:
                x[begin] = firsts[group]
        if kind == "masked":
            counts = np.array(sizes, np.int32)
            out = invariant(product, of_masked, w, octofold.Masked(counts, 1))[:, 0]
        else:
            given = x
            if kind == "gathered":
                places = rng.permutation(len(x)).astype(np.int32)
                given = Gathered(np.empty_like(x), places)
                given.x[places] = x
            out = invariant(product, given, w, octofold.Rows(offsets))
            out = out[np.minimum(offsets[:-1], len(out) - 1)]
        for group in range(3):
            if sizes[group]:
                np.testing.assert_array_equal(out[group], expected[group][0])


def test_the_switch_is_for_all_calls(rng):
    w = octofold.quantize(numbers(rng, 140, 515), "128x128")
    x = numbers(rng, 300, 515)
    one = invariant(octofold.gemm_weight_only, x[7:8], w)
    octofold.set_batch_invariant(True)
    try:
        whole = octofold.gemm_weight_only(x, w, out_dtype="float32").view(np.int32)
    finally:
        octofold.set_batch_invariant(False)
    np.testing.assert_array_equal(whole[7], one[0])


def test_experts_hand_it_on():
    torch = pytest.importorskip("torch")
    from octofold import nn

    torch.manual_seed(1)
    recipe = nn.recipes.batch_invariant("blockwise")
    shapes = (4, 256, 384), (4, 384, 128)
    stacks = [octofold.quantize(torch.randn(s), "128x128", matrices=4) for s in shapes]
    x, dy = torch.randn(300, 384).half(), torch.randn(300, 384).half()
    ids, weights = torch.randint(0, 4, (300, 2)), torch.rand(300, 2)

    def outcome(tokens):
        leaf = x[tokens].requires_grad_()
        y = octofold.experts(
            leaf, ids[tokens], weights[tokens], *stacks, recipe=recipe, compute="weight-only"
        )
        return y, *torch.autograd.grad(y, leaf, dy[tokens])

    whole = outcome(torch.arange(300))
    for count in COUNTS:
        tokens = torch.randperm(300)[:count]
        for some, of_all in zip(outcome(tokens), whole, strict=True):
            assert torch.equal(some, of_all[tokens])


def test_a_layer_hands_it_on():
    torch = pytest.importorskip("torch")
    from octofold.nn import WeightOnlyLinear, convert_weight_only

    torch.manual_seed(1)
    linear = torch.nn.Linear(515, 140, dtype=torch.float16)
    layer = WeightOnlyLinear.from_linear(linear, batch_invariant=True)
    assert "batch_invariant=True" in repr(layer)
    x = torch.randn(300, 515).half().requires_grad_()
    dy = torch.randn(300, 140).half()
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    for count in COUNTS:
        rows = torch.randperm(300)[:count]
        some = x.detach()[rows].requires_grad_()
        of_some = layer(some)
        assert torch.equal(of_some, y[rows])
        assert torch.equal(torch.autograd.grad(of_some, some, dy[rows])[0], dx[rows])
    report = convert_weight_only(torch.nn.Sequential(linear), batch_invariant=True)
    assert report.model[0].batch_invariant
    with pytest.raises(octofold.InvalidArgumentError, match="'batch_invariant'"):
        convert_weight_only(linear, activations="auto", batch_invariant=True)
