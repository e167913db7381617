"""octofold.jax on a GPU, inside jax.jit: layers, in the stream of XLA and its CUDA graphs. What an
operation computes is tests/python/test_jax.py's. OCTOFOLD_TEST_DEVICE=cpu runs it on the CPU."""

import os

import numpy as np
import octofold
import pytest

from tests.python.jax_support import fp8, jax, jitted, random, relative_error, to_jax, to_numpy

PLATFORM = os.environ.get("OCTOFOLD_TEST_DEVICE", "gpu").replace("cuda", "gpu")
jnp = jax.numpy


def _why_not() -> str | None:
    try:
        device = jax.devices(PLATFORM)[0]
    except RuntimeError as error:
        return f"JAX has no {PLATFORM}: {error}"
    jax.config.update("jax_default_device", device)
    if PLATFORM == "cpu":
        return None
    support = octofold.info().gpus[0].operations["products"]
    return None if support.available else f"no products: {support.detail}"


if reason := _why_not():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(autouse=True)
def full_precision():
    """Products by JAX itself are not rounded to TF32."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "rowwise_with_gw_hp", "tensorwise"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_linear(recipe, dtype, rng):
    x, w, dy = (random(rng, *shape, dtype=dtype) for shape in ((130, 320), (256, 320), (130, 256)))
    bias = random(rng, 256)

    def results(layer):
        def program(x, w, bias, dy):
            y, back = jax.vjp(layer, x, w, bias)
            return y, *back(dy)

        return jitted(program, x, w, bias, dy)

    actual = results(lambda *arguments: fp8.linear(*arguments, recipe))
    expected = results(lambda x, w, bias: (x @ w.T + bias).astype(x.dtype))
    for left, right in zip(actual, expected, strict=True):
        assert left.dtype == right.dtype
        assert relative_error(left, right) < 0.066


def test_work_is_in_the_stream_of_xla(rng):
    """Each step reads what XLA's own kernels have just written, and the other way round. What these
    compute is exact, whatever XLA makes one kernel of."""
    x, w = random(rng, 1024, 1024), random(rng, 1024, 1024) / 32

    def step(x, w):
        x8, w8 = fp8.quantize(jnp.roll(x, 7, 0) / 2), fp8.quantize(jnp.flip(w), "128x128")
        return jnp.clip(fp8.gemm(x8, w8, out_dtype="float32") * 4, -2, 2)

    program = jax.jit(lambda x, w: jax.lax.fori_loop(0, 30, lambda _, x: step(x, w), x))
    one = jax.jit(step)
    expected, w = to_jax(x), to_jax(w)
    actual = program(expected, w)
    for _ in range(30):
        expected = one(expected, w).block_until_ready()
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))


def test_a_program_is_run_again_with_other_arrays(rng):
    """XLA may have made a CUDA graph of it, with addresses of the first arrays."""
    weights = [octofold.quantize(random(rng, 256, 256), "128x128") for _ in range(3)]

    @jax.jit
    def program(x, weights):
        for w8 in weights:
            x = jax.nn.relu(fp8.gemm(fp8.quantize(x), w8, out_dtype="float32")) / 16
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


def test_a_training_loop(rng):
    x = to_jax(random(rng, 512, 256))
    target = jnp.sin(x @ to_jax(random(rng, 256, 128)) / 16)
    start = to_jax([random(rng, 512, 256) / 16, random(rng, 128, 512) / 22])

    def loss(layers):
        return ((fp8.linear(jax.nn.gelu(fp8.linear(x, layers[0])), layers[1]) - target) ** 2).mean()

    def step(layers, _):
        value, gradient = jax.value_and_grad(loss)(layers)
        return jax.tree.map(lambda p, g: p - g, layers, gradient), value

    losses = jax.jit(lambda layers: jax.lax.scan(step, layers, length=60)[1])(start)
    assert losses[-1] < 0.5 * losses[0]
