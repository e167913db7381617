"""The registered torch ops by torch's own check: schemas, fakes, what is written."""

import octofold
import pytest

from tests.python.casting import GRANULARITIES

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow
on_each_device = pytest.mark.usefixtures("tensors_there")


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


OPTIONS = (None, "saturate", "te")  # of casts


def fp8(*shape):
    return torch.zeros(shape).to(torch.float8_e4m3fn)


def scale_of(granularity, *shape):
    return torch.empty(octofold.ops.scale_shape(granularity, *shape))


def scaled(rows, cols, granularity):
    cast = octofold.quantize(random(rows, cols), granularity)
    return cast.data, cast.scale


NOTHING = [None] * 7  # no scales, no factors, no largest magnitudes, no offsets
NONE = None, None


def targets_of(rows, transposed, matrices=None, columns=None):
    """The options of a cast: granularities, and what both have in common."""
    return rows, transposed, *OPTIONS, matrices, columns, None


@on_each_device
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", [(130, 300), (256, 128), (127, 1), (2, 65, 300)])
def test_opcheck_quantize(opcheck, granularity, shape):
    results = fp8(*shape), scale_of(granularity, *shape)
    arguments = (random(*shape), None, *results, granularity, *OPTIONS, None)
    opcheck(torch.ops.octofold.quantize, arguments)


def test_opcheck_quantize_with_given_scales(opcheck):
    x = random(130, 300)
    scale = octofold.quantize(x).scale
    arguments = (x, scale, fp8(130, 300), None, "1x128", *OPTIONS, None)
    opcheck(torch.ops.octofold.quantize, arguments)
    given = (x, None, scale, *[None] * 6, fp8(130, 300), *[None] * 6)
    opcheck(torch.ops.octofold.cast, (*given, *targets_of("1x128", None)))


@on_each_device
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("targets", ["rows", "transposed", "both"])
@pytest.mark.parametrize("shape", [(130, 300), (2, 65, 300)])
def test_opcheck_cast(opcheck, granularity, targets, shape):
    rows = fp8(*shape), scale_of(granularity, *shape)
    transposed = fp8(300, 130), scale_of(granularity, 300, 130)
    results = {"rows": rows + NONE, "transposed": NONE + transposed, "both": rows + transposed}
    units = [None if targets == other else granularity for other in ("transposed", "rows")]
    arguments = (random(*shape), None, *NOTHING, *results[targets], None, None, None)
    opcheck(torch.ops.octofold.cast, (*arguments, *targets_of(*units)))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_stacks(opcheck, granularity):
    def results(*shape):
        scale = octofold.ops.scale_shape(granularity, *shape, matrices=3)
        return fp8(*shape), torch.empty(scale)

    x, rows, transposed = random(3, 130, 300), results(3, 130, 300), results(3, 300, 130)
    opcheck(torch.ops.octofold.quantize, (x, None, *rows, granularity, *OPTIONS, 3))
    options = targets_of(granularity, granularity, matrices=3)
    for used in (None, offsets_of(0, 2, 2, 5)):
        arguments = (x, used, *NOTHING, *rows, *transposed, None, None, None, *options)
        opcheck(torch.ops.octofold.cast, arguments)


def offsets_of(*offsets):
    return torch.tensor(offsets, dtype=torch.int32)


def test_opcheck_groups(opcheck):
    rows = fp8(130, 300), scale_of("1x128", 130, 300)
    transposed = fp8(300, 384), scale_of("128x128", 300, 384)
    inputs = random(130, 300), *[None] * 7, offsets_of(0, 5, 130)
    options = *targets_of("1x128", "128x128")[:-1], "spaced"
    opcheck(torch.ops.octofold.cast, (*inputs, *rows, *transposed, None, None, None, *options))


@pytest.mark.parametrize("factors", ["none", "both", "transposed"])
def test_opcheck_gathered(opcheck, factors):
    sources = offsets_of(5, -1, 0, 259, 7)
    of_places = [random(130, 2) if factors == each else None for each in ("both", "transposed")]
    rows = fp8(5, 300), scale_of("1x128", 5, 300)
    for offsets, columns, layout in ((None, 5, None), (offsets_of(0, 3, 4), 256, "spaced")):
        transposed = fp8(300, columns), scale_of("1x128", 300, columns)
        inputs = random(130, 300), sources, *of_places, *[None] * 6, offsets
        results = *rows, *transposed, None, None, None
        arguments = (*inputs, *results, 2, *targets_of("1x128", "1x128")[:-1], layout)
        opcheck(torch.ops.octofold.cast_gathered, arguments)


