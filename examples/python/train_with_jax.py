"""Training in JAX with FP8 linear layers, and answering with the weights in FP8.

    python examples/python/train_with_jax.py
    python examples/python/train_with_jax.py --steps 40 --recipe rowwise

Three layers learn a function of random numbers twice: by octofold.jax.linear, whose products are
FP8 forward and backward, and in FP32. A step is one jitted program, and all steps are a
jax.lax.scan. Then the trained weights are cast once, and a jitted program answers with them. The
script prints the losses and how far the answers are from those of the FP32 weights; the exit code
is 1 if the FP8 loss is more than a tenth above the other.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import octofold
import octofold.jax

SIZES = (128, 256, 256, 128)
Array = jax.Array
Layers = list[tuple[Array, Array]]


def new_layers(key: Array) -> Layers:
    """The weight [out, in] and the bias of each layer."""
    keys = jax.random.split(key, len(SIZES) - 1)
    return [
        (jax.random.normal(key, (size_out, size_in)) / size_in**0.5, jnp.zeros(size_out))
        for key, size_in, size_out in zip(keys, SIZES, SIZES[1:], strict=False)
    ]


def answer(multiply: Callable[..., Array], layers: Any, x: Array) -> Array:
    *hidden, last = layers
    for weight, bias in hidden:
        x = jax.nn.gelu(multiply(x, weight, bias))
    return multiply(x, *last)


def in_fp32(x: Array, weight: Array, bias: Array) -> Array:
    return x @ weight.T + bias


def by_cast_weights(x: Array, weight: octofold.ScaledTensor, bias: Array) -> Array:
    return octofold.gemm(octofold.quantize(x), weight, bias=bias, out_dtype="float32")


def train(linear: Callable[..., Array], layers: Layers, steps: int) -> tuple[Layers, Array]:
    """The layers after so many steps, and the losses."""
    target = jax.random.normal(jax.random.key(1), (SIZES[-1], SIZES[0])) / SIZES[0] ** 0.5

    def loss(layers: Layers, x: Array) -> Array:
        return ((answer(linear, layers, x) - jnp.tanh(x @ target.T)) ** 2).mean()

    def step(layers: Layers, key: Array) -> tuple[Layers, Array]:
        x = jax.random.normal(key, (512, SIZES[0]))
        value, gradients = jax.value_and_grad(loss)(layers, x)
        return jax.tree.map(lambda p, g: p - 0.5 * g, layers, gradients), value

    keys = jax.random.split(jax.random.key(2), steps)
    trained, losses = jax.jit(partial(jax.lax.scan, step))(layers, keys)
    return trained, losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--recipe", default="blockwise")
    options = parser.parse_args()
    layers = new_layers(jax.random.key(0))

    last = {}
    for name, linear in (
        ("FP32", in_fp32),
        ("FP8", partial(octofold.jax.linear, recipe=options.recipe)),
    ):
        trained, losses = train(linear, layers, options.steps)
        last[name] = float(losses[-max(1, options.steps // 10) :].mean())
        print(f"loss in {name}: {losses[0]:.4f} -> {last[name]:.4f}")

    cast = [(octofold.quantize(weight, "128x128"), bias) for weight, bias in trained]
    x = jax.random.normal(jax.random.key(3), (64, SIZES[0]))
    exact = answer(in_fp32, trained, x)
    answers = jax.jit(partial(answer, by_cast_weights))(cast, x)
    error = jnp.linalg.norm(answers - exact) / jnp.linalg.norm(exact)
    print(f"relative error of answers with weights in FP8: {error:.3f}")
    return 0 if last["FP8"] < 1.1 * last["FP32"] else 1


if __name__ == "__main__":
    sys.exit(main())
