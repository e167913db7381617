"""octofold.jax inside jax.jit and without it: casts, their product against FP64, and what JAX does
with programs. test_every_framework.py has the bits of each operation."""

import numpy as np
import octofold
import pytest
from octofold import Format, ScaledTensor
from octofold.jax._calls import _target

from tests.python import reference
from tests.python.devices import on_gpu, on_gpus
from tests.python.jax_support import (
    both,
    jax,
    jitted,
    random,
    to_jax,
    to_numpy,
)
from tests.python.judge import (
    ACCUMULATION,
    TENSOR_CORE_ACCUMULATION,
    assert_close,
    assert_same,
    relative_error,
)

GRANULARITIES = reference.GRANULARITIES
WIDE = ("float32", "float16", "bfloat16")


def operand(rng, rows, cols, dtype="e4m3", granularity="1x128", power_of_two=False):
    format = Format(dtype, granularity, power_of_two=power_of_two)
    return octofold.quantize(random(rng, rows, cols), format)


def dequantized(x):
    return reference.dequantize(x.data, x.scale, x.granularity)


on_each_device = pytest.mark.usefixtures("programs_there")


def judge(out, left, right, *addends, dtype):
    """left · rightᵀ and addends, of casts or numbers, against FP64 with the limits of
    docs/numerics.md."""
    left, right, *wide = (
        dequantized(x) if isinstance(x, ScaledTensor) else x.astype(np.float64)
        for x in (left, right, *addends)
    )
    expected, terms = sum(wide, left @ right.T), sum(map(abs, wide), abs(left) @ abs(right).T)
    limit = TENSOR_CORE_ACCUMULATION if on_gpu() else ACCUMULATION
    assert_close(out.astype(np.float64), expected, terms, dtype, limit)


@on_each_device
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("x_dtype", WIDE)
def test_quantize(granularity, dtype, x_dtype, rng):
    format = Format(dtype, granularity)
    for shape in ((200, 300), (1, 1), (7, 128), (3, 5, 130), (0, 300), (4, 0), (0, 0), (2, 0, 5)):
        x = random(rng, *shape, dtype=x_dtype)
        assert_same(*both("quantize", x, format=format))
    x = random(rng, 200, 300, dtype=x_dtype)

    def of_both(x):
        return octofold.ops.cast(x, rows=format, transposed=format)

    casts = of_both(x)
    assert_same(jitted(of_both, x)[:2], casts[:2])
    assert_same(jitted(lambda x8: x8.dequantize(), casts.rows), casts.rows.dequantize())


SHAPES = (
    (70, 136, 512),
    *on_gpus((1, 128, 256), (7, 200, 300), (300, 264, 1000), (512, 512, 2048)),
)


@on_each_device
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("b_granularity", GRANULARITIES)
@pytest.mark.parametrize("a_granularity", GRANULARITIES)
def test_casts_and_their_product(a_granularity, b_granularity, m, n, k, rng):
    """In one program, so that scales stay as the cast wrote them."""
    x, w, c, bias = random(rng, m, k), random(rng, n, k), random(rng, m, n), random(rng, n)

    def program(x, w, c, bias):
        a, b = octofold.quantize(x, a_granularity), octofold.quantize(w, b_granularity)
        return octofold.gemm(a, b), octofold.gemm(a, b, c=c, bias=bias, out_dtype="float32"), a, b

    y, y_with_addends, a, b = jitted(program, x, w, c, bias)
    judge(y, a, b, dtype="bfloat16")
    judge(y_with_addends, a, b, c, bias, dtype="float32")
    assert_same(jitted(octofold.gemm, a, b), y)  # with scales from outside


@on_each_device
@pytest.mark.parametrize("x_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_gemm_weight_only(x_dtype, granularity, rng):
    w, bias = operand(rng, 256, 2048, granularity=granularity), random(rng, 256)
    for rows in (1, 16, 70):  # the last takes a workspace
        x = random(rng, rows, 2048, dtype=x_dtype)
        options = {"arrays": {"bias": bias}, "out_dtype": "float32"}
        judge(jitted(octofold.gemm_weight_only, x, w, **options), x, w, bias, dtype="float32")


def test_without_jit(rng):
    """Each call alone is a program, too; what comes is JAX's, and arrays beside the first one may
    be NumPy's."""
    x, w8 = random(rng, 70, 300), octofold.quantize(random(rng, 200, 300), "128x128")
    x8 = octofold.quantize(to_jax(x))
    y = octofold.gemm(x8, to_jax(w8))
    assert isinstance(y, jax.Array)
    assert (x8.data.dtype, x8.scale.dtype) == (jax.numpy.float8_e4m3fn, np.float32)
    assert_same(to_numpy(x8), octofold.quantize(x))
    assert_same(np.asarray(y), octofold.gemm(octofold.quantize(x), w8))
    assert_same(np.asarray(octofold.gemm(b=w8, a=x8)), np.asarray(y))


def test_scaled_tensors_are_trees(rng):
    x8 = to_jax(operand(rng, 200, 300))
    leaves, tree = jax.tree.flatten(x8)
    assert len(leaves) == 2
    assert isinstance(jax.tree.unflatten(tree, leaves), ScaledTensor)
    assert tree == jax.tree.structure(to_jax(operand(rng, 10, 20)))
    assert tree != jax.tree.structure(to_jax(operand(rng, 10, 20, granularity="channel")))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(x8)]
    assert paths == [".data", ".scale"]
    same = jax.jit(lambda x8: x8)(x8)
    assert_same(to_numpy(same), to_numpy(x8))
    assert jax.eval_shape(lambda x: octofold.quantize(x), x8.dequantize()).scale.shape == (200, 3)


