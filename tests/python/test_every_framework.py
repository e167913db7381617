"""Every operation, called in each framework: torch's tensors, torch.compile and jax.jit have the
bits of NumPy's arrays, and torch's own check finds schemas and fakes right. A row is a function and
its arrays; it says which ops there are, and with which arguments."""

import copy
import itertools

import ml_dtypes
import numpy as np
import octofold
import pytest
from octofold import Arrivals, Depth, Format, Masked, Rows, ops
from octofold.ops import Activated, ActivationGradient, Gathered, Normed, Target

from tests.cases.gemm import PAIRS
from tests.python.casting import GRANULARITIES, formats
from tests.python.devices import Visit, device
from tests.python.judge import assert_same

BOTH = {"rows": "1x128", "transposed": "1x128"}


def random(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32).astype(dtype)


def halves(*shape):
    return random(*shape, dtype=np.float16)


def scaled(*shape, granularity="1x128", matrices=None):
    return octofold.quantize(random(*shape), granularity, matrices=matrices)


def codes(*shape):
    return random(*shape, dtype=ml_dtypes.float8_e4m3fn)


def int32(*numbers):
    return np.array(numbers, np.int32)


def casts():
    for shape, unit in itertools.product(((256, 128), (127, 1), (2, 65, 300)), GRANULARITIES):
        x, format = random(*shape), Format(granularity=unit, rule="te")
        yield lambda x, f=format: octofold.quantize(x, f), x
        for targets in ("rows", "transposed", "both"):
            sides = formats(format, targets)
            yield lambda x, s=sides: ops.cast(x, **s)[:2], x
        yield lambda x8: x8.dequantize("bfloat16"), octofold.quantize(x, format)


def other_casts():
    x, given = random(130, 300), scaled(130, 300).scale
    yield lambda x, s: octofold.quantize(x, scale=s), x, given
    yield lambda x, s: ops.cast(x, rows=Target("1x128", scale=s)).rows, x, given
    format = Format("e5m2", "channel", rule="compressed-tensors-0.12", overflow="nan")
    yield lambda x: octofold.quantize(x, format), random(3, 200, 300)
    yield (
        lambda x, a: ops.cast(x, rows="te", transposed=Target("channel te", amax=a))[:2],
        *(x, 2 * abs(x).max(0)),
    )
    for columns in ("sums", "amax", "both"):
        yield lambda x, c=columns: ops.cast(x, transposed="te", columns=c), x
    yield in_groups, x, int32(0, 5, 130)
    stack, used = random(3, 130, 300), int32(0, 2, 3, 5)
    for unit in GRANULARITIES:
        yield lambda x, u=unit: ops.cast(x, rows=u, transposed=u, matrices=3)[:2], stack
        yield (
            lambda x, n, u=unit: ops.cast(x, rows=u, transposed=u, matrices=Rows(n))[:2],
            *(
                stack,
                used,
            ),
        )
    sources, factors = int32(5, 12, 0, 259, 7), random(130, 2)
    yield lambda x, s: ops.cast(Gathered(x, s, slots=2), **BOTH)[:2], x, sources
    for name in ("factors", "transposed_factors"):

        def gathered(x, sources, factors, name=name):
            return Gathered(x, sources, slots=2, **{name: factors})

        yield lambda *given, of=gathered: ops.cast(of(*given), **BOTH)[:2], x, sources, factors
        yield (
            lambda n, *given, of=gathered: in_groups(of(*given), n),
            *(
                int32(0, 2, 5),
                *(x, sources, factors),
            ),
        )
    x = random(3, 128, 300)
    yield lambda x: ops.convert_dtype(x, "e4m3", overflow="nan"), x
    yield ops.transpose, codes(3, 20, 36)


def in_groups(x, offsets):
    """The parts of the casts that the first group has: what none has is as the memory was."""
    rows, transposed, *_ = ops.cast(x, rows="1x128", transposed="128x128", offsets=offsets)
    return rows, transposed.data[:, :2], transposed.scale[:, :1]


def named(operands):
    return dict(zip(("weight", "bias", "ada_scale", "ada_shift"), operands, strict=True))


