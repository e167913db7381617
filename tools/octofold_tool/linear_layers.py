"""FP8 in the linear layers of a model: how good each product is, and what the model answers."""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import octofold

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
    model: MiniLm, sentences: Iterable[str], weights: dict[str, octofold.ScaledTensor]
) -> Float32Array:
    """Embeddings with FP8 in every linear layer."""

    def fp8_linear(name: str, x: Float32Array) -> Float32Array:
        _, bias = model.linear_parameters(name)
        result: Float32Array = octofold.gemm(
            octofold.quantize(x), weights[name], bias=bias, out_dtype="float32"
        )
        return result

    return model.embed(sentences, fp8_linear)


@dataclasses.dataclass(frozen=True)
class Fp8Times:
    """Milliseconds of one layer's GEMM, and of the cast of its activations."""

    gemm: float
    cast: float


def time_fp8(x: Float32Array, weight8: octofold.ScaledTensor) -> Fp8Times:
    x8 = octofold.quantize(x)
    product = octofold.gemm(x8, weight8, out_dtype="float32")
    return Fp8Times(
        gemm=median_milliseconds(lambda: octofold.gemm(x8, weight8, out=product)),
        cast=median_milliseconds(lambda: octofold.quantize(x)),
    )


def median_milliseconds(call: Callable[[], Any]) -> float:
    (seconds,) = interleaved_seconds([call], ROUNDS)
    return statistics.median(seconds) * 1e3


def measure_layer(
    name: str,
    x: Float32Array,
    weight: Float32Array,
    weight8: octofold.ScaledTensor,
    times: Fp8Times,
) -> LayerResult:
    x8 = octofold.quantize(x)
    product = np.full((len(x), len(weight)), np.nan, np.float32)  # poisoned: all must be written
    octofold.gemm(x8, weight8, out=product)
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    dequantized = product_in_float64(x8, weight8)
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
        bytes_fp8=weight8.data.nbytes + weight8.scale.nbytes,
        milliseconds_fp8=times.gemm,
        milliseconds_cast=times.cast,
        milliseconds_float32=median_milliseconds(lambda: x @ weight.T),
    )


def product_in_float64(a: octofold.ScaledTensor, b: octofold.ScaledTensor) -> Any:
    """The product of the dequantized operands: what an FP8 GEMM ought to give."""
    return a.dequantize().astype(np.float64) @ b.dequantize().astype(np.float64).T


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
