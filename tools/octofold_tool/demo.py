"""octofold demo: FP8 in every linear layer of a real model, and what that does."""

import argparse

from .advise import FILES as PLAN_FILES
from .advised_demo import advise_demo
from .arrays import choose_arrays
from .demo_results import DemoResults, chart, compare_answers, document, show
from .linear_layers import embed_and_record, embed_by, measure_layer, time_layers
from .minilm import PACKAGE, MiniLm, model_folder
from .report import (
    add_folder,
    console,
    json_text,
    made_folder,
    require,
    tracked,
    write_json,
    write_png,
)
from .schemes import Fp8Attention, Scheme, cast_weight
from .sentences import add_text, read_sentences

FILES = ("demo.json", "demo.png", *PLAN_FILES)

DESCRIPTION = f"""\
Run a real sentence-embedding model ({PACKAGE}, six transformer layers) on a page of
text. Quantize the weight of each linear layer 128x128 and its activations 1x128, multiply in FP8,
and say how good that was. Then run the whole model in FP8 and compare its answers. The FP8 runs on
the GPU where there is one with kernels and PyTorch to drive it, else on the CPU; the rest of the
model is NumPy. Then, where PyTorch and transformers are installed, octofold advise plans the model:
which of its layers gain by FP8, and what they cost. Writes demo.json, demo.png and the plan
(plan.json, report.html, report.txt), over those of an earlier run.

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
        help="FP8 in every linear layer of a real model: errors, bytes, times, answers",
        description=DESCRIPTION,
    )
    add_text(parser, "your own text")
    add_folder(parser, "octofold-demo", FILES)
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
    sentences = read_sentences(arguments.text)
    model = MiniLm(model_folder())
    arrays = choose_arrays()
    folder = made_folder(arguments.output_dir, FILES)

    reference, activations = embed_and_record(
        model, tracked("running the model in FP32", sentences)
    )
    names = model.linear_names()
    originals = {name: model.linear_parameters(name)[0] for name in names}
    weights = {name: cast_weight(originals[name], arrays) for name in names}
    scheme = Scheme(arrays, arguments.weight_only)
    times = time_layers(activations, originals, weights, scheme, arrays)
    layers = [
        measure_layer(
            name, activations[name], originals[name], weights[name], times[name], scheme, arrays
        )
        for name in tracked("comparing with FP64", names)
    ]

    kinds: dict[str, Fp8Attention | None] = {"linear layers": None}
    if arguments.weight_only:
        kinds["linear layers, keys and values"] = Fp8Attention(arrays)
    answers = {}
    for what, attention in kinds.items():
        shown = tracked("running the model in FP8", sentences)
        embeddings = embed_by(model, shown, scheme, weights, arrays, attention)
        answers[what] = compare_answers(reference, embeddings)
    results = DemoResults(len(sentences), arrays.description, scheme, layers, answers)
    advice, plan = advise_demo(sentences, folder)
    content = {**document(results), "advisor": plan}
    write_json(folder / "demo.json", content)
    write_png(folder / "demo.png", chart(results))
    if arguments.json:
        print(json_text(content))
    else:
        show(results)
        console().print("\n" + advice, markup=False)
        files = ", ".join(FILES if plan else FILES[:2])
        console().print(f"\nWritten to {folder}: {files}")
