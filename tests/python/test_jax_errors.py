"""Errors of octofold.jax come as a program is traced, in words that name the argument."""

import os
import subprocess
import sys

import numpy as np
import octofold
import pytest
from octofold import Arrivals, Format, InvalidArgumentError, Rows, UnsupportedError

from tests.python.jax_support import jax, random, to_jax


@pytest.fixture
def x8(rng):
    return to_jax(octofold.quantize(random(rng, 8, 256)))


def traced(function, *arguments):
    """Nothing runs."""
    return jax.eval_shape(function, *arguments)


REFUSED = {
    "quantize: argument 'x': expected dtype float32 or float16 or bfloat16, got int32": (
        lambda x8: octofold.quantize(x8.data.astype("int32"))
    ),
    "quantize: argument 'x': expected dtype one of float32, .* got uint8": (
        lambda x8: octofold.quantize(x8.data.view("uint8"))
    ),
    "quantize: argument 'x': expected a matrix": lambda x8: octofold.quantize(x8.dequantize()[0]),
    "quantize: argument 'format': expected at most one word": (
        lambda x8: octofold.quantize(x8.dequantize(), "1x64")
    ),
    "quantize: argument 'scale': expected shape": (
        lambda x8: octofold.quantize(x8.dequantize(), scale=x8.scale[:1])
    ),
    "quantize: argument 'matrices': expected a whole number or None, got 'two'": (
        lambda x8: octofold.quantize(x8.dequantize(), matrices="two")
    ),
    "gemm: argument 'b': expected a ScaledTensor, got": lambda x8: octofold.gemm(x8, x8.data),
    "gemm: argument 'b': expected K = 256 columns as in 'a', got 128": (
        lambda x8: octofold.gemm(x8, octofold.quantize(x8.dequantize()[:, :128]))
    ),
    r"gemm: argument 'bias': expected shape \[8\], got \[256\]": (
        lambda x8: octofold.gemm(x8, x8, bias=x8.dequantize()[0])
    ),
    "gemm: argument 'c': expected dtype bfloat16 or float32, got float16": (
        lambda x8: octofold.gemm(x8, x8, c=x8.scale[:, :1].astype("float16").repeat(8, 1))
    ),
    "gemm: argument 'c': expected a JAX or NumPy array, got builtins.str": (
        lambda x8: octofold.gemm(x8, x8, c="c")
    ),
    "gemm: argument 'out_dtype': expected one of": (
        lambda x8: octofold.gemm(x8, x8, out_dtype=jax.numpy.int32)
    ),
    "grouped_gemm: argument 'groups': expected Rows": lambda x8: octofold.grouped_gemm(x8, x8, 3),
    "grouped_gemm: argument 'b': expected 3 dimensions": (
        lambda x8: octofold.grouped_gemm(x8, x8, Rows(np.array([0, 8], np.int32)))
    ),
    "gemm_weight_only: argument 'bias': expected it to be omitted beside an 'x' of e4m3": (
        lambda x8: octofold.gemm_weight_only(x8, x8, bias=x8.dequantize()[0, :8])
    ),
    "attention: argument 'q': expected one of float16, bfloat16": (
        lambda x8: octofold.attention(x8.dequantize()[None, None], x8.data, x8.data)
    ),
    "attention: argument 'k': expected": (
        lambda x8: octofold.attention(x8.dequantize("bfloat16")[None, None], x8.data, x8.data)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_as_it_is_traced(message, x8):
    with pytest.raises(InvalidArgumentError, match=message):
        traced(REFUSED[message], x8)


def test_arrays_of_other_libraries(x8):
    torch = pytest.importorskip("torch")
    with pytest.raises(
        InvalidArgumentError, match=r"'bias': expected a JAX or NumPy array, got to"
    ):
        octofold.gemm(x8, x8, bias=torch.zeros(8))


@pytest.mark.parametrize(
    "given", [{"out": np.zeros((8, 8))}, {"stream": 0}, {"arrivals": Arrivals(np.ones(1))}], ids=str
)
def test_memory_and_streams_are_those_of_xla(given, x8):
    (argument,) = given
    with pytest.raises(UnsupportedError, match=f"gemm: argument '{argument}': expected None"):
        octofold.gemm(x8, x8, **given)


def test_vmap(x8):
    with pytest.raises(UnsupportedError, match=r"octofold.quantize has no jax.vmap: leading dim"):
        jax.vmap(octofold.quantize)(x8.dequantize()[None])
    weight = np.zeros((4, 256), np.float32)
    with pytest.raises(UnsupportedError, match=r"has no jax\.vmap"):
        traced(jax.vmap(octofold.jax.linear, (0, None)), x8.dequantize(), weight)


def test_operations_have_no_gradient(x8):
    def loss(x):
        return octofold.gemm(octofold.quantize(x), x8).sum()

    for derivative in (jax.grad, jax.jit, jax.jacfwd):
        expected = "octofold.quantize has no gradient, and differentiation came through it"
        if derivative is not jax.jit:
            with pytest.raises(UnsupportedError, match=expected):
                traced(derivative(loss), x8.dequantize())
    stopped = jax.grad(lambda x: x.sum() + loss(jax.lax.stop_gradient(x)))
    assert (stopped(x8.dequantize()) == 1).all()


def test_numbers_of_groups_are_found_wrong_as_it_runs(x8):
    w8 = octofold.quantize(np.ones((2, 16, 256), np.float32), "channel")
    offsets = jax.numpy.array([0, 5, 9], "int32")
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"'groups\.offsets': expected"):
        octofold.grouped_gemm(x8, w8, Rows(offsets)).block_until_ready()


def test_room_for_functions(x8, monkeypatch):
    monkeypatch.setattr("octofold.jax._calls._MOST_FUNCTIONS", 0)
    format = Format("e5m2", "tensor", rule="vllm", overflow="nan")  # of this test alone
    with pytest.raises(UnsupportedError, match="expected at most 0 functions in one process"):
        octofold.quantize(x8.scale, format)


def run(code, **environment):
    options = {"capture_output": True, "text": True, "check": True, "timeout": 60}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=os.environ | environment, **options).stdout


def test_import_octofold_leaves_jax_alone():
    code = "import sys, octofold, numpy; octofold.quantize(numpy.ones((2, 2), 'f4'));"
    assert run(f"{code} print('jax' in sys.modules)") == "False\n"
    assert run(f"{code} octofold.jax.linear; print('jax' in sys.modules)") == "True\n"


@pytest.mark.parametrize("missing", ["jax", "jax_tvm_ffi"])
def test_what_is_missing_is_named(missing):
    code = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {missing!r}: raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "import octofold\n"
        "try: octofold.jax\n"
        "except ModuleNotFoundError as error: print(error, error.name)\n"
    )
    message = f"octofold.jax needs {missing}, which is not installed: pip install 'octofold[jax]'"
    assert run(code) == f"{message} {missing}\n"