def test_opcheck_two_level_scales(opcheck):
    rows = fp8(130, 300), scale_of("1x128", 130, 300)
    transposed = fp8(300, 130), scale_of("128x128", 300, 130)
    factors = random(300).abs()
    given = random(130, 300), *[None] * 5, factors, None, None
    arguments = (*given, *rows, *transposed, None, None, None, *targets_of("1x128", "128x128"))
    opcheck(torch.ops.octofold.cast, arguments)
    arguments = (*scaled(300, 130, "128x128"), factors, random(300, 130), "128x128")
    opcheck(torch.ops.octofold.dequantize, arguments)
    operands = (*scaled(5, 130, "1x128"), *scaled(300, 130, "128x128"))
    out = random(5, 300)
    options = "1x128", "128x128", False, False, *[None] * 5, False
    arguments = (*operands, None, None, factors, None, out, *options)
    opcheck(torch.ops.octofold.gemm, arguments)


@pytest.mark.parametrize("targets", ["rows", "transposed", "both"])
def test_opcheck_activations(opcheck, targets):
    x, gradient = random(130, 600), random(130, 300)
    codes = octofold.quantize(x, "channel")
    activation = torch.ops.octofold.cast_activated
    back = torch.ops.octofold.cast_activation_gradient
    units = [None if targets == other else "1x128" for other in ("transposed", "rows")]
    for columns, op, inputs, of_x, dtype in (
        (300, activation, (x, None), None, (None,)),
        (300, activation, (codes.data, codes.scale), "channel", ("float16",)),
        (600, back, (gradient, x, None), None, ()),
        (600, back, (gradient, codes.data, codes.scale), "channel", ()),
    ):
        rows = fp8(130, columns), scale_of("1x128", 130, columns)
        transposed = fp8(columns, 130), scale_of("1x128", columns, 130)
        results = {"rows": rows + NONE, "transposed": NONE + transposed, "both": rows + transposed}
        written = *inputs, *NOTHING, *results[targets]
        choices = of_x, "swiglu", "halves", *dtype
        opcheck(op, (*written, None, None, None, *choices, *targets_of(*units)))
        sums, workspace = torch.zeros(columns), torch.zeros(2, columns)
        options = targets_of(*units, columns="sums")
        opcheck(op, (*written, sums, None, workspace, *choices, *options))


@on_each_device
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_dequantize(opcheck, granularity):
    out = torch.empty(130, 300, dtype=torch.bfloat16)
    arguments = (*scaled(130, 300, granularity), None, out, granularity)
    opcheck(torch.ops.octofold.dequantize, arguments)


@on_each_device
def test_opcheck_convert_dtype(opcheck):
    opcheck(torch.ops.octofold.convert_dtype, (random(130, 300), fp8(130, 300), "nan"))


@on_each_device
def test_opcheck_transpose(opcheck):
    opcheck(torch.ops.octofold.transpose, (fp8(3, 130, 300), fp8(3, 300, 130)))


PAIRS = (
    *(("tensor", "tensor"), ("channel", "channel"), ("1x128", "128x128"), ("1x128", "1x128")),
    ("1x128", "two-level"),
)


@on_each_device
@pytest.mark.parametrize("addend", [None, torch.float32])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_opcheck_gemm(opcheck, pair, addend, in_place):
    of_a, of_b = (granularity.replace("two-level", "128x128") for granularity in pair)
    factors = torch.rand(70) + 0.5 if pair[1] == "two-level" else None
    operands = (*scaled(50, 300, of_a), *scaled(70, 300, of_b))
    c = None if addend is None or in_place else random(50, 70, dtype=addend)
    options = of_a, of_b, False, False, *[None] * 5, in_place
    arguments = (*operands, c, random(70), factors, None, random(50, 70), *options)
    opcheck(torch.ops.octofold.gemm, arguments)


def scaled_groups(groups, rows, cols):
    cast = octofold.quantize(random(groups, rows, cols))
    return cast.data, cast.scale


@pytest.mark.parametrize("in_place", [False, True])
def test_opcheck_groups_of_rows(opcheck, in_place):
    offsets, options = offsets_of(0, 3, 4), ("1x128", "1x128", "rows", *NONE, False, False)
    operands = (*scaled(5, 300, "1x128"), *scaled_groups(2, 7, 300))
    c = None if in_place else random(5, 7)
    arguments = (*operands, offsets, c, random(2, 7), random(5, 7), *options, in_place)
    opcheck(torch.ops.octofold.grouped_gemm, arguments)


def test_opcheck_masked_groups(opcheck):
    for bias, expected_rows in ((None, None), (random(2, 7), 1)):
        operands = (*scaled_groups(2, 5, 300), *scaled_groups(2, 7, 300), offsets_of(3, 0))
        options = "1x128", "1x128", "masked", expected_rows, None, False, False, False
        arguments = (*operands, None, bias, random(2, 5, 7), *options)
        opcheck(torch.ops.octofold.grouped_gemm, arguments)


