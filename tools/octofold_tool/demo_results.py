"""The results of the demo: answers beside those in FP32; as a document, a table and a chart."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .linear_layers import ROUNDS, LayerResult
from .minilm import LINEAR_LAYERS, PACKAGE, Float32Array
from .report import COLORS, console, new_figure, print_table
from .schemes import Scheme


@dataclasses.dataclass(frozen=True)
class Answers:
    """The model's embeddings in other arithmetic beside those in FP32."""

    cosines: list[float]  # of each sentence's two embeddings
    same_nearest: int  # sentences whose nearest other sentence is still the same
    largest_lost_lead: float  # by how much, in FP32's similarity, one was nearest that is no more

    @property
    def worst(self) -> float:
        return min(self.cosines)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.cosines)


def compare_answers(float32: Float32Array, other: Float32Array) -> Answers:
    """Two sets of unit embeddings [sentences, 384] of the same sentences."""
    cosines = np.sum(float32.astype(np.float64) * other, axis=1)
    similarity = similarity_to_others(float32)
    before, after = similarity.argmax(axis=1), similarity_to_others(other).argmax(axis=1)
    everyone = np.arange(len(similarity))
    leads = similarity[everyone, before] - similarity[everyone, after]
    return Answers(cosines.tolist(), int(np.sum(before == after)), float(leads.max()))


def similarity_to_others(embeddings: Float32Array) -> Float32Array:
    """Cosine similarity of each sentence to each other one; to itself, −∞."""
    similarity: Float32Array = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -np.inf)
    return similarity


@dataclasses.dataclass(frozen=True)
class DemoResults:
    """The results of a run of the demo."""

    sentences: int
    backend: str  # for people
    scheme: Scheme
    layers: Sequence[LayerResult]
    answers: dict[str, Answers]  # by what is FP8, for people


def document(results: DemoResults) -> dict[str, Any]:
    names = "answers", "answers_with_fp8_attention"
    answers = zip(names, results.answers.values(), strict=False)
    return {
        "model": PACKAGE,
        "backend": results.backend,
        "parameters": {
            "dtype": "e4m3",
            "weight_granularity": "128x128",
            **results.scheme.parameters,
            "rule": "deepgemm",
            "rounds": ROUNDS,
        },
        "sentences": results.sentences,
        "layers": [dataclasses.asdict(layer) for layer in results.layers],
        **{
            name: {**dataclasses.asdict(some), "worst": some.worst, "mean": some.mean}
            for name, some in answers
        },
    }


def label(name: str) -> str:
    """A layer's name without what all have in common: "0.query", "0.attention.output"."""
    short = name.removeprefix("encoder.layer.").replace("attention.self.", "")
    return short.removesuffix(".dense")


COLUMNS: tuple[tuple[str, Callable[[LayerResult], float], Callable[..., float], str], ...] = (
    ("error vs\ndequantized", lambda layer: layer.error_dequantized, max, ".1e"),
    ("error vs\nunquantized", lambda layer: layer.error_unquantized, max, ".4f"),
    ("SNR\ndB", lambda layer: layer.snr_db, min, ".1f"),
    ("saved\nMB", lambda layer: (layer.bytes_float32 - layer.bytes_fp8) / 1e6, sum, ".2f"),
    ("FP8\nms", lambda layer: layer.milliseconds_fp8, sum, ".2f"),
    ("cast\nms", lambda layer: layer.milliseconds_cast, sum, ".2f"),
    ("FP32\nms", lambda layer: layer.milliseconds_float32, sum, ".2f"),
)
"""The title, a layer's number, how the numbers of all are one, and how it is written."""


def show(results: DemoResults) -> None:
    layers = results.layers
    rows = [
        [label(layer.name), f"{layer.m},{layer.n},{layer.k}"]
        + [format(number(layer), how) for _, number, _, how in COLUMNS]
        for layer in layers
    ]
    totals = [f"all {len(layers)}, worst", ""]
    totals += [format(all_(map(number, layers)), how) for _, number, all_, how in COLUMNS]
    titles = ["layer", "M,N,K", *(column[0] for column in COLUMNS)]
    title = f"FP8 (e4m3) in linear layers of {PACKAGE}: {results.scheme.title}"
    print_table(title, titles, rows, totals)
    bytes_float32 = sum(layer.bytes_float32 for layer in layers)
    bytes_fp8 = sum(layer.bytes_fp8 for layer in layers)
    output = console()
    for what, answers in results.answers.items():
        count = len(answers.cosines)
        flipped = count - answers.same_nearest
        lead = answers.largest_lost_lead
        why = f" (FP32 had it ahead by {lead:.4f} at most)" if flipped else ""
        output.print(
            f"The model's answers with FP8 in all {what}, beside FP32's:\n"
            f"  cosine similarity {answers.mean:.5f} on average, {answers.worst:.5f} at worst;\n"
            f"  the nearest other sentence is the same for {answers.same_nearest} of {count}{why}."
        )
    output.print(
        f"Weights of these layers: {bytes_float32 / 1e6:.1f} MB in FP32, "
        f"{bytes_float32 / 2e6:.1f} MB in BF16, {bytes_fp8 / 1e6:.1f} MB in FP8 with scales."
    )
    output.print(
        f"FP8: {results.backend} (octofold info says why). FP32: NumPy on the CPU.\n"
        "Times: until the result is there, without copies between the two.",
        style="dim",
    )


def chart(results: DemoResults) -> Any:
    """Errors of each kind of layer from the first to the last, and the answers' similarity."""
    layers = results.layers
    figure, (errors, losses) = new_figure(
        2, f"FP8 in every linear layer of {PACKAGE}: {results.scheme.title}", width_ratios=(3, 2)
    )
    for color, kind in zip(COLORS, map(label, LINEAR_LAYERS), strict=True):
        same_kind = [layer for layer in layers if label(layer.name).partition(".")[2] == kind]
        percentages = [100 * layer.error_unquantized for layer in same_kind]
        errors.plot(range(len(same_kind)), percentages, "o-", color=color, label=kind)
    errors.set_title("Each product: error against the unquantized one")
    errors.set_xlabel("encoder layer")
    errors.set_ylabel("relative error, %")
    errors.set_ylim(0, 130 * max(layer.error_unquantized for layer in layers))
    errors.legend(frameon=False, fontsize="small", ncols=3, loc="upper left")

    every = results.answers
    width = 0.8 / len(every)
    for index, (what, answers) in enumerate(every.items()):
        angles = sorted((1 - cosine for cosine in answers.cosines), reverse=True)
        places = [1 + place + (index + 0.5) * width - 0.4 for place in range(len(angles))]
        losses.bar(places, angles, width, color=COLORS[index], label=f"FP8: {what}")
    losses.set_title("The model's answers: distance to FP32's")
    losses.set_xlabel("sentences, worst first")
    losses.set_ylabel("1 − cosine similarity")
    if len(every) > 1:
        losses.legend(frameon=False, fontsize="small")
    return figure
