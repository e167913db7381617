"""FP8 in the linear layers of a model: how good each product is, and the model with it."""

import dataclasses
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import octofold

from .arrays import Arrays
from .measure import decibels, relative_error, rest
from .minilm import AttentionFunction, Float32Array, MiniLm
from .report import tracked
from .schemes import Scheme

ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """One linear layer with FP8: D[m, n] = x[m, k] · weight[n, k]ᵀ, without its bias, FP32 out."""

    name: str
    m: int
    n: int
    k: int
    error_dequantized: float  # of the FP8 product against the dequantized operands' in FP64
    error_unquantized: float  # against the original operands' in FP64
    snr_db: float  # of the latter
    bytes_float32: int  # weight
    bytes_fp8: int  # codes and scales
    milliseconds_fp8: float  # GEMM alone, as a server runs it: weights cast once
    milliseconds_cast: float  # of the activations
    milliseconds_float32: float  # NumPy's product


def embed_and_record(
    model: MiniLm, sentences: Iterable[str]
) -> tuple[Float32Array, dict[str, Float32Array]]:
    """Embeddings in FP32, and what went into each linear layer on the way, [tokens, K]."""
    inputs: dict[str, list[Float32Array]] = defaultdict(list)

    def recording(name: str, x: Float32Array) -> Float32Array:
        inputs[name].append(x)
        return model.linear(name, x)

    embeddings = model.embed(sentences, recording)
    return embeddings, {name: np.concatenate(parts) for name, parts in inputs.items()}


def embed_by(
    model: MiniLm,
    sentences: Iterable[str],
    scheme: Scheme,
    weights: dict[str, octofold.ScaledTensor],
    arrays: Arrays,
    attention: AttentionFunction | None = None,
) -> Float32Array:
    """Embeddings with every linear layer computed by the scheme, and attention as given, else in
    FP32. The weights are `arrays`'."""

    def linear(name: str, x: Float32Array) -> Float32Array:
        _, bias = model.linear_parameters(name)
        there = scheme.cast(arrays.from_numpy(x))
        return arrays.to_numpy(scheme.multiply(there, weights[name], arrays.from_numpy(bias)))

    return model.embed(sentences, linear, attention)


def time_layers(
    activations: Mapping[str, Float32Array],
    originals: Mapping[str, Float32Array],
    weights: Mapping[str, octofold.ScaledTensor],
    scheme: Scheme,
    arrays: Arrays,
) -> dict[str, list[float]]:
    """Milliseconds of each layer's GEMM in FP8, of the cast of its activations, and of the GEMM in
    FP32, until the results are there; copies between NumPy and `arrays` are not counted. In each
    round all layers are multiplied in FP8, then cast, then multiplied in FP32 (see measure.REST),
    each once before it is timed."""
    calls: dict[str, list[Callable[[], object]]] = {}
    for name, x in activations.items():
        x_there = arrays.from_numpy(x)
        x_cast = scheme.cast(x_there)
        out = scheme.multiply(x_cast, weights[name])
        out32 = np.empty((len(x), len(originals[name])), np.float32)
        calls[name] = [
            partial(scheme.multiply, x_cast, weights[name], out=out),
            partial(scheme.cast, x_there),
            partial(np.matmul, x, originals[name].T, out=out32),
        ]
    seconds: dict[str, list[list[float]]] = {name: [[], [], []] for name in calls}
    for _ in tracked("timing each layer in FP8 and FP32", range(ROUNDS)):
        rest()
        for kind in range(3):
            for name, call in calls.items():
                call[kind]()
                arrays.synchronize()
                start = time.perf_counter()
                call[kind]()
                arrays.synchronize()
                seconds[name][kind].append(time.perf_counter() - start)
    return {
        name: [statistics.median(taken) * 1e3 for taken in kinds] for name, kinds in seconds.items()
    }


def measure_layer(
    name: str,
    x: Float32Array,
    weight: Float32Array,
    weight8: octofold.ScaledTensor,
    times: Sequence[float],
    scheme: Scheme,
    arrays: Arrays,
) -> LayerResult:
    x_cast = scheme.cast(arrays.from_numpy(x))
    poisoned = np.full((len(x), len(weight)), np.nan, np.float32)  # all must be written
    out = arrays.from_numpy(poisoned)
    product = arrays.to_numpy(scheme.multiply(x_cast, weight8, out=out))
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    # A product with FP8 ought to give that of its operands as they were cast.
    weight_values = arrays.to_numpy(weight8.dequantize()).astype(np.float64)
    dequantized = scheme.values(x_cast) @ weight_values.T
    error = relative_error(product, exact)
    return LayerResult(
        name=name,
        m=len(x),
        n=weight.shape[0],
        k=weight.shape[1],
        error_dequantized=relative_error(product, dequantized),
        error_unquantized=error,
        snr_db=decibels(error),
        bytes_float32=weight.nbytes,
        bytes_fp8=weight8.data.nbytes + 4 * math.prod(weight8.scale.shape),
        milliseconds_fp8=times[0],
        milliseconds_cast=times[1],
        milliseconds_float32=times[2],
    )
