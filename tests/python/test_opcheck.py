"""The registered torch ops by torch's own check: schemas, fakes, what is written. A call says which
op there is, and with which arguments."""

import itertools

import octofold
import pytest
from octofold import Depth, Format, Masked, Rows, ScaledTensor, ops
from octofold.ops import Activated, ActivationGradient, Gathered, Normed, Target

from tests.cases.gemm import PAIRS
from tests.python.casting import GRANULARITIES, formats

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def halves(*shape):
    return random(*shape, dtype=torch.float16)


def scaled(*shape, granularity="1x128", matrices=None):
    return octofold.quantize(random(*shape), granularity, matrices=matrices)


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def empty_like(cast):
    return ScaledTensor(torch.zeros_like(cast.data), torch.zeros_like(cast.scale), cast.granularity)


SHAPES = ((130, 300), (256, 128), (127, 1), (2, 65, 300))


@pytest.mark.usefixtures("tensors_there")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_casts(opcheck, granularity, shape):
    x, format = random(*shape), Format(granularity=granularity, rule="te")
    opcheck(lambda: octofold.quantize(x, format))
    for targets in ("rows", "transposed", "both"):
        opcheck(lambda t=targets: ops.cast(x, **formats(format, t)))
    codes = octofold.quantize(x, format)
    opcheck(lambda: codes.dequantize("bfloat16"))
    out = empty_like(codes)
    opcheck(lambda: octofold.quantize(x, format, out=out))


@pytest.mark.usefixtures("tensors_there")
def test_codes_alone(opcheck):
    x = scaled(3, 130, 300)
    opcheck(lambda: ops.convert_dtype(x.dequantize(), "e4m3", overflow="nan"))
    opcheck(lambda: ops.transpose(x.data))


@pytest.mark.usefixtures("tensors_there")
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_gemm(opcheck, pair):
    a, b = (scaled(rows, 300, granularity=unit) for rows, unit in zip((50, 70), pair, strict=True))
    c, bias = random(50, 70), random(70)
    opcheck(lambda: octofold.gemm(a, b, bias=bias, out_dtype="float32"))
    opcheck(lambda: octofold.gemm(a, b, c=c, bias=bias, out_dtype="float32"))
    opcheck(lambda: octofold.gemm(a, b, bias=bias, out=torch.empty(50, 70)))
    opcheck(lambda: octofold.gemm(a, b, c=c, bias=bias, out=c))


def other_casts():
    x, given = random(130, 300), scaled(130, 300).scale
    by_amax = Target("channel te", amax=2 * x.abs().amax(0))
    yield lambda: octofold.quantize(x, scale=given)
    yield lambda: ops.cast(x, rows=Target("1x128", scale=given))
    yield lambda: ops.cast(x, rows="te", transposed=by_amax)
    for columns in ("sums", "amax", "both"):
        yield lambda c=columns: ops.cast(x, transposed="te", columns=c)
    offsets = int32(0, 5, 130)
    yield lambda: ops.cast(x, rows="1x128", transposed="128x128", offsets=offsets)
    stack, used = random(3, 130, 300), Rows(int32(0, 2, 2, 5))
    for unit, matrices in itertools.product(GRANULARITIES, (3, used)):
        yield lambda u=unit, m=matrices: ops.cast(stack, rows=u, transposed=u, matrices=m)
    sources, few = int32(5, -1, 0, 259, 7), int32(0, 3, 4)
    for name, groups in itertools.product(("none", "factors", "transposed_factors"), (None, few)):
        of_places = {} if name == "none" else {name: random(130, 2)}
        rows = Gathered(x, sources, slots=2, **of_places)
        yield lambda r=rows, g=groups: ops.cast(r, rows="1x128", transposed="1x128", offsets=g)


def activated_casts():
    x, gradient = random(130, 600), random(130, 300)
    codes = octofold.quantize(x, "channel")
    sources = Activated(x), Activated(codes, dtype="float16")
    sources += ActivationGradient(gradient, x), ActivationGradient(gradient, codes)
    for source in sources:
        for targets, columns in itertools.product(("rows", "transposed", "both"), (None, "sums")):
            options = {**formats("1x128", targets), "columns": columns}
            yield lambda s=source, o=options: ops.cast(s, **o)


def norms():
    x, residual = random(130, 300), random(130, 300)
    operands = {name: random(300) for name in ("weight", "bias")}
    operands |= {name: random(2, 300) for name in ("ada_scale", "ada_shift")}
    plain, every = Normed(x), Normed(x, **operands, residual=residual, kind="layer")
    statistics = torch.rand(130), random(130)
    for source, columns in ((plain, None), (every, "amax")):
        yield lambda s=source: ops.norm(s)
        yield lambda s=source, c=columns: ops.cast(s, rows="te", columns=c)
    yield lambda: ops.norm_gradient(x, x, statistics[0])
    more = {**operands, "residual_gradient": residual, "kind": "layer"}
    yield lambda: ops.norm_gradient(x, x, *statistics, **more)


