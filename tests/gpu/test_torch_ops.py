"""The registered torch ops on CUDA tensors: opcheck, and torch.compile of a whole layer."""

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    ON_GPU,
    PAIR_NAMES,
    PAIRS,
    assert_same_bits,
    bits,
    needs,
    operands,
    torch,
)
from tests.python.casting import GRANULARITIES, cast_side


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype)


def layer(x, w, bias):
    activations = octofold.quantize(x)
    weights = octofold.quantize(w, octofold.Format(torch.float8_e5m2, "128x128", power_of_two=True))
    y = octofold.gemm(activations, weights, bias=bias)
    octofold.gemm(activations, weights, out=y, c=y)
    return y, activations.dequantize(torch.bfloat16), octofold.ops.convert_dtype(y, "e4m3")


@needs("products")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(dynamic, backend):
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=backend)
    w, bias = random(170, 300), random(170)
    for rows in (33, 260, 1) if dynamic else (33,):
        arguments = random(rows, 300), w, bias
        for left, right in zip(compiled(*arguments), layer(*arguments), strict=True):
            assert_same_bits(left, right)


def words_and_dots(x):
    words = octofold.ops.pack(x, "e4m3")
    numbers = octofold.ops.unpack(words.view(torch.float32), "e4m3", dtype=x.dtype)
    row, out = x.flatten(), torch.empty(1, device=x.device)
    dots = octofold.ops.dot(row, row), octofold.ops.dot(row, row, out=out)
    return words, numbers - x, *dots


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_words_and_dots_compile_whole(dynamic, backend):
    torch.compiler.reset()
    compiled = torch.compile(words_and_dots, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (33, 260, 1) if dynamic else (33,):
        x = random(rows, 64)
        for left, right in zip(compiled(x), words_and_dots(x), strict=True):
            assert_same_bits(left, right)
    with pytest.raises(RuntimeError, match=r"octofold\.dot has no gradient"):
        octofold.ops.dot(x[0].requires_grad_(), x[0]).backward()


@needs("products")
@pytest.mark.skipif(not ON_GPU, reason="CUDA graphs need a GPU")
def test_compiles_with_cuda_graphs():
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    w, bias = random(170, 300), random(170)
    for _ in range(4):
        x = random(33, 300)
        for left, right in zip(compiled(x, w, bias), layer(x, w, bias), strict=True):
            assert_same_bits(left, right)


@pytest.fixture
def opcheck(monkeypatch):
    """torch.library.opcheck, which compares inputs before and after by torch.allclose: that has no
    FP8, so here it compares FP8 by bytes."""
    allclose = torch.allclose

    def allclose_with_fp8(left, right, **options):
        if left.dtype.itemsize == 1:
            return torch.equal(bits(left), bits(right))
        return allclose(left, right, **options)

    monkeypatch.setattr(torch, "allclose", allclose_with_fp8)
    octofold.ops.convert_dtype(
        torch.zeros(1), "e4m3"
    )  # the first call with a tensor registers the ops
    return torch.library.opcheck


def fp8(*shape):
    return torch.zeros(shape, device=DEVICE).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("shape", [(130, 300), (256, 128), (127, 1)])
def test_opcheck_cast(opcheck, granularity, transpose, shape):
    x = random(*shape)
    like = cast_side(x, granularity, transpose)
    results = fp8(*like.shape), torch.zeros_like(like.scale)
    in_common = None, "saturate", "te", None
    if not transpose:
        options = granularity, *in_common
        opcheck(torch.ops.octofold.quantize.out, (x, None, *results, *options))
        opcheck(torch.ops.octofold.quantize.default, (x, None, *options, "e4m3"))
    inputs = x, *[None] * 8
    both = (None, None, *results) if transpose else (*results, None, None)
    units = (None, granularity) if transpose else (granularity, None)
    options = *units, *in_common, None, None
    opcheck(torch.ops.octofold.cast.out, (*inputs, *both, None, None, None, *options))
    opcheck(torch.ops.octofold.cast.default, (*inputs, *options, "e4m3"))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_dequantize(opcheck, granularity):
    cast = octofold.quantize(random(130, 300), granularity)
    out = random(130, 300, dtype=torch.bfloat16)
    operands = cast.data, cast.scale, None
    opcheck(torch.ops.octofold.dequantize.out, (*operands, out, granularity))
    opcheck(torch.ops.octofold.dequantize.default, (*operands, granularity, "bfloat16"))


def test_opcheck_convert_dtype(opcheck):
    opcheck(torch.ops.octofold.convert_dtype.out, (random(130, 300), fp8(130, 300), "nan"))
    opcheck(torch.ops.octofold.convert_dtype.default, (random(130, 300), "nan", "e4m3"))


def test_opcheck_transpose(opcheck):
    opcheck(torch.ops.octofold.transpose.out, (fp8(3, 130, 300), fp8(3, 300, 130)))
    opcheck(torch.ops.octofold.transpose.default, (fp8(3, 130, 300), "e4m3"))


def test_to_device():
    cast = octofold.quantize(torch.randn(130, 300))
    moved = cast.to(DEVICE)
    assert moved.to("cpu").equals(cast)
    if ON_GPU:
        assert moved.scale.stride() == (1, 132)  # as casts on the GPU lay them out


@needs("products")
@pytest.mark.parametrize("addend", [None, torch.float32])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("pair", PAIRS, ids=PAIR_NAMES)
def test_opcheck_gemm(opcheck, pair, addend, in_place, generator):
    a, b = operands(generator, 50, 70, 300, pair)
    c = None if addend is None or in_place else random(50, 70, dtype=addend)
    inputs = (a.data, a.scale, b.data, b.scale, c, random(70), b.channel_scale, None)
    # No format of a, no arrivals.
    options = a.granularity, b.granularity, False, False, *[None] * 5
    opcheck(torch.ops.octofold.gemm.out, (*inputs, random(50, 70), *options, in_place))
    if not in_place:  # of what it would add to, the one that returns its result has nothing
        opcheck(torch.ops.octofold.gemm.default, (*inputs, *options, "float32"))
