"""octofold demo: FP8 in every linear layer of a real model, and what that does."""

import argparse
import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import octofold

from .measure import decibels, interleaved_seconds, relative_error
from .minilm import LINEAR_LAYERS, PACKAGE, Float32Array, MiniLm, model_folder
from .report import (
    COLORS,
    ToolError,
    check_writable,
    console,
    new_figure,
    print_table,
    require,
    tracked,
    write_json,
    write_png,
)

HELP = "FP8 in every linear layer of a real model: errors, bytes, times, answers"

DESCRIPTION = f"""\
Run a real model ({PACKAGE}: six transformer layers) on a page of text; quantize the weight of each
linear layer 128x128 and its activations 1x128; multiply in FP8; say how good that was. Then run
the whole model in FP8 and compare its answers. Writes demo.json and demo.png.

  octofold demo
  octofold demo --text my-page.txt --output-dir /tmp/demo
"""

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

    @property
    def worst(self) -> float:
        return min(self.cosines)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.cosines)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        default=Path("octofold-demo"),
        help="where demo.json and demo.png go; made if need be (default: %(default)s)",
    )
    parser.add_argument(
        "--text", metavar="FILE", type=Path, help="your own text, a sentence per line (UTF-8)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.output_dir
    require("matplotlib", "tool")
    sentences = read_sentences(arguments.text)
    model = MiniLm(model_folder())
    folder.mkdir(parents=True, exist_ok=True)
    json_path, png_path = folder / "demo.json", folder / "demo.png"
    for path in (json_path, png_path):
        check_writable(path)

    reference, activations = embed_and_record(model, sentences)
    weights, layers = measure_layers(model, activations)
    answers = compare_answers(model, sentences, reference, weights)

    show(layers, answers)
    write_json(
        json_path,
        {
            "model": PACKAGE,
            "sentences": len(sentences),
            "layers": [dataclasses.asdict(layer) for layer in layers],
            "answers": {
                **dataclasses.asdict(answers),
                "worst": answers.worst,
                "mean": answers.mean,
            },
        },
    )
    write_png(png_path, chart(layers, answers))
    console().print(f"\nWritten: {json_path} and {png_path}", soft_wrap=True)


def read_sentences(path: Path | None) -> list[str]:
    """The sentences of a text file, or of the page that comes with the tool."""
    try:
        text = (
            resources.files(__package__).joinpath("page.txt").read_text(encoding="utf-8")
            if path is None
            else path.read_text(encoding="utf-8")
        )
    except UnicodeDecodeError:
        raise ToolError(f"{path}: expected UTF-8 text") from None
    sentences = [line.strip() for line in text.splitlines() if line.strip()]
    if len(sentences) < 2:
        raise ToolError(f"{path}: expected at least two sentences, a line each, to compare")
    return sentences


def embed_and_record(
    model: MiniLm, sentences: Sequence[str]
) -> tuple[Float32Array, dict[str, Float32Array]]:
    """Embeddings in FP32, and what went into each linear layer on the way, [tokens, K]."""
    inputs: dict[str, list[Float32Array]] = defaultdict(list)

    def recording(name: str, x: Float32Array) -> Float32Array:
        inputs[name].append(x)
        return model.linear(name, x)

    embeddings = model.embed(tracked("running the model in FP32", sentences), recording)
    return embeddings, {name: np.concatenate(parts) for name, parts in inputs.items()}


def measure_layers(
    model: MiniLm, activations: dict[str, Float32Array]
) -> tuple[dict[str, octofold.ScaledTensor], list[LayerResult]]:
    """The quantized weights, and how each layer's product came out."""
    weights: dict[str, octofold.ScaledTensor] = {}
    results = []
    for name in tracked("measuring each layer in FP8", model.linear_names()):
        weight, _ = model.linear_parameters(name)
        weights[name] = octofold.quantize(weight, granularity="128x128")
        results.append(measure_layer(name, activations[name], weight, weights[name]))
    return weights, results


def measure_layer(
    name: str, x: Float32Array, weight: Float32Array, weight8: octofold.ScaledTensor
) -> LayerResult:
    x8 = octofold.quantize(x)
    product = np.full((len(x), len(weight)), np.nan, np.float32)  # poisoned: all must be written
    octofold.gemm(x8, weight8, out=product)
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    dequantized = product_in_float64(x8, weight8)
    calls = (
        lambda: octofold.gemm(x8, weight8, out=product),
        lambda: octofold.quantize(x),
        lambda: x @ weight.T,
    )
    gemm_ms, cast_ms, float32_ms = (
        statistics.median(seconds) * 1e3 for seconds in interleaved_seconds(calls, ROUNDS)
    )
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
        milliseconds_fp8=gemm_ms,
        milliseconds_cast=cast_ms,
        milliseconds_float32=float32_ms,
    )


def product_in_float64(a: octofold.ScaledTensor, b: octofold.ScaledTensor) -> Any:
    """The product of the dequantized operands: what an FP8 GEMM ought to give."""
    return a.dequantize().astype(np.float64) @ b.dequantize().astype(np.float64).T


