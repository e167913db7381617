"""The registered torch ops by torch's own check: schemas, fakes, what is written."""

import math

import octofold
import pytest
from reference import GRANULARITIES

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


OPTIONS = (None, "saturate", "te")  # of casts


def fp8(*shape):
    return torch.zeros(shape).to(torch.float8_e4m3fn)


def scale_of(granularity, *shape):
    return torch.empty(octofold.scale_shape(granularity, *shape))


def scaled(rows, cols, granularity):
    cast = octofold.quantize(random(rows, cols), granularity=granularity)
    return cast.data, cast.scale


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("shape", [(130, 300), (256, 128), (127, 1), (2, 65, 300)])
def test_opcheck_quantize(opcheck, granularity, transpose, shape):
    rows, cols = math.prod(shape[:-1]), shape[-1]
    shape_of_data = (cols, rows) if transpose else shape
    results = fp8(*shape_of_data), scale_of(granularity, *shape_of_data)
    arguments = (random(*shape), None, None, *results, granularity, *OPTIONS, transpose, None)
    opcheck(torch.ops.octofold.quantize, arguments)


def test_opcheck_quantize_with_given_scales(opcheck):
    x = random(130, 300)
    scale = octofold.quantize(x).scale
    arguments = (x, scale, None, fp8(130, 300), None, "1x128", *OPTIONS, False, None)
    opcheck(torch.ops.octofold.quantize, arguments)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_quantize_both(opcheck, granularity):
    results = fp8(130, 300), scale_of(granularity, 130, 300)
    transposed = fp8(300, 130), scale_of(granularity, 300, 130)
    inputs = random(130, 300), None, None, None
    arguments = (*inputs, *results, *transposed, granularity, *OPTIONS, None, None)
    opcheck(torch.ops.octofold.quantize_both, arguments)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_stacks(opcheck, granularity):
    def results(*shape):
        scale = octofold.scale_shape(granularity, *shape, matrices=3)
        return fp8(*shape), torch.empty(scale)

    x, rows, transposed = random(3, 130, 300), results(3, 130, 300), results(3, 300, 130)
    arguments = (x, None, None, *transposed, granularity, *OPTIONS, True, 3)
    opcheck(torch.ops.octofold.quantize, arguments)
    arguments = (x, None, None, None, *rows, *transposed, granularity, *OPTIONS, None, 3)
    opcheck(torch.ops.octofold.quantize_both, arguments)


def offsets_of(*offsets):
    return torch.tensor(offsets, dtype=torch.int32)


def test_opcheck_groups(opcheck):
    rows = fp8(130, 300), scale_of("1x128", 130, 300)
    transposed = fp8(300, 384), scale_of("128x128", 300, 384)
    inputs = random(130, 300), None, None, offsets_of(0, 5, 130)
    arguments = (*inputs, *rows, *transposed, "1x128", *OPTIONS, "128x128", None)
    opcheck(torch.ops.octofold.quantize_both, arguments)


@pytest.mark.parametrize("factors", [False, True])
def test_opcheck_gathered(opcheck, factors):
    sources, of_places = offsets_of(5, -1, 0, 259, 7), random(130, 2) if factors else None
    rows = fp8(5, 300), scale_of("1x128", 5, 300)
    for offsets, columns in ((None, 5), (offsets_of(0, 3, 4), 256)):
        transposed = fp8(300, columns), scale_of("1x128", 300, columns)
        inputs = random(130, 300), sources, of_places, offsets
        arguments = (*inputs, *rows, *transposed, 2, "1x128", None, *OPTIONS, "both")
        opcheck(torch.ops.octofold.quantize_gathered, arguments)


