"""octofold demo: FP8 in every linear layer of a real model, and what that does."""

import argparse
import dataclasses
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import octofold

from .arrays import Arrays, choose_arrays
from .linear_layers import (
    ROUNDS,
    Answers,
    LayerResult,
    compare_answers,
    embed_and_record,
    embed_in_fp8,
    measure_layer,
    time_fp8,
)
from .measure import rest
from .minilm import LINEAR_LAYERS, PACKAGE, MiniLm, model_folder
from .report import (
    COLORS,
    ToolError,
    check_writable,
    console,
    json_text,
    new_figure,
    print_table,
    require,
    tracked,
    write_json,
    write_png,
)

HELP = "FP8 in every linear layer of a real model: errors, bytes, times, answers"

DESCRIPTION = f"""\
Run a real sentence-embedding model ({PACKAGE}, six transformer layers) on a page of
text. Quantize the weight of each linear layer 128x128 and its activations 1x128, multiply in FP8,
and say how good that was. Then run the whole model in FP8 and compare its answers. The FP8 runs on
the GPU where there is one with kernels and PyTorch to drive it, else on the CPU; the rest of the
model is NumPy. Writes demo.json and demo.png, over those of an earlier run.

  octofold demo
  octofold demo --text my-page.txt --output-dir /tmp/demo

The errors are ‖product − reference‖ / ‖reference‖: against the FP64 product of the dequantized
operands (what the GEMM adds) and of the original ones (what FP8 costs in all). Embeddings are the
mean over tokens, so the model's pooler takes no part and is left out.
"""


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
        "--text",
        metavar="FILE",
        type=Path,
        help="your own text, a sentence per line, UTF-8 (default: forty sentences of the tool's)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print what demo.json holds instead of the table"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    require("rich", "demo")
    require("matplotlib", "demo")
    folder: Path = arguments.output_dir
    sentences = read_sentences(arguments.text)
    model = MiniLm(model_folder())
    arrays = choose_arrays()
    folder.mkdir(parents=True, exist_ok=True)
    json_path, png_path = folder / "demo.json", folder / "demo.png"
    for path in (json_path, png_path):
        check_writable(path)

    reference, activations = embed_and_record(
        model, tracked("running the model in FP32", sentences)
    )
    names = model.linear_names()
    originals = {name: model.linear_parameters(name)[0] for name in names}
    weights = {
        name: octofold.quantize(arrays.from_numpy(originals[name]), granularity="128x128")
        for name in names
    }
    rest()  # all of FP8 is timed before any of FP32: see measure.REST
    times = {
        name: time_fp8(activations[name], weights[name], arrays)
        for name in tracked("timing each layer in FP8", names)
    }
    layers = [
        measure_layer(name, activations[name], originals[name], weights[name], times[name], arrays)
        for name in tracked("comparing with FP32", names)
    ]
    answers = compare_answers(
        reference,
        embed_in_fp8(model, tracked("running the model in FP8", sentences), weights, arrays),
    )

    content = document(len(sentences), layers, answers, arrays)
    write_json(json_path, content)
    write_png(png_path, chart(layers, answers))
    if arguments.json:
        print(json_text(content))
    else:
        show(layers, answers, arrays)
        console().print(f"\nWritten: {json_path} and {png_path}")


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


def document(
    sentence_count: int, layers: Sequence[LayerResult], answers: Answers, arrays: Arrays
) -> dict[str, Any]:
    return {
        "model": PACKAGE,
        "backend": arrays.description,
        "parameters": {
            "dtype": "e4m3",
            "weight_granularity": "128x128",
            "activation_granularity": "1x128",
            "profile": "deepgemm",
            "rounds": ROUNDS,
        },
        "sentences": sentence_count,
        "layers": [dataclasses.asdict(layer) for layer in layers],
        "answers": {**dataclasses.asdict(answers), "worst": answers.worst, "mean": answers.mean},
    }


def label(name: str) -> str:
    """A layer's name without what all have in common: "0.query", "0.attention.output"."""
    short = name.removeprefix("encoder.layer.").replace("attention.self.", "")
    return short.removesuffix(".dense")


def show(layers: Sequence[LayerResult], answers: Answers, arrays: Arrays) -> None:
    columns = (
        "layer", "M,N,K", "error vs\ndequantized", "error vs\nunquantized", "SNR\ndB", "saved\nMB",
        "FP8\nms", "cast\nms", "FP32\nms",
    )  # fmt: skip
    rows = [
        (
            label(layer.name),
            f"{layer.m},{layer.n},{layer.k}",
            f"{layer.error_dequantized:.1e}",
            f"{layer.error_unquantized:.4f}",
            f"{layer.snr_db:.1f}",
            f"{(layer.bytes_float32 - layer.bytes_fp8) / 1e6:.2f}",
            f"{layer.milliseconds_fp8:.2f}",
            f"{layer.milliseconds_cast:.2f}",
            f"{layer.milliseconds_float32:.2f}",
        )
        for layer in layers
    ]
    bytes_float32 = sum(layer.bytes_float32 for layer in layers)
    bytes_fp8 = sum(layer.bytes_fp8 for layer in layers)
    totals = (
        f"all {len(layers)}, worst",
        "",
        f"{max(layer.error_dequantized for layer in layers):.1e}",
        f"{max(layer.error_unquantized for layer in layers):.4f}",
        f"{min(layer.snr_db for layer in layers):.1f}",
        f"{(bytes_float32 - bytes_fp8) / 1e6:.2f}",
        f"{sum(layer.milliseconds_fp8 for layer in layers):.1f}",
        f"{sum(layer.milliseconds_cast for layer in layers):.1f}",
        f"{sum(layer.milliseconds_float32 for layer in layers):.1f}",
    )
    title = f"FP8 (e4m3) linear layers of {PACKAGE}: weights 128x128, activations 1x128"
    print_table(title, columns, rows, totals)
    count = len(answers.cosines)
    flipped = count - answers.same_nearest
    why = f" (FP32 had it ahead by {answers.largest_lost_lead:.4f} at most)" if flipped else ""
    output = console()
    output.print(
        "The model's answers with FP8 in every linear layer, beside FP32's:\n"
        f"  cosine similarity {answers.mean:.5f} on average, {answers.worst:.5f} at worst;\n"
        f"  the nearest other sentence is the same for {answers.same_nearest} of {count}{why}.\n"
        f"Weights of these layers: {bytes_float32 / 1e6:.1f} MB in FP32, "
        f"{bytes_float32 / 2e6:.1f} MB in BF16, {bytes_fp8 / 1e6:.1f} MB in FP8 with scales."
    )
    output.print(
        f"FP8: {arrays.description} (octofold info says why). FP32: NumPy on the CPU.\n"
        "Times: until the result is there, without copies between the two.",
        style="dim",
    )


def chart(layers: Sequence[LayerResult], answers: Answers) -> Any:
    """Errors of each kind of layer from the first to the last, and the answers' similarity."""
    figure, (errors, losses) = new_figure(
        2, f"FP8 in every linear layer of {PACKAGE}", width_ratios=(3, 2)
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

    angles = sorted((1 - cosine for cosine in answers.cosines), reverse=True)
    losses.bar(range(1, len(angles) + 1), angles, color=COLORS[0])
    losses.set_title("The model's answers: distance to FP32's")
    losses.set_xlabel("sentences, worst first")
    losses.set_ylabel("1 − cosine similarity")
    return figure
