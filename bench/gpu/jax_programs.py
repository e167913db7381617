"""octofold.jax beside what JAX multiplies in BF16, in jitted programs:

    python bench/gpu/jax_programs.py
    python bench/gpu/jax_programs.py --device cpu --shape 32,64,256     to try the script: no times

For each M,N,K a product of codes that lie ready, one whose input is cast in the program, and a step
of a linear layer (forward and both gradients). Programs are queued 20 at a time and take turns; a
time is a median of 9 rounds of them, the host's time for a call included where it is longer. What
they answer is checked first, against BF16's. "of 1979": TFLOP/s of the product of codes over those
that NVIDIA names for an H100 or H200.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import octofold
import octofold.jax

ROUNDS, QUEUED = 9, 20
ERRORS = {"product": 0.06, "with cast": 0.06, "step": 0.09}


def step(layer):
    """A jitted function of x, the weight and y's gradient: y and the gradients of both."""

    def differentiated(x, weight, dy):
        y, backward = jax.vjp(layer, x, weight)
        return y, *backward(dy)

    return jax.jit(differentiated)


def programs(m, n, k):
    """By name: Octofold's program with its arguments, and BF16's."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, weight, dy = (
        jax.random.normal(key, shape, jnp.bfloat16)
        for key, shape in zip(keys, [(m, k), (n, k), (m, n)], strict=True)
    )
    codes = octofold.quantize(weight, "128x128")
    product = jax.jit(lambda x, weight: x @ weight.T)
    casting = jax.jit(lambda x, codes: octofold.gemm(octofold.quantize(x), codes))
    return {
        "product": (
            (jax.jit(octofold.gemm), (octofold.quantize(x), codes)),
            (product, (x, weight)),
        ),
        "with cast": ((casting, (x, codes)), (product, (x, weight))),
        "step": (
            (step(octofold.jax.linear), (x, weight, dy)),
            (step(lambda x, w: x @ w.T), (x, weight, dy)),
        ),
    }


def relative_error(actual, expected):
    errors = [
        jnp.linalg.norm(a.astype(jnp.float32) - e.astype(jnp.float32))
        / jnp.linalg.norm(e.astype(jnp.float32))
        for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    ]
    return float(max(errors))


def seconds(*calls):
    """Times the calls in turns: each one's median, and half the quartile range over it."""
    times = [[] for _ in calls]
    for _ in range(ROUNDS):
        for (function, arguments), taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(QUEUED):
                result = function(*arguments)
            jax.block_until_ready(result)
            taken.append((time.perf_counter() - start) / QUEUED)
    quartiles = [statistics.quantiles(taken, n=4) for taken in times]
    return [(middle, (high - low) / 2 / middle) for low, middle, high in quartiles]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--shape", action="append", metavar="M,N,K")
    arguments = parser.parse_args()
    device = jax.devices(arguments.device)[0]
    jax.config.update("jax_default_device", device)
    print(f"{device.device_kind}, jax {jax.__version__}; µs, ±; BF16's time over ours")
    for shape in arguments.shape or ["64,4096,4096", "4096,4096,7168", "8192,14336,4096"]:
        m, n, k = map(int, shape.split(","))
        for name, (ours, bf16) in programs(m, n, k).items():
            error = relative_error(ours[0](*ours[1]), bf16[0](*bf16[1]))
            if not error < ERRORS[name]:
                raise SystemExit(f"{shape} {name}: relative error {error:.3f} against BF16")
            (fast, spread), (slow, other) = seconds(ours, bf16)
            line = f"{shape:<18}{name:<10}{fast * 1e6:9.1f} ±{spread:.1%}"
            line += f"  BF16 {slow * 1e6:9.1f} ±{other:.1%}  {slow / fast:.2f}"
            if name == "product":
                line += f"  {2 * m * n * k / fast / 1979e12:.0%} of 1979"
            print(line, flush=True)


if __name__ == "__main__":
    main()
