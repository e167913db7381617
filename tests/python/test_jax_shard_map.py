"""octofold.jax within jax.shard_map, on four devices of the CPU: results vary along the axes along
which arguments do, and gradients are those that JAX's own product has."""

import numpy as np
import octofold
import pytest
from octofold import InvalidArgumentError
from octofold.jax import linear
from octofold.jax._calls import _manual_axes

from tests.python.jax_support import jax, random, to_jax
from tests.python.judge import relative_error

P = jax.sharding.PartitionSpec
MESH = jax.sharding.Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("i", "j"))
LAYOUTS = {  # of x, weight, bias and the result
    "rows": (P("i"), P(), P(), P("i")),
    "columns": (P(), P("j"), P("j"), P(None, "j")),
    "both": (P("i"), P("j"), P("j"), P("i", "j")),
    "scanned": (P("i"), P(), P(), P("i")),
}


def scanned(layer):
    """The layer twice, forward done once more in backward; the carry keeps its type."""

    def program(x, *parameters):
        step = jax.checkpoint(lambda x, _: (jax.numpy.tanh(layer(x, *parameters)), None))
        return jax.lax.scan(step, x, length=2)[0]

    return program


def exact(x, weight, bias):
    return x @ weight.T + bias


def gradient(layer):
    return jax.grad(lambda *arguments: (layer(*arguments) ** 2).sum(), (0, 1, 2))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout, check_vma, rng):
    """The result without jax.jit, and gradients by jax.grad around jax.shard_map and within it."""
    arguments = to_jax([random(rng, 256, 128), random(rng, 128, 128) / 11, random(rng, 128)])
    *specs, out_specs = LAYOUTS[layout]
    options = {"mesh": MESH, "in_specs": tuple(specs), "check_vma": check_vma}

    def gradients(layer):
        def within(*arguments):
            return [own[None, None] for own in gradient(layer)(*arguments)]

        whole = jax.shard_map(layer, out_specs=out_specs, **options)
        apart = jax.shard_map(within, out_specs=P("i", "j"), **options)
        compiled = map(jax.jit, (gradient(whole), apart))
        return jax.tree.leaves([program(*arguments) for program in (whole, *compiled)])

    layers = map(scanned, (linear, exact)) if layout == "scanned" else (linear, exact)
    for left, right in zip(*map(gradients, layers), strict=True):
        assert relative_error(left, right) < 0.1


@pytest.mark.parametrize("layout", ["rows", "columns", "both"])
def test_explicit_axes(layout, rng):
    """Without jax.shard_map: gradients are spread as the arrays are that they belong to."""
    types = (jax.sharding.AxisType.Explicit,) * 2
    with jax.set_mesh(jax.sharding.Mesh(MESH.devices, ("i", "j"), axis_types=types)):
        arrays = to_jax([random(rng, 256, 128), random(rng, 128, 128) / 11, random(rng, 128)])
        arguments = list(map(jax.device_put, arrays, LAYOUTS[layout]))
        for compiled in (gradient(linear), jax.jit(gradient(linear))):
            found = compiled(*arguments)
            assert [*map(jax.typeof, found)] == [*map(jax.typeof, arguments)]
            for left, right in zip(found, gradient(exact)(*arrays), strict=True):
                assert relative_error(left, right) < 0.1


def axes_of_results(function, check_vma=True):
    """The axes along which results vary, of x that varies along i and w that varies along j."""

    def program(x, w):
        results = jax.tree.leaves(function(x, w))
        seen.update("".join(sorted(_manual_axes(result, "varying"))) for result in results)

    seen, specs = set(), {"in_specs": (P("i"), P(None, "j")), "out_specs": None}
    program = jax.shard_map(program, mesh=MESH, check_vma=check_vma, **specs)
    jax.eval_shape(program, np.ones((128, 128), np.float32), np.ones((128, 256), np.float32))
    return seen


OPERATIONS = {
    "several results": ("i", lambda x, w: octofold.ops.cast(x, rows="1x128", columns="both")),
    "several operands": ("ij", lambda x, w: octofold.gemm(x, octofold.quantize(w, "128x128"))),
    "an addend": (
        "ij",
        lambda x, w: octofold.gemm(w, octofold.quantize(w, "128x128"), bias=w[0] + x[0, 0]),
    ),
    "linear": ("ij", linear),
    "reduced": ("ij", lambda x, w: linear(x, jax.lax.pcast(w, "i", to="reduced")[:, :128])),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_vary_as_arguments_do(name):
    axes, function = OPERATIONS[name]
    assert axes_of_results(function) == {axes}
    assert axes_of_results(function, check_vma=False) == {""}


@pytest.mark.parametrize("function", [lambda x, w: octofold.quantize(x), linear])
def test_parts_of_sums_are_refused(function):
    with pytest.raises(InvalidArgumentError, match=r"'x': expected what .* along \['i'\]"):
        axes_of_results(lambda x, w: function(jax.lax.pcast(x, "i", to="unreduced"), w))
