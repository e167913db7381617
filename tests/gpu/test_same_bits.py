"""Operations have the same bits each time, on another stream, and from a CUDA graph, whose replays
compute of what is in memory then."""

import octofold
import pytest
from octofold.ops import (
    Activated,
    ActivationGradient,
    Normed,
    Target,
    activation_dots,
    cast,
    combine,
    combine_gradient,
    dot,
    norm_gradient,
    pack,
    rotary,
    sort_by_expert,
    top_k,
    top_k_gradient,
    transpose,
    unpack,
)

from tests.gpu.gpu_support import (
    Held,
    bits,
    captured,
    needs,
    needs_gpu,
    normal,
    operand,
    operands,
    torch,
)
from tests.python.casting import GRANULARITIES
from tests.python.judge import assert_same


def numbers(*shape, dtype="bfloat16"):
    return lambda generator: (normal(generator, *shape, dtype=dtype),)


def gates(generator):
    return tuple(normal(generator, 256, cols, dtype="bfloat16") for cols in (512, 1024))


def normed(x, residual, weight):
    source = Normed(x, weight, residual=residual, kind="layer")
    casts = cast(source, rows="1x128", transposed="1x128")
    statistics = casts.norm.rstd, casts.norm.mean
    gradients = norm_gradient(residual, casts.norm.sum, *statistics, weight, kind="layer")
    return casts, octofold.ops.norm(source), gradients


def route(logits, y, gradient):
    ids, weights = top_k(logits, 8, normalize=True)
    routing = sort_by_expert(ids, logits.shape[1])
    out = combine(y, routing.positions, weights)
    by_weights = combine_gradient(gradient, y, routing.positions)
    by_weights = by_weights + activation_dots(y[:, :512], y, routing.positions)
    by_logits = top_k_gradient(by_weights, logits, ids, normalize=True)
    return ids, weights, routing, out, by_weights, by_logits


def routed(generator):
    y, gradient = (normal(generator, rows, 1024, dtype="bfloat16") for rows in (12_000, 1500))
    return normal(generator, 1500, 128), y, gradient


def weight_and_rows(rows):
    def make(generator):
        return operand(generator, 300, 1040), normal(generator, rows, 1040, dtype="float16")

    return make


def by_amax(x, amax):
    """Takes the amax as ranks leave it that have just reduced it."""
    return cast(x, rows="1x128 torchao", transposed=Target("channel torchao", amax=amax))


def values_and_amax(generator):
    x = normal(generator, 1024, 2048, dtype="bfloat16")
    return x, x.float().abs().amax(0)


def codes(*shape):
    return lambda generator: (operand(generator, *shape).data,)


def tables(generator):
    x = normal(generator, 2, 50, 8, 128, dtype="bfloat16")
    return x, *normal(generator, 2, 2, 50, 128, dtype="bfloat16")


# Calls, and what makes their operands.
CALLS = {
    **{
        f"cast-{unit}": (
            lambda x, unit=unit: cast(x, rows=unit, transposed=unit),
            numbers(1024, 4096),
        )
        for unit in GRANULARITIES
    },
    **{
        f"stack-{unit}": (
            lambda x, unit=unit: cast(x, rows=unit, transposed=unit, matrices=8),
            numbers(8, 384, 1024),
        )
        for unit in GRANULARITIES
    },
    "columns": (
        lambda x: cast(x, rows="1x128", transposed="1x128", columns="both"),
        numbers(8192, 2048),
    ),
    "amax": (by_amax, values_and_amax),
    "activated": (
        lambda gradient, x: cast(Activated(x), rows="1x128", transposed="1x128"),
        gates,
    ),
    "activation-gradient": (
        lambda gradient, x: cast(ActivationGradient(gradient, x), rows="1x128", transposed="1x128"),
        gates,
    ),
    "activation-gradient-of-codes": (
        lambda gradient, x: cast(ActivationGradient(gradient, octofold.quantize(x)), rows="1x128"),
        gates,
    ),
    "norm": (
        normed,
        lambda generator: (
            *(normal(generator, 512, 4096, dtype="bfloat16") for _ in range(2)),
            normal(generator, 4096, dtype="bfloat16"),
        ),
    ),
    "transpose": (transpose, codes(256, 512)),
    "words": (lambda x: unpack(pack(x, "e4m3"), "e4m3"), numbers(256, 512)),
    "dot": (
        dot,
        lambda generator: tuple(operand(generator, 1, 50_000) for _ in range(2)),
    ),
    "routing": (route, routed),
}
OTHERS = {
    "rotary": (rotary, tables),
    "weight-only-few": (lambda w, x: octofold.gemm_weight_only(x, w), weight_and_rows(2)),
    "weight-only-many": (lambda w, x: octofold.gemm_weight_only(x, w), weight_and_rows(200)),
    "gemm": (octofold.gemm, lambda generator: operands(generator, 300, 520, 1024)),
}
CASES = [pytest.param(*case, id=name) for name, case in CALLS.items()] + [
    pytest.param(*case, id=name, marks=needs(needed))
    for (name, case), needed in zip(
        OTHERS.items(),
        ("rotary embeddings", *["products with FP8 weights"] * 2, "products"),
        strict=True,
    )
]
every_call = pytest.mark.parametrize(("call", "make"), CASES)


def tensors_of(value):
    """The tensors in casts and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, octofold.ScaledTensor):
        return [value.data, value.scale]
    return [tensor for part in value or () for tensor in tensors_of(part)]


def of_copies(results):
    return [tensor.clone() for tensor in tensors_of(results)]


@every_call
def test_each_time(call, make, generator):
    given = make(generator)
    first = of_copies(call(*given))
    for _ in range(10):
        assert_same(tensors_of(call(*given)), first)


@needs_gpu
@every_call
def test_from_a_graph(call, make, generator):
    """Beside a call, of numbers that changed since the capture."""
    given = make(generator)
    graph, results = captured(lambda: call(*given))
    for tensor in tensors_of(given):
        bits(tensor).copy_(bits(tensor).flip(*range(tensor.dim())))
    for tensor in tensors_of(results):
        bits(tensor).fill_(0x55)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(tensors_of(results), tensors_of(call(*given)))


@needs_gpu
@every_call
def test_on_another_stream(call, make, generator):
    """Nothing waits for the stream on the way."""
    given = make(generator)
    expected = of_copies(call(*given))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), Held(stream):
        results = call(*given)
    torch.cuda.synchronize()
    assert_same(tensors_of(results), expected)