def test_scaled_tensors_know_their_methods_in_jit(rng):
    x8 = operand(rng, 300, 256, granularity="128x128")

    def program(x8):
        return x8.dequantize(), x8[128:].dequantize("bfloat16"), x8.T.dequantize()

    values, rows, transposed = jitted(program, x8)
    assert_same(values, x8.dequantize())
    assert_same(rows, x8[128:].dequantize("bfloat16"))
    assert_same(transposed, x8.dequantize().T)


def test_scan_over_layers(rng):
    """Casts of a stack of weights, one of them in each step, and casts as the state of a loop."""
    weights, x = random(rng, 4, 128, 128), random(rng, 70, 128)
    w8 = octofold.quantize(weights, "128x128", matrices=4)

    def program(x, w8):
        def layer(x8, w8):
            return octofold.quantize(octofold.gemm(x8, w8)), None

        x8, _ = jax.lax.scan(layer, octofold.quantize(x.astype("bfloat16")), w8)
        return x8

    expected = octofold.quantize(x.astype(jax.numpy.bfloat16))
    for layer in range(4):
        expected = octofold.quantize(octofold.gemm(expected, w8[layer]))
    assert_same(jitted(program, x, w8), expected)


def test_scales_lie_as_products_read_them(rng):
    """Within one program, so that no copy comes between."""
    x, w8 = to_jax((random(rng, 70, 300), operand(rng, 64, 300, granularity="128x128")))
    program = (
        jax.jit(lambda x, w8: octofold.gemm(octofold.quantize(x), w8))
        .lower(x, w8)
        .compile()
        .as_text()
    )
    assert "f32[70,3]{0,1}" in program
    assert "f32[70,3]{1,0}" not in program
    assert "transpose" not in program


@on_each_device
def test_work_is_in_the_stream_of_xla(rng):
    """Each step reads what XLA's own kernels have just written, and the other way round. What these
    compute is exact, whatever XLA makes one kernel of."""
    x, w = random(rng, 1024, 1024), random(rng, 1024, 1024) / 32

    def step(x, w):
        x8, w8 = (
            octofold.quantize(jax.numpy.roll(x, 7, 0) / 2),
            octofold.quantize(jax.numpy.flip(w), "128x128"),
        )
        return jax.numpy.clip(octofold.gemm(x8, w8, out_dtype="float32") * 4, -2, 2)

    program = jax.jit(lambda x, w: jax.lax.fori_loop(0, 30, lambda _, x: step(x, w), x))
    one = jax.jit(step)
    expected, w = to_jax(x), to_jax(w)
    actual = program(expected, w)
    for _ in range(30):
        expected = one(expected, w).block_until_ready()
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))


@on_each_device
def test_a_program_is_run_again_with_other_arrays(rng):
    """XLA may have made a CUDA graph of it, with addresses of the first arrays."""
    weights = [octofold.quantize(random(rng, 256, 256), "128x128") for _ in range(3)]

    @jax.jit
    def program(x, weights):
        for w8 in weights:
            x = jax.nn.relu(octofold.gemm(octofold.quantize(x), w8, out_dtype="float32")) / 16
        return x

    kept = []
    for _ in range(6):
        x = random(rng, 200, 256)
        kept.append((x, program(to_jax(x), to_jax(weights))))
    for x, actual in kept:
        for w8 in weights:
            x8 = octofold.quantize(x.astype(np.float32))
            left, right = (x.dequantize().astype(np.float64) for x in (x8, w8))
            x = np.maximum(left @ right.T, 0) / 16
        # Codes of the layer before that lie next to a tie fall either way: 9e-3 was seen.
        assert relative_error(actual, x) < 2e-2


def test_what_is_not_used_is_not_computed(rng):
    x, w8 = to_jax((random(rng, 70, 300), operand(rng, 64, 300, granularity="128x128")))
    for result, used in ((0, True), (1, False)):
        program = jax.jit(lambda x, w8: (octofold.gemm(octofold.quantize(x), w8), x + 1)[result])  # noqa: B023
        calls = program.lower(x, w8).compile().as_text()
        assert ('custom_call_target="octofold' in calls) == used  # paths of sources are in it too


def test_the_callers_arithmetic_is_left_aside(rng):
    """XLA's threads take subnormal numbers for 0: those of FP16 would be lost."""
    x = (random(rng, 64, 300) * 2.0**-20).astype(np.float16)
    x8, expected = both("quantize", x, format="128x128 torchao")
    assert_same(x8, expected)
    assert np.count_nonzero(x8.data)


def test_names_of_targets_do_not_depend_on_the_process():
    """Programs that JAX has kept on disk hold them."""
    target = _target("quantize", "r-rc", ("1x128", None, "saturate", "deepgemm", None))
    assert target == "octofold.quantize.60d0340a139f96db"