def test_opcheck_two_level_scales(opcheck):
    rows = fp8(130, 300), scale_of("1x128", 130, 300)
    transposed = fp8(300, 130), scale_of("128x128", 300, 130)
    factors = random(300).abs()
    options = "1x128", *OPTIONS, "128x128", None
    arguments = (random(130, 300), None, factors, None, *rows, *transposed, *options)
    opcheck(torch.ops.octofold.quantize_both, arguments)
    arguments = (*scaled(300, 130, "128x128"), factors, random(300, 130), "128x128")
    opcheck(torch.ops.octofold.dequantize, arguments)
    operands = (*scaled(5, 130, "1x128"), *scaled(300, 130, "128x128"))
    arguments = (*operands, None, None, factors, random(5, 300), "1x128", "128x128", False, False)
    opcheck(torch.ops.octofold.gemm, arguments)


@pytest.mark.parametrize("targets", ["rows", "transposed", "both"])
def test_opcheck_activations(opcheck, targets):
    none = None, None
    x, gradient = random(130, 600), random(130, 300)
    codes = octofold.quantize(x, granularity="channel")
    activation = torch.ops.octofold.quantize_activation
    back = torch.ops.octofold.quantize_activation_gradient
    for columns, op, inputs, of_x, x_dtype in (
        (300, activation, (x, None), None, (None,)),
        (300, activation, (codes.data, codes.scale), "channel", ("float16",)),
        (600, back, (gradient, x, None), None, ()),
        (600, back, (gradient, codes.data, codes.scale), "channel", ()),
    ):
        rows = fp8(130, columns), scale_of("1x128", 130, columns)
        transposed = fp8(columns, 130), scale_of("1x128", columns, 130)
        results = {
            "rows": rows + none,
            "transposed": none + transposed,
            "both": rows + transposed,
        }[targets]
        choices = of_x, "swiglu", "halves", "1x128", None, *OPTIONS, *x_dtype, targets
        opcheck(op, (*inputs, None, *results, None, None, None, *choices, None))
        sums, workspace = torch.zeros(columns), torch.zeros(2, columns)
        opcheck(op, (*inputs, None, *results, sums, None, workspace, *choices, "sums"))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_dequantize(opcheck, granularity):
    out = torch.empty(130, 300, dtype=torch.bfloat16)
    arguments = (*scaled(130, 300, granularity), None, out, granularity)
    opcheck(torch.ops.octofold.dequantize, arguments)


def test_opcheck_convert(opcheck):
    opcheck(torch.ops.octofold.convert, (random(130, 300), fp8(130, 300), "nan"))


@pytest.mark.parametrize("addend", [None, torch.float32])
@pytest.mark.parametrize("in_place", [False, True])
def test_opcheck_gemm(opcheck, addend, in_place):
    operands = (*scaled(5, 300, "1x128"), *scaled(7, 300, "128x128"))
    c = None if addend is None or in_place else random(5, 7, dtype=addend)
    arguments = (*operands, c, random(7), None, random(5, 7), "1x128", "128x128", False, in_place)
    opcheck(torch.ops.octofold.gemm, arguments)


def scaled_groups(groups, rows, cols):
    cast = octofold.quantize(random(groups, rows, cols), granularity="1x128")
    return cast.data, cast.scale


@pytest.mark.parametrize("in_place", [False, True])
def test_opcheck_groups_of_rows(opcheck, in_place):
    offsets, options = offsets_of(0, 3, 4), ("1x128", "1x128", False)
    operands = (*scaled(5, 300, "1x128"), *scaled_groups(2, 7, 300))
    c = None if in_place else random(5, 7)
    arguments = (*operands, offsets, c, random(2, 7), random(5, 7), *options, in_place)
    opcheck(torch.ops.octofold.grouped_gemm, arguments)


def test_opcheck_masked_groups(opcheck):
    for bias, expected_rows in ((None, None), (random(2, 7), 1)):
        operands = (*scaled_groups(2, 5, 300), *scaled_groups(2, 7, 300), offsets_of(3, 0))
        options = "1x128", "1x128", False, expected_rows
        opcheck(torch.ops.octofold.masked_gemm, (*operands, bias, random(2, 5, 7), *options))