def sources():
    x, gradient = random(130, 600), random(130, 300)
    x8 = octofold.quantize(x, "channel")
    for make, *given in (
        (Activated, x),
        (lambda x8: Activated(x8, "geglu", dtype="float16"), x8),
        (ActivationGradient, gradient, x),
        (ActivationGradient, gradient, x8),
    ):
        for targets, columns in itertools.product(("rows", "transposed", "both"), (None, "sums")):
            options = {**formats("1x128", targets), "columns": columns}
            yield lambda *given, m=make, o=options: ops.cast(m(*given), **o), *given
    x, residual, rstd, mean = random(130, 300), random(130, 300), abs(random(130)), random(130)
    operands = *(random(300) for _ in range(2)), *(random(2, 300) for _ in range(2))

    def every(x, residual, *operands):
        return Normed(x, **named(operands), residual=residual, kind="layer")

    for make, columns, *given in ((Normed, None, x), (every, "amax", x, residual, *operands)):
        yield lambda *given, m=make: ops.norm(m(*given)), *given
        yield lambda *given, m=make, c=columns: ops.cast(m(*given), rows="te", columns=c), *given
    yield ops.norm_gradient, x, x, rstd

    def gradient_of_every(x, rstd, mean, residual, *operands):
        options = {"residual_gradient": residual, "kind": "layer"}
        return ops.norm_gradient(x, x, rstd, mean, **named(operands), **options)

    yield gradient_of_every, x, rstd, mean, residual, *operands


def products():
    for pair in PAIRS:
        a, b = (scaled(n, 300, granularity=unit) for n, unit in zip((50, 70), pair, strict=True))
        c, bias = random(50, 70), random(70)
        yield lambda a, b, n: octofold.gemm(a, b, bias=n, out_dtype="float32"), a, b, bias
        yield (
            lambda a, b, c, n: octofold.gemm(a, b, c=c, bias=n, out_dtype="float32"),
            a,
            b,
            c,
            bias,
        )
    # Rows that begin at multiples of 16 bytes: some products have no kernels for others.
    a, b, x = scaled(5, 304), scaled(512, 304, granularity="128x128"), random(5, 304)
    yield octofold.gemm, a, b
    yield (
        lambda a: octofold.gemm(a, a, fast_accumulation=True),
        scaled(5, 304, granularity="channel"),
    )
    yield lambda x, b, n: octofold.gemm(x, b, bias=n, out_dtype="bfloat16"), x, b, random(512)
    yield lambda a, b: ops.gated_gemm(a, b, activation="geglu"), a, b
    stack, offsets = scaled(2, 256, 304, granularity="128x128"), int32(0, 3, 5)
    yield lambda a, w, n: ops.gated_gemm(a, w, Rows(n)), a, stack, offsets
    w, addend, of_groups = scaled(2, 7, 304), random(5, 7), random(2, 7)
    yield lambda a, w, n, b: octofold.grouped_gemm(a, w, Rows(n), bias=b), a, w, offsets, of_groups
    options = {"out_dtype": "float32"}
    yield (
        lambda a, w, n, c, b: octofold.grouped_gemm(a, w, Rows(n), c=c, bias=b, **options),
        *(a, w, offsets, addend, of_groups),
    )
    masked, counts = scaled(2, 5, 304), int32(5, 5)
    yield lambda a, w, n: octofold.grouped_gemm(a, w, Masked(n)), masked, w, counts
    yield (
        lambda a, w, n, b: octofold.grouped_gemm(a, w, Masked(n, 1), bias=b),
        *(masked, w, counts, of_groups),
    )
    left, right = scaled(5, 384), scaled(7, 384, granularity="128x128")
    yield (
        lambda a, b, n, c: octofold.grouped_gemm(a, b, Depth(n), c=c, out_dtype="float32"),
        *(left, right, int32(0, 3, 130), random(2, 5, 7)),
    )
    yield ops.dot, scaled(1, 20_000), scaled(1, 20_000, granularity="tensor")
    yield ops.dot, random(5), random(5, dtype=ml_dtypes.bfloat16)


