"""octofold demo: FP8 in every linear layer of a real model, and what that does."""

import argparse
from pathlib import Path

from .advise import FILES as PLAN_FILES
from .advised_demo import advise_twin
from .arrays import choose_arrays
from .demo_results import Answers, DemoResults, chart, compare_answers, document, show
from .linear_layers import embed_and_record, embed_by, measure_layer, time_layers
from .minilm import PACKAGE, MiniLm, model_folder
from .report import (
    check_writable,
    console,
    json_text,
    require,
    tracked,
    write_json,
    write_png,
)
from .schemes import Fp8Attention, Fp8Products, Fp8Weights, cast_weight
from .sentences import read_sentences

HELP = "FP8 in every linear layer of a real model: errors, bytes, times, answers"

DESCRIPTION = f"""\
Run a real sentence-embedding model ({PACKAGE}, six transformer layers) on a page of
text. Quantize the weight of each linear layer 128x128 and its activations 1x128, multiply in FP8,
and say how good that was. Then run the whole model in FP8 and compare its answers. The FP8 runs on
the GPU where there is one with kernels and PyTorch to drive it, else on the CPU; the rest of the
model is NumPy. Then, where PyTorch is installed, octofold advise plans the model: which of its
layers gain by FP8, and what they cost. Writes demo.json, demo.png and the plan (plan.json,
report.html, report.txt), over those of an earlier run.

  octofold demo
  octofold demo --weight-only
  octofold demo --text my-page.txt --output-dir /tmp/demo

With --weight-only the weights alone are FP8, and activations FP16, as on GPUs without FP8 units;
then keys and values of attention are FP8 besides.

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
        "--weight-only",
        action="store_true",
        help="FP8 for weights alone, activations in FP16; then for keys and values too",
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
    for path in (json_path, png_path, *(folder / name for name in PLAN_FILES)):
        check_writable(path)

    reference, activations = embed_and_record(
        model, tracked("running the model in FP32", sentences)
    )
    names = model.linear_names()
    originals = {name: model.linear_parameters(name)[0] for name in names}
    weights = {name: cast_weight(originals[name], arrays) for name in names}
    scheme = Fp8Weights(arrays) if arguments.weight_only else Fp8Products(arrays)
    times = time_layers(activations, originals, weights, scheme, arrays)
    layers = [
        measure_layer(
            name, activations[name], originals[name], weights[name], times[name], scheme, arrays
        )
        for name in tracked("comparing with FP64", names)
    ]

    def answers(attention: Fp8Attention | None = None) -> Answers:
        shown = tracked("running the model in FP8", sentences)
        return compare_answers(
            reference, embed_by(model, shown, scheme, weights, arrays, attention)
        )

    results = DemoResults(
        sentences=len(sentences),
        backend=arrays.description,
        scheme=scheme,
        layers=layers,
        answers=answers(),
        with_attention=answers(Fp8Attention(arrays)) if arguments.weight_only else None,
    )
    advice = advise_twin(model, sentences, folder)
    content = {**document(results), "advisor": advice.document}
    write_json(json_path, content)
    write_png(png_path, chart(results))
    if arguments.json:
        print(json_text(content))
    else:
        show(results)
        console().print("\n" + advice.text, markup=False)
        files = ", ".join(path.name for path in (json_path, png_path, *advice.paths))
        console().print(f"\nWritten to {folder}: {files}")
