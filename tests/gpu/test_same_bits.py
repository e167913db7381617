"""Operations have the same bits each time, on another stream, compiled by torch, and from a CUDA
graph, whose replays compute of what is in memory then."""

import octofold
import pytest
from octofold import Rows
from octofold.ops import (
    Activated,
    ActivationGradient,
    Gathered,
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
    DEVICE,
    ON_GPU,
    PAIRS,
    Held,
    bits,
    captured,
    needs,
    needs_gpu,
    normal,
    operand,
    operands,
    poison,
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


def offsets(*ends):
    return torch.tensor([0, *ends], dtype=torch.int32, device=DEVICE)


def rows_in_groups(generator):
    x, sources = normal(generator, 900, 392, dtype="bfloat16"), offsets(*range(1, 900)).flip(0)
    return x, sources, normal(generator, 900, 1), offsets(5, 5, 145, 500, 870)


def cast_groups(x, sources, factors, offsets):
    """The first group's parts, as what no group has is as the memory was."""
    casts = []
    for source in (x, Gathered(x, sources), Gathered(x, sources, factors=factors)):
        for unit in ("1x128", "128x128", "channel"):
            made = cast(source, rows="1x128", transposed=unit, offsets=offsets)
            casts += [made.rows.data[:870], made.rows.scale[:870], made.transposed.data[:, :5]]
    return casts


def groups_of_rows(pair):
    def make(generator):
        (a, w), groups = operands(generator, 863, 5 * 1280, 2048, pair), offsets(700, 700, 733, 862)
        shape, scale = (5, 1280), w.scale.view(5, -1) if w.scale.numel() > 1 else w.scale.expand(5)
        if pair[1] in ("1x128", "128x128"):
            scale = w.scale.view(5, -1, w.scale.shape[1])
        b = octofold.ScaledTensor(w.data.view(*shape, 2048), scale.contiguous(), pair[1])
        return a, b, torch.cat([groups, offsets(863)[1:]])

    return make


def codes(*shape):
    return lambda generator: (operand(generator, *shape).data,)


def tables(generator):
    x = normal(generator, 2, 50, 8, 128, dtype="bfloat16")
    return x, *normal(generator, 2, 2, 50, 128, dtype="bfloat16")


def layer(x, w, bias):
    """The product is added to itself, in place."""
    a, b = octofold.quantize(x), octofold.quantize(w, "e5m2 128x128")
    y = octofold.gemm(a, b, bias=bias)
    octofold.gemm(a, b, out=y, c=y)
    return y, a.dequantize("bfloat16"), octofold.ops.convert_dtype(y, "e4m3")


def layer_operands(generator):
    return normal(generator, 33, 300), normal(generator, 170, 300), normal(generator, 170)


def attend(q, k, v):
    pair = octofold.attention(q, k, v, causal=True, softmax_scale=0.02, return_log_sum_exp=True)
    return *pair, octofold.attention(q, k, v, softmax_scale=0.02, out=torch.empty_like(q))


def queries_and_keys(queries, keys):
    def make(generator):
        k, v = (operand(generator, 2 * keys * 2, 64).data.view(2, keys, 2, 64) for _ in "kv")
        return normal(generator, 2, queries, 4, 64, dtype="float16"), k, v

    return make


def rows_and_weight(generator):
    return normal(generator, 8, 1024, dtype="bfloat16"), operand(
        generator, 512, 1024, granularity="128x128"
    )


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
    "groups": (cast_groups, rows_in_groups),
    "transpose": (transpose, codes(256, 512)),
    "words": (lambda x: unpack(pack(x, "e4m3"), "e4m3"), numbers(256, 512)),
    "dot": (
        dot,
        lambda generator: tuple(operand(generator, 1, 50_000) for _ in range(2)),
    ),
    "routing": (route, routed),
}
# Calls that not every GPU has kernels for, each with the operation that it needs.
OTHERS = {
    "rotary": ("rotary embeddings", rotary, tables),
    "weight-only-few": (
        "products with FP8 weights",
        lambda w, x: octofold.gemm_weight_only(x, w),
        weight_and_rows(2),
    ),
    "weight-only-many": (
        "products with FP8 weights",
        lambda w, x: octofold.gemm_weight_only(x, w),
        weight_and_rows(200),
    ),
    **{
        "gemm-" + "x".join(pair): (
            "products",
            lambda a, b, bias: octofold.gemm(a, b, bias=bias),
            lambda generator, pair=pair: (
                *operands(generator, 300, 520, 1024, pair),
                normal(generator, 520),
            ),
        )
        for pair in PAIRS
    },
    **{
        f"gemm-{pair[0]}x{pair[1]}-{m}x{n}x{k}": (
            "products",
            octofold.gemm,
            lambda generator, size=(m, n, k), pair=pair: operands(generator, *size, pair),
        )
        for pair in PAIRS
        for m, n, k in ((1, 2112, 7168), (1024, 4096, 7168), (515, 390, 1000), (33, 100, 4100))
        if ON_GPU
    },
    **{
        f"grouped-{pair[0]}x{pair[1]}": (
            "grouped products",
            lambda a, b, offsets: octofold.grouped_gemm(a, b, Rows(offsets)),
            groups_of_rows(pair),
        )
        for pair in PAIRS[:4]
    },
    "layer": ("products", layer, layer_operands),
    "gemm-that-casts": ("products that cast A", octofold.gemm, rows_and_weight),
    "gated": (
        "gated products",
        lambda a, b: octofold.ops.gated_gemm(a, b, activation="geglu-tanh"),
        lambda generator: operands(generator, 300, 1024, 1024),
    ),
    "attention-few": ("attention", attend, queries_and_keys(3, 700)),
    "attention-many": ("attention", attend, queries_and_keys(150, 290)),
}
CASES = [pytest.param(*case, id=name) for name, case in CALLS.items()] + [
    pytest.param(*case, id=name, marks=needs(needed)) for name, (needed, *case) in OTHERS.items()
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
        if tensor.dtype is not torch.int32:  # places, which would make no sense
            bits(tensor).copy_(bits(tensor).flip(*range(tensor.dim())))
    for tensor in tensors_of(results):
        bits(tensor).fill_(0x55)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(tensors_of(results), tensors_of(call(*given)))


@needs_gpu
@every_call
def test_on_another_stream(call, make, generator):
    """Nothing waits for the stream on the way, nor for the default one, which is busy."""
    given = make(generator)
    expected = of_copies(call(*given))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), Held(stream):
        results = call(*given)
    torch.cuda.synchronize()
    assert_same(tensors_of(results), expected)
    with torch.cuda.stream(stream), Held(torch.cuda.default_stream()):
        results = call(*given)
        stream.synchronize()
    assert_same(tensors_of(results), expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
@every_call
def test_compiled(call, make, backend, generator):
    given = make(generator)
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    assert_same(tensors_of(compiled(*given)), tensors_of(call(*given)))


@needs_gpu
@needs("products")
def test_compiled_with_cuda_graphs(generator):
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        given = layer_operands(generator)
        assert_same(tensors_of(compiled(*given)), tensors_of(layer(*given)))


@needs_gpu
def test_inputs_outlive_the_stream_given(generator):
    """Their memory is freed by Python while the stream has not begun."""
    x = normal(generator, 512, 1024)
    expected = octofold.quantize(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # clock cycles: about 50 ms
    given = x.clone()
    torch.cuda.current_stream().synchronize()
    found = octofold.quantize(given, stream=stream)
    del given
    poison(x.numel(), torch.float32)  # takes what was freed, if anything was
    stream.synchronize()
    assert_same(found.data, expected.data)