@pytest.mark.parametrize("in_place", [False, True])
def test_opcheck_groups_of_k(opcheck, in_place):
    operands = (*scaled(5, 384, "1x128"), *scaled(7, 384, "128x128"), offsets_of(0, 3, 130))
    c = None if in_place else random(2, 5, 7)
    arguments = (*operands, c, random(2, 5, 7), "1x128", "128x128", False, in_place)
    opcheck(torch.ops.octofold.grouped_gemm_k, arguments)


def test_opcheck_gated_groups(opcheck):
    weights = octofold.quantize(random(2, 256, 300), granularity="128x128")
    operands = (*scaled(5, 300, "1x128"), weights.data, weights.scale, offsets_of(0, 3, 4))
    results = fp8(5, 128), scale_of("1x128", 5, 128)
    options = "1x128", "128x128", "swiglu", *OPTIONS
    opcheck(torch.ops.octofold.grouped_gated_gemm, (*operands, *results, *options))


def test_opcheck_dot(opcheck):
    a, b = scaled(1, 20_000, "1x128"), scaled(1, 20_000, "tensor")
    results = torch.empty(()), torch.empty(3)
    opcheck(torch.ops.octofold.dot, (*a, *b, *results, "1x128", "tensor"))
    x = random(5)
    arguments = (x, None, x.bfloat16(), None, torch.empty(()), torch.empty(1), None, None)
    opcheck(torch.ops.octofold.dot, arguments)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_gemv(opcheck, granularity):
    w, out = scaled(130, 300, granularity), torch.empty(3, 130)
    arguments = (*w, random(3, 300), None, out, granularity, None)
    opcheck(torch.ops.octofold.gemv, arguments)
    x = scaled(3, 300, "1x128")
    opcheck(torch.ops.octofold.gemv, (*w, *x, out, granularity, "1x128"))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_weight_only(opcheck, granularity):
    w, x = scaled(130, 300, granularity), random(5, 300, dtype=torch.float16)
    dy = random(5, 130, dtype=torch.float16)
    for bias in (None, random(130)):
        arguments = (x, *w, bias, torch.empty_like(dy), None, granularity)
        opcheck(torch.ops.octofold.gemm_weight_only, arguments)
    arguments = (dy, *w, torch.empty_like(x), torch.empty(0), granularity)
    opcheck(torch.ops.octofold.gemm_weight_only_gradient, arguments)
    w, x = scaled(130, 1100, granularity), random(20, 1100, dtype=torch.float16)
    out = torch.empty(20, 130, dtype=torch.float16), torch.empty(2 * 20 * 130)
    opcheck(torch.ops.octofold.gemm_weight_only, (x, *w, None, *out, granularity))


@pytest.mark.parametrize("logarithms", [False, True])
def test_opcheck_attention(opcheck, logarithms):
    k, v = fp8(2, 20, 2, 64), fp8(2, 20, 2, 64)
    inputs = random(2, 3, 4, 64, dtype=torch.float16), k, v, torch.ones(1), torch.ones(2)
    results = torch.empty(2, 3, 4, 64, dtype=torch.float16), torch.empty(24 * 64 * 66)
    log_sum_exp = torch.empty(2, 4, 3) if logarithms else None
    counts = offsets_of(20, 3)
    arguments = (*inputs, None, None, counts, None, *results, log_sum_exp, 0.0, -1, 0)
    dtype = "float32" if logarithms else ""
    opcheck(torch.ops.octofold.attention, arguments, dtype)
    table = offsets_of(1, 0).view(2, 1)
    pages = fp8(2, 32, 2, 64), fp8(2, 32, 2, 64), None, torch.ones(2, 2)
    arguments = (inputs[0], *pages, None, None, counts, table, *results, log_sum_exp, 0.1, 7, -1)
    opcheck(torch.ops.octofold.attention, arguments, dtype)
