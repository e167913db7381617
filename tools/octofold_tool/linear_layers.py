"""FP8 in the linear layers of a model: how good each product is, and what the model answers."""

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
from .minilm import Float32Array, MiniLm

ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """One linear layer in FP8: D[m, n] = x[m, k] · weight[n, k]ᵀ, without its bias, FP32 out."""

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


@dataclasses.dataclass(frozen=True)
class Answers:
    """The model's embeddings with FP8 in every linear layer beside those in FP32."""

    cosines: list[float]  # of each sentence's two embeddings
    same_nearest: int  # sentences whose nearest other sentence is still the same
    largest_lost_lead: float  # by how much, in FP32's similarity, one was nearest that is no more

    @property
    def worst(self) -> float:
        return min(self.cosines)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.cosines)


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


def embed_in_fp8(
    model: MiniLm,
    sentences: Iterable[str],
    weights: dict[str, octofold.ScaledTensor],
    arrays: Arrays,
) -> Float32Array:
    """Embeddings with FP8 in every linear layer. The weights are `arrays`'."""

    def fp8_linear(name: str, x: Float32Array) -> Float32Array:
        _, bias = model.linear_parameters(name)
        x8 = octofold.quantize(arrays.from_numpy(x))
        bias_there = arrays.from_numpy(bias)
        return arrays.to_numpy(
            octofold.gemm(x8, weights[name], bias=bias_there, out_dtype="float32")
        )

    return model.embed(sentences, fp8_linear)


@dataclasses.dataclass(frozen=True)
class Fp8Times:
    """Milliseconds of one layer's GEMM, and of the cast of its activations."""

    gemm: float
    cast: float


def time_fp8(x: Float32Array, weight8: octofold.ScaledTensor, arrays: Arrays) -> Fp8Times:
    """Until the results are there; copies between NumPy and `arrays` are not counted."""
    x_there = arrays.from_numpy(x)
    x8 = octofold.quantize(x_there)
    product = octofold.gemm(x8, weight8, out_dtype="float32")

    def multiply() -> None:
        octofold.gemm(x8, weight8, out=product)
        arrays.synchronize()

    def cast() -> None:
        octofold.quantize(x_there)
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
    arrays: Arrays,
) -> LayerResult:
    x8 = octofold.quantize(arrays.from_numpy(x))
    poisoned = np.full((len(x), len(weight)), np.nan, np.float32)  # all must be written
    product = arrays.to_numpy(octofold.gemm(x8, weight8, out=arrays.from_numpy(poisoned)))
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    dequantized = product_in_float64(x8, weight8, arrays)
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


def product_in_float64(a: octofold.ScaledTensor, b: octofold.ScaledTensor, arrays: Arrays) -> Any:
    """The product of the dequantized operands: what an FP8 GEMM ought to give."""
    left, right = (arrays.to_numpy(x.dequantize()).astype(np.float64) for x in (a, b))
    return left @ right.T


def compare_answers(float32: Float32Array, fp8: Float32Array) -> Answers:
    """Two sets of unit embeddings [sentences, 384] of the same sentences."""
    cosines = np.sum(float32.astype(np.float64) * fp8, axis=1)
    similarity = similarity_to_others(float32)
    before, after = similarity.argmax(axis=1), similarity_to_others(fp8).argmax(axis=1)
    everyone = np.arange(len(similarity))
    leads = similarity[everyone, before] - similarity[everyone, after]
    return Answers(cosines.tolist(), int(np.sum(before == after)), float(leads.max()))


def similarity_to_others(embeddings: Float32Array) -> Float32Array:
    """Cosine similarity of each sentence to each other one; to itself, −∞."""
    similarity: Float32Array = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -np.inf)
    return similarity
