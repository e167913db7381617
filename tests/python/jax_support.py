"""JAX and octofold.jax for the tests of both folders; without them, their tests are skipped."""

import os

import numpy as np
import octofold
import pytest

# Before JAX starts: other tests want memory of the GPU too, and some want several devices.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ["XLA_FLAGS"] = f"{os.getenv('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")

import octofold.jax  # noqa: E402


def to_jax(tree):
    """NumPy's arrays, also those of ScaledTensors, as JAX's."""
    return jax.tree.map(jax.numpy.asarray, tree)


def to_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def jitted(function, *arguments, arrays=None, **options):
    """The results, in NumPy's arrays, of a function within jax.jit, where all arrays are traced.

    arrays: those that are keyword arguments. options: the other ones."""

    def program(arguments, arrays):
        return function(*arguments, **arrays, **options)

    return to_numpy(jax.jit(program)(to_jax(arguments), to_jax(arrays or {})))


def both(name, *arguments, arrays=None, **options):
    """The results of the function of this name in jax.jit, and for NumPy."""
    function = getattr(octofold, name)
    actual = jitted(function, *arguments, arrays=arrays, **options)
    return actual, function(*arguments, **(arrays or {}), **options)


def random(rng, *shape, dtype="float32"):
    return rng.standard_normal(shape, dtype=np.float32).astype(jax.numpy.dtype(dtype))