def compare_answers(
    model: MiniLm,
    sentences: Sequence[str],
    reference: Float32Array,
    weights: dict[str, octofold.ScaledTensor],
) -> Answers:
    """Embed again with FP8 in every linear layer."""

    def fp8_linear(name: str, x: Float32Array) -> Float32Array:
        _, bias = model.linear_parameters(name)
        result: Float32Array = octofold.gemm(
            octofold.quantize(x), weights[name], bias=bias, out_dtype="float32"
        )
        return result

    embeddings = model.embed(tracked("running the model in FP8", sentences), fp8_linear)
    cosines = np.sum(reference.astype(np.float64) * embeddings, axis=1)
    same = nearest_others(reference) == nearest_others(embeddings)
    return Answers([float(cosine) for cosine in cosines], int(np.sum(same)))


def nearest_others(embeddings: Float32Array) -> Any:
    """For each sentence the index of the other one that is closest to it."""
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -np.inf)
    return np.argmax(similarity, axis=1)


def show(layers: Sequence[LayerResult], answers: Answers) -> None:
    columns = (
        "layer", "M,N,K", "rel. error vs dequantized", "vs unquantized", "SNR dB",
        "saved KB", "FP8 ms", "cast ms", "FP32 ms",
    )  # fmt: skip
    rows = [
        (
            layer.name.removeprefix("encoder.layer."),
            f"{layer.m},{layer.n},{layer.k}",
            f"{layer.error_dequantized:.1e}",
            f"{layer.error_unquantized:.4f}",
            f"{layer.snr_db:.1f}",
            f"{(layer.bytes_float32 - layer.bytes_fp8) / 1e3:,.0f}",
            f"{layer.milliseconds_fp8:.2f}",
            f"{layer.milliseconds_cast:.2f}",
            f"{layer.milliseconds_float32:.2f}",
        )
        for layer in layers
    ]
    bytes_float32 = sum(layer.bytes_float32 for layer in layers)
    bytes_fp8 = sum(layer.bytes_fp8 for layer in layers)
    totals = (
        f"all {len(layers)} (worst error)",
        "",
        f"{max(layer.error_dequantized for layer in layers):.1e}",
        f"{max(layer.error_unquantized for layer in layers):.4f}",
        f"{min(layer.snr_db for layer in layers):.1f}",
        f"{(bytes_float32 - bytes_fp8) / 1e3:,.0f}",
        f"{sum(layer.milliseconds_fp8 for layer in layers):.2f}",
        f"{sum(layer.milliseconds_cast for layer in layers):.2f}",
        f"{sum(layer.milliseconds_float32 for layer in layers):.2f}",
    )
    title = f"FP8 (e4m3) linear layers of {PACKAGE}: weights 128x128, activations 1x128"
    print_table(title, columns, rows, totals)
    output = console()
    count = len(answers.cosines)
    output.print(
        f"The model's answers with FP8 in every linear layer: cosine similarity to FP32's "
        f"{answers.mean:.5f} on average, {answers.worst:.5f} at worst;\n"
        f"the nearest other sentence is the same for {answers.same_nearest} of {count}. "
        f"Weights take {bytes_fp8 / 1e6:.1f} MB for {bytes_float32 / 1e6:.1f} MB "
        f"({1 - bytes_fp8 / bytes_float32:.0%} less).",
        soft_wrap=True,
    )
    output.print(
        "Times are of the CPU reference backend, which is there to check with, beside NumPy's "
        "FP32 product.",
        style="dim",
        soft_wrap=True,
    )


def chart(layers: Sequence[LayerResult], answers: Answers) -> Any:
    """Errors of each kind of layer from the first to the last, and the answers' similarity."""
    figure, (errors, cosines) = new_figure(
        2, f"FP8 in every linear layer of {PACKAGE}", width_ratios=(3, 2)
    )
    for color, kind in zip(COLORS, LINEAR_LAYERS, strict=True):
        values = [layer.error_unquantized for layer in layers if _kind(layer.name) == kind]
        errors.plot(range(len(values)), values, "o-", color=color, label=kind)
    errors.set_title("One layer: error against the unquantized product")
    errors.set_xlabel("encoder layer")
    errors.set_ylabel("relative error")
    errors.set_ylim(0, 1.3 * max(layer.error_unquantized for layer in layers))
    errors.legend(frameon=False, fontsize="small", ncols=3, loc="upper left")

    losses = sorted((1 - cosine for cosine in answers.cosines), reverse=True)
    cosines.bar(range(1, len(losses) + 1), losses, color=COLORS[0])
    cosines.set_title("All layers: 1 − cosine similarity to FP32's answer")
    cosines.set_xlabel("sentences, worst first")
    return figure


def _kind(name: str) -> str:
    """The part of a layer's name that does not number it."""
    return name.split(".", maxsplit=3)[3]