def weight_only():
    dy, offsets, order = halves(5, 130), int32(0, 2, 2, 5), np.arange(5, dtype=np.int32)
    bias = random(130)
    for unit in GRANULARITIES:
        w, deep = scaled(130, 300, granularity=unit), scaled(130, 1100, granularity=unit)
        for x in (random(300), random(3, 300), scaled(3, 300), halves(5, 300)):
            yield octofold.gemm_weight_only, x, w
        yield octofold.gemm_weight_only, halves(20, 1100), deep
        yield lambda x, w, b: octofold.gemm_weight_only(x, w, bias=b), halves(5, 300), w, bias
        yield ops.gemm_weight_only_gradient, dy, w
    w = scaled(3, 128, 300, granularity="128x128", matrices=3)
    for of in (lambda x, order: x, Gathered):
        yield (
            lambda x, s, w, n, b, of=of: octofold.grouped_gemm_weight_only(
                of(x, s), w, Rows(n), bias=b
            ),
            *(halves(5, 300), order, w, offsets, random(3, 128)),
        )
        yield (
            lambda x, s, w, n, of=of: ops.grouped_gemm_weight_only_gradient(of(x, s), w, Rows(n)),
            *(halves(5, 128), order, w, offsets),
        )


def attentions():
    q, k, v = halves(2, 3, 4, 64), codes(2, 20, 2, 64), codes(2, 20, 2, 64)
    ones = np.ones(1, np.float32), np.ones(2, np.float32)
    for more in ({}, {"return_log_sum_exp": True}):

        def dense(q, k, v, k_scale, v_scale, counts, more=more):
            scales = {"k_scale": k_scale, "v_scale": v_scale}
            return octofold.attention(q, k, v, **scales, key_counts=counts, causal=True, **more)

        yield dense, q, k, v, *ones, int32(20, 3)

    def paged(q, k, v, v_scale, counts, table):
        options = {"softmax_scale": 0.1, "window": (7, None), "compute": "fp8"}
        arrays = {"v_scale": v_scale, "key_counts": counts, "page_table": table}
        return octofold.attention(q, k, v, **arrays, **options)

    pages = codes(2, 32, 2, 64), codes(2, 32, 2, 64)
    yield paged, q, *pages, np.ones((2, 2), np.float32), int32(20, 3), int32([1], [0])

    def packed(q, k, v, queries, keys):
        options = {"softmax_scale": 0.02, "causal": True}
        return octofold.attention(q, k, v, query_offsets=queries, key_offsets=keys, **options)

    packed_keys = codes(39, 2, 64), codes(39, 2, 64)
    yield packed, halves(12, 4, 64), *packed_keys, int32(0, 3, 12), int32(0, 30, 39)


def routing():
    logits, y, c, bias = random(6, 8), random(12, 40), random(6, 40), random(8)
    ids, weights = ops.top_k(logits, 2)
    positions = ops.sort_by_expert(ids, 8).positions
    by_groups = {"scoring": "sigmoid", "groups": 2, "top_groups": 1, "scaling_factor": 2.5}
    yield lambda logits: ops.top_k(logits, 2, normalize=True), logits
    yield lambda x, b: ops.top_k(x, 2, bias=b, normalize=True, **by_groups), logits, bias
    yield lambda *given: ops.top_k_gradient(*given, normalize=True), random(6, 2), logits, ids
    yield lambda ids: ops.sort_by_expert(ids, 8), ids
    yield lambda y, p, w, c: ops.combine(y, p, w, c=c), y, positions, weights, c
    yield ops.combine, y, positions
    yield ops.combine_gradient, c, y, positions
    yield ops.activation_dots, random(12, 20), y, positions
    for inverse in (False, True):
        tables = random(1, 9, 64), random(1, 9, 64)
        yield lambda *given, i=inverse: ops.rotary(*given, inverse=i), random(2, 9, 4, 64), *tables