def products():
    a, b, x = scaled(5, 300), scaled(400, 300, granularity="128x128"), random(5, 300)
    bias, flags = random(400), torch.ones(5, dtype=torch.int32)
    yield lambda: octofold.gemm(x, b, bias=bias)
    yield lambda: octofold.gemm(a, b, arrivals=octofold.Arrivals(flags, 1))
    yield lambda: ops.gated_gemm(a, b)
    stack, offsets = scaled(2, 256, 300, granularity="128x128"), Rows(int32(0, 3, 4))
    yield lambda: ops.gated_gemm(a, stack, offsets)
    w, addend, of_groups = scaled(2, 7, 300), random(5, 7), random(2, 7)
    yield lambda: octofold.grouped_gemm(a, w, offsets, bias=of_groups)
    options = {"c": addend, "bias": of_groups, "out_dtype": "float32"}
    yield lambda: octofold.grouped_gemm(a, w, offsets, **options)
    yield lambda: octofold.grouped_gemm(a, w, offsets, c=addend, out=addend)
    masked, counts = scaled(2, 5, 300), int32(3, 0)
    for groups, more in ((Masked(counts), {}), (Masked(counts, 1), {"bias": of_groups})):
        yield lambda g=groups, m=more: octofold.grouped_gemm(masked, w, g, **m)
    left, right = scaled(5, 384), scaled(7, 384, granularity="128x128")
    depth, sums = Depth(int32(0, 3, 130)), random(2, 5, 7)
    yield lambda: octofold.grouped_gemm(left, right, depth, c=sums, out_dtype="float32")
    yield lambda: octofold.grouped_gemm(left, right, depth, c=sums, out=sums)
    long, other = scaled(1, 20_000), scaled(1, 20_000, granularity="tensor")
    yield lambda: ops.dot(long, other)
    yield lambda: ops.dot(random(5), random(5, dtype=torch.bfloat16))


def weight_only():
    dy, offsets, order = halves(5, 130), Rows(int32(0, 2, 2, 5)), torch.arange(5).int()
    for unit in GRANULARITIES:
        w, deep = scaled(130, 300, granularity=unit), scaled(130, 1100, granularity=unit)
        for x in (random(3, 300), scaled(3, 300), halves(5, 300)):
            yield lambda x=x, w=w: octofold.gemm_weight_only(x, w)
        x, bias, many = halves(5, 300), random(130), halves(20, 1100)
        yield lambda x=x, w=w, b=bias: octofold.gemm_weight_only(x, w, bias=b)
        yield lambda w=w: ops.gemm_weight_only_gradient(dy, w)
        yield lambda x=many, w=deep: octofold.gemm_weight_only(x, w)
    w = scaled(3, 128, 300, granularity="128x128", matrices=3)
    for of in (lambda x: x, lambda x: Gathered(x, order)):
        x, back = of(halves(5, 300)), of(halves(5, 128))
        yield lambda x=x: octofold.grouped_gemm_weight_only(x, w, offsets, bias=random(3, 128))
        yield lambda x=back: ops.grouped_gemm_weight_only_gradient(x, w, offsets)


def attentions():
    q, counts = halves(2, 3, 4, 64), int32(20, 3)
    k, v = (scaled(2 * 20 * 2, 64).data.view(2, 20, 2, 64) for _ in "kv")
    scales = {"k_scale": torch.ones(1), "v_scale": torch.ones(2)}
    for more in ({}, {"return_log_sum_exp": True}):
        options = {**scales, "key_counts": counts, "causal": True, **more}
        yield lambda o=options: octofold.attention(q, k, v, **o)
    pages = {name: scaled(2 * 32 * 2, 64).data.view(2, 32, 2, 64) for name in "kv"}
    pages |= {
        "v_scale": torch.ones(2, 2),
        "key_counts": counts,
        "page_table": int32(1, 0).view(2, 1),
    }
    options = {"softmax_scale": 0.1, "window": (7, None), "compute": "fp8"}
    yield lambda: octofold.attention(q, **pages, **options)


def routing():
    logits, y, c, bias = random(6, 8), random(12, 40), random(6, 40), random(8)
    ids, weights = ops.top_k(logits, 2)
    _, _, positions = ops.sort_by_expert(ids, 8)
    by_groups = {"scoring": "sigmoid", "groups": 2, "top_groups": 1, "scaling_factor": 2.5}
    yield lambda: ops.top_k(logits, 2, normalize=True)
    yield lambda: ops.top_k(logits, 2, bias=bias, normalize=True, **by_groups)
    yield lambda: ops.top_k_gradient(random(6, 2), logits, ids, normalize=True)
    yield lambda: ops.sort_by_expert(ids, 8)
    yield lambda: ops.combine(y, positions, weights, c=c)
    yield lambda: ops.combine(y, positions)
    yield lambda: ops.combine_gradient(c, y, positions)
    yield lambda: ops.activation_dots(random(12, 20), y, positions)
    x, cos, sin = random(2, 9, 4, 64), random(1, 9, 64), random(1, 9, 64)
    for inverse in (False, True):
        yield lambda i=inverse: ops.rotary(x, cos, sin, inverse=i)


def layers():
    """Forward and backward in one call each, as compilers reach them."""

    def both_ways(function, *given, **options):
        leaves = [tensor.requires_grad_() for tensor in given]
        result = function(*leaves, **options)
        y = result[0] if isinstance(result, tuple) else result
        y.sum().backward()

    x, residual, weight, norm = random(2, 9, 96), random(2, 9, 96), random(72, 96), random(96)
    up, down, bias = random(2 * 40, 96), random(72, 40), random(2 * 40)
    yield lambda: octofold.linear(x, weight)
    for recipe in ("blockwise", "tensorwise"):
        yield lambda r=recipe: both_ways(octofold.linear, x, weight, random(72), recipe=r)
    yield lambda: both_ways(octofold.norm_linear, x, norm, weight, norm_bias=norm, norm="layer")
    yield lambda: both_ways(octofold.norm_linear, x, norm, weight, random(72), residual)
    yield lambda: octofold.mlp(x.bfloat16(), up, down)
    yield lambda: both_ways(octofold.mlp, x, up, down, bias, random(72))
    before = {"norm": "rms", "norm_weight": norm, "residual": residual}
    yield lambda: both_ways(octofold.mlp, x, up, down, keep_fp8=True, **before)


FAMILIES = (other_casts, activated_casts, norms, products, weight_only, attentions, routing, layers)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_other_ops(opcheck, family):
    for call in family():
        opcheck(call)
