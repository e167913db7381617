"""FP8 in the linear layers of a model: how good each product is, and the model with it."""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import octofold

from .arrays import Arrays
from .measure import decibels, interleaved_seconds, relative_error
from .minilm import AttentionFunction, Float32Array, MiniLm
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


@dataclasses.dataclass(frozen=True)
class Fp8Times:
    """Milliseconds of one layer's GEMM, and of the cast of its activations."""

    gemm: float
    cast: float


def time_fp8(
    x: Float32Array, weight8: octofold.ScaledTensor, scheme: Scheme, arrays: Arrays
) -> Fp8Times:
    """Until the results are there; copies between NumPy and `arrays` are not counted."""
    x_there = arrays.from_numpy(x)
    x_cast = scheme.cast(x_there)
    product = scheme.multiply(x_cast, weight8)

    def multiply() -> None:
        scheme.multiply(x_cast, weight8, out=product)
        arrays.synchronize()

    def cast() -> None:
        scheme.cast(x_there)
        arrays.synchronize()

    return Fp8Times(gemm=median_milliseconds(multiply), cast=median_milliseconds(cast))


def median_milliseconds(call: Callable[[], Any]) -> float:
    (seconds,) = interleaved_seconds([call], ROUNDS)
    return statistics.median(seconds) * 1e3


def measure_layer(
    name: str,
    x: Float32Array,
    weight: Float32Array,
    weight8: octofold.ScaledTensor,
    times: Fp8Times,
    scheme: Scheme,
    arrays: Arrays,
) -> LayerResult:
    x_cast = scheme.cast(arrays.from_numpy(x))
    poisoned = np.full((len(x), len(weight)), np.nan, np.float32)  # all must be written
    out = arrays.from_numpy(poisoned)
    product = arrays.to_numpy(scheme.multiply(x_cast, weight8, out=out))
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    # What a product with FP8 ought to give: that of its operands as they were cast.
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
        milliseconds_fp8=times.gemm,
        milliseconds_cast=times.cast,
        milliseconds_float32=median_milliseconds(lambda: x @ weight.T),
    )