def not_of_jax():
    """Views, rows that arrive, and results that go where the caller says, which XLA has not."""
    for format in ("e4m3", "float16"):
        yield lambda x, f=format: ops.unpack(ops.pack(x, f), f), random(3, 128, 300)
    a, b, c = scaled(50, 300), scaled(70, 300), random(50, 70)
    yield lambda x, out: octofold.quantize(x, out=out), random(50, 300), scaled(50, 300)
    yield lambda a, b, out: octofold.gemm(a, b, out=out), a, b, c
    yield lambda a, b, c: octofold.gemm(a, b, c=c, out=c), a, b, c
    yield (
        lambda q, k, out: octofold.attention(q, k, k, out=out),
        *(
            halves(2, 3, 4, 64),
            *(codes(2, 20, 2, 64), halves(2, 3, 4, 64)),
        ),
    )
    w, offsets, sums = scaled(2, 70, 300), int32(0, 3, 50), random(2, 50, 70)
    yield lambda a, w, n, c: octofold.grouped_gemm(a, w, Rows(n), c=c, out=c), a, w, offsets, c
    left, right = scaled(50, 384), scaled(70, 384, granularity="128x128")
    yield (
        lambda a, b, n, c: octofold.grouped_gemm(a, b, Depth(n), c=c, out=c),
        *(left, right, int32(0, 3, 130), sums),
    )
    flags = np.ones(5, np.int32)
    yield lambda a, b, n: octofold.gemm(a, b, arrivals=Arrivals(n, 1)), a, b, flags


FAMILIES = (casts, other_casts, sources, products, weight_only, attentions, routing, not_of_jax)
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)


def check(family, call):
    """call(function, arrays): the results of the function in another framework."""
    for function, *arrays in family():
        expected = function(*copy.deepcopy(arrays))
        assert_same(call(function, arrays), expected)


def in_torch(function, arrays):
    visit = Visit("cpu")
    return visit.back(function(*visit.there(arrays)))


@every_family
def test_torch_has_the_bits_of_numpy(family):
    pytest.importorskip("torch")
    check(family, in_torch)


@pytest.mark.slow
@every_family
def test_compiles_whole(family):
    torch = pytest.importorskip("torch")

    def compiled(function, arrays):
        torch.compiler.reset()
        options = {"fullgraph": True, "dynamic": True, "backend": "aot_eager"}
        return in_torch(torch.compile(function, **options), arrays)

    check(family, compiled)


@pytest.mark.parametrize("family", FAMILIES[:-1], ids=lambda family: family.__name__)
def test_jax_has_the_bits_of_numpy(family):
    pytest.importorskip("jax_tvm_ffi")
    from tests.python.jax_support import jitted

    check(family, lambda function, arrays: jitted(function, *arrays))


@pytest.mark.slow
@pytest.mark.usefixtures("tensors_there")
@every_family
def test_opcheck(family, opcheck):
    for function, *arrays in family():
        given = Visit(device()).there(arrays)
        opcheck(lambda f=function, g=given: f(*g))


def layers():
    """Forward and backward in one call each, as compilers reach them."""
    import torch

    def both_ways(function, *given, **options):
        leaves = [tensor.requires_grad_() for tensor in given]
        result = function(*leaves, **options)
        y = result[0] if isinstance(result, tuple) else result
        y.sum().backward()

    x, residual, weight, norm = map(torch.randn, ((2, 9, 96), (2, 9, 96), (72, 96), (96,)))
    up, down, bias, of_down = map(torch.randn, ((2 * 40, 96), (72, 40), (2 * 40,), (72,)))
    yield lambda: octofold.linear(x, weight)
    for recipe in ("blockwise", "tensorwise"):
        yield lambda r=recipe: both_ways(octofold.linear, x, weight, of_down, recipe=r)
    yield lambda: both_ways(octofold.norm_linear, x, norm, weight, norm_bias=norm, norm="layer")
    yield lambda: both_ways(octofold.norm_linear, x, norm, weight, of_down, residual)
    yield lambda: octofold.mlp(x.bfloat16(), up, down)
    yield lambda: both_ways(octofold.mlp, x, up, down, bias, of_down)
    before = {"norm": "rms", "norm_weight": norm, "residual": residual}
    yield lambda: both_ways(octofold.mlp, x, up, down, keep_fp8=True, **before)


@pytest.mark.slow
def test_opcheck_of_layers(opcheck):
    for call in layers():
        opcheck(call)