@pytest.mark.parametrize("in_place", [False, True])
def test_opcheck_groups_of_k(opcheck, in_place):
    operands = (*scaled(5, 384, "1x128"), *scaled(7, 384, "128x128"), offsets_of(0, 3, 130))
    c = None if in_place else random(2, 5, 7)
    options = "1x128", "128x128", "depth", None, "spaced", False, False, in_place
    opcheck(torch.ops.octofold.grouped_gemm, (*operands, c, None, random(2, 5, 7), *options))


def test_opcheck_gated_groups(opcheck):
    weights = octofold.quantize(random(2, 256, 300), "128x128")
    operands = (*scaled(5, 300, "1x128"), weights.data, weights.scale, offsets_of(0, 3, 4))
    results = fp8(5, 128), scale_of("1x128", 5, 128)
    options = "1x128", "128x128", "swiglu", *OPTIONS, False
    opcheck(torch.ops.octofold.gated_gemm, (*operands, *results, *options))


def test_opcheck_dot(opcheck):
    a, b = scaled(1, 20_000, "1x128"), scaled(1, 20_000, "tensor")
    results = torch.empty(()), torch.empty(3)
    opcheck(torch.ops.octofold.dot, (*a, *b, *results, "1x128", "tensor"))
    x = random(5)
    arguments = (x, None, x.bfloat16(), None, torch.empty(()), torch.empty(1), None, None)
    opcheck(torch.ops.octofold.dot, arguments)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_weight_only_vectors(opcheck, granularity):
    w, results = scaled(130, 300, granularity), (None, torch.empty(3, 130), None)
    for x, of_x in (((random(3, 300), None), None), (scaled(3, 300, "1x128"), "1x128")):
        arguments = (*x, *w, *results, of_x, granularity, False)
        opcheck(torch.ops.octofold.gemm_weight_only, arguments)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_weight_only(opcheck, granularity):
    w, x = scaled(130, 300, granularity), random(5, 300, dtype=torch.float16)
    dy = random(5, 130, dtype=torch.float16)
    for bias in (None, random(130)):
        results = torch.empty_like(dy), None
        arguments = (x, None, *w, bias, *results, None, granularity, False)
        opcheck(torch.ops.octofold.gemm_weight_only, arguments)
    arguments = (dy, *w, torch.empty_like(x), torch.empty(0), granularity, True)
    opcheck(torch.ops.octofold.gemm_weight_only_gradient, arguments)
    w, x = scaled(130, 1100, granularity), random(20, 1100, dtype=torch.float16)
    out = torch.empty(20, 130, dtype=torch.float16), torch.empty(2 * 20 * 130)
    arguments = (x, None, *w, None, *out, None, granularity, True)
    opcheck(torch.ops.octofold.gemm_weight_only, arguments)


@pytest.mark.parametrize("gathered", [False, True])
def test_opcheck_weight_only_groups(opcheck, gathered):
    w = octofold.quantize(random(3, 128, 300), "128x128", matrices=3)
    weights, options = (w.data, w.scale), (1, "128x128", "rows", None, True)
    offsets = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    more = (torch.arange(5).int(), random(5, 1)) if gathered else (None, None)
    x, dy = (random(5, columns, dtype=torch.float16) for columns in (300, 128))
    out, dx = torch.zeros_like(dy), torch.zeros_like(x)
    inputs = (*more, *weights, offsets)
    ops = torch.ops.octofold
    opcheck(ops.grouped_gemm_weight_only, (x, *inputs, random(3, 128), out, *options))
    opcheck(ops.grouped_gemm_weight_only_gradient, (dy, *inputs, dx, *options))


@pytest.mark.parametrize("logarithms", [False, True])
def test_opcheck_attention(opcheck, logarithms):
    k, v = fp8(2, 20, 2, 64), fp8(2, 20, 2, 64)
    inputs = random(2, 3, 4, 64, dtype=torch.float16), k, v, torch.ones(1), torch.ones(2)
    results = torch.empty(2, 3, 4, 64, dtype=torch.float16), torch.empty(24 * 64 * 66)
    log_sum_exp = torch.empty(2, 4, 3) if logarithms else None
    counts = offsets_of(20, 3)
    arguments = (*inputs, None, None, counts, None, *results, log_sum_exp, 0.0, -1, 0)
    arguments = (*arguments, "exact", False)
    dtype = "float32" if logarithms else ""
    opcheck(torch.ops.octofold.attention, arguments, dtype)
    table = offsets_of(1, 0).view(2, 1)
    pages = fp8(2, 32, 2, 64), fp8(2, 32, 2, 64), None, torch.ones(2, 2)
    arguments = (inputs[0], *pages, None, None, counts, table, *results, log_sum_exp, 0.1, 7, -1)
    arguments = (*arguments, "fp8", False)
    opcheck(torch.ops.octofold.attention, arguments, dtype)
