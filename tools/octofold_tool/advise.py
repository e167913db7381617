"""octofold advise: which layers of a model gain by FP8, measured on its own inputs."""

import argparse
import importlib
import importlib.util
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .gpu.device import add_device, choose_device
from .report import ToolError, add_folder, console, made_folder, progress, require, write_whole
from .sentences import add_text, read_sentences

if TYPE_CHECKING:
    import torch
    from octofold.models import Plan

DESCRIPTION = """\
Run a model on its inputs, measure each linear layer in its own dtype and in each way to run it in
FP8 (time on this GPU with casts, error, bytes), and pick the plan that takes the least time under
a bound on the error of the model's answer, or makes the least error under a bound on its bytes.
The plan is checked by runs of the whole model. Writes plan.json (octofold.models.Plan.load and
apply make a model so), report.html and report.txt, over those of an earlier run. Without a GPU
times are left out, and the plan takes the fewest bytes.

  octofold advise my-model/ --text page.txt --max-error 0.03
  octofold advise my_module:make_model --max-bytes 12e9

MODEL is a folder that transformers' AutoModel loads, run on the text's sentences in one batch; or
module:function, a function without arguments that returns (model, inputs), inputs as of
octofold.models.advise. The current folder is looked into for the module.
"""

FILES: Final = ("plan.json", "report.html", "report.txt")
_OWN: Final = re.compile(r'"quant_method":\s*"octofold"')
_TOKENIZERS: Final = ("tokenizer*", "vocab*", "*.model", "*.vocab", "*.tiktoken")
DTYPES: Final = ("auto", "float32", "float16", "bfloat16")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "advise",
        help="which layers of a model gain by FP8: a measured plan and a report",
        description=DESCRIPTION,
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, or module:function")
    parser.add_argument(
        "--target",
        choices=("time", "bytes", "error"),
        help="what to minimize (default: time; without a GPU bytes; with --max-bytes error)",
    )
    bounds = parser.add_mutually_exclusive_group()
    bounds.add_argument(
        "--max-error",
        metavar="E",
        type=float,
        help="bound on the relative error of the model's answer (default: 0.05)",
    )
    bounds.add_argument(
        "--max-bytes", metavar="N", type=parse_bytes, help="bound on parameters and buffers"
    )
    parser.add_argument(
        "--ways",
        metavar="WAY",
        nargs="+",
        help="choose among these strategies only (report.html names all)",
    )
    add_device(parser)
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="dtype of a model in a folder (default: auto, as its config says)",
    )
    add_text(parser, "text for a model in a folder")
    add_folder(parser, "octofold-advice", FILES)
    parser.set_defaults(run=run)


def parse_bytes(text: str) -> int:
    try:
        value = int(float(text))
    except (ValueError, OverflowError):
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected a number of bytes above 0, got '{text}'")
    return value


def run(arguments: argparse.Namespace) -> None:
    require("matplotlib", "tool")
    require("torch", "torch")
    folder = made_folder(arguments.output_dir, FILES)
    device = choose_device(arguments.device)
    model, inputs = load(arguments, device)

    plan = advise_shown(
        model,
        inputs,
        arguments.target,
        max_error=arguments.max_error,
        max_bytes=arguments.max_bytes,
        ways=arguments.ways,
    )
    write_plan(plan, folder)
    from octofold.models.advisor.report import text_summary

    output = console()
    output.print(text_summary(plan), markup=False)
    output.print(f"Written: {', '.join(str(folder / name) for name in FILES)}")


def advise_shown(model: Any, inputs: Any, target: str | None = None, **options: Any) -> "Plan":
    """octofold.models.advise() with a progress bar."""
    import octofold

    with progress("measuring the model's layers") as advance:
        return octofold.models.advise(model, inputs, target, progress=advance, **options)


def write_plan(plan: "Plan", folder: Path) -> None:
    """FILES of a plan."""
    from octofold.models import html_report, text_report

    texts = plan.to_json(), html_report(plan), text_report(plan)
    for name, text in zip(FILES, texts, strict=True):
        write_whole(folder / name, text)


def load(arguments: argparse.Namespace, device: str) -> tuple["torch.nn.Module", Any]:
    """The model that the command names, and its inputs, on the device."""
    name: str = arguments.model
    if Path(name).is_dir():
        return load_folder(Path(name), arguments.dtype, read_sentences(arguments.text), device)
    if arguments.text is not None or arguments.dtype != "auto":
        raise ToolError("--text and --dtype are for a model in a folder")
    if ":" not in name:
        raise ToolError(f"{name}: expected a folder, or module:function")
    return load_function(name, device)


def load_folder(
    folder: Path, dtype: str, sentences: Sequence[str], device: str
) -> tuple[Any, dict[str, Any]]:
    """A model and a tokenizer of transformers, and the sentences in one batch."""
    config = folder / "config.json"
    said = config.read_text("utf-8", "replace") if config.is_file() else ""
    if _OWN.search(said) or (folder / "octofold.json").exists():
        raise ToolError(
            f"{folder}: its layers are in FP8 already, as octofold.models.save() or OctofoldConfig "
            "wrote them, and a plan is of weights in high precision: name the folder before that"
        )
    if importlib.util.find_spec("transformers") is None:
        raise ToolError("a model in a folder needs transformers: pip install transformers")
    import torch

    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    wanted = dtype if dtype == "auto" else getattr(torch, dtype)
    try:
        model = transformers.AutoModel.from_pretrained(folder, dtype=wanted, local_files_only=True)
    except Exception as error:
        raise ToolError(f"{folder}: transformers cannot load it: {one_line(error)}") from None
    if not any(path for glob in _TOKENIZERS for path in folder.glob(glob)):
        # transformers makes one without words for some models, which takes all words for unknown.
        raise ToolError(
            f"{folder}: it has no files of a tokenizer, such as tokenizer.json, to make "
            "inputs from text (name a function that returns (model, inputs): module:function)"
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        batch = tokenizer(list(sentences), return_tensors="pt", padding=True, truncation=True)
    except Exception as error:
        raise ToolError(
            f"{folder}: no tokenizer that makes inputs from text: {one_line(error)} (name a "
            "function that returns (model, inputs): module:function)"
        ) from None
    return model.to(device), {key: value.to(device) for key, value in batch.items()}


def load_function(name: str, device: str) -> tuple["torch.nn.Module", Any]:
    """Returns the model and the inputs that a function of the user's makes, on the device."""
    import torch

    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ToolError(f"{name}: {one_line(error)}") from None
    finally:
        sys.path.pop(0)
    made = function()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise ToolError(f"{name}: expected to return (a torch.nn.Module, inputs)")
    model, inputs = made
    return model.to(device), moved_to(inputs, device)


def moved_to(inputs: Any, device: str) -> Any:
    """Tensors in tuples, lists and dicts on the device; all else as it is."""
    import torch

    if isinstance(inputs, torch.Tensor):
        return inputs.to(device)
    if type(inputs) in (tuple, list):
        return type(inputs)(moved_to(item, device) for item in inputs)
    if isinstance(inputs, dict):
        return {key: moved_to(item, device) for key, item in inputs.items()}
    return inputs


def one_line(error: Exception) -> str:
    """Its beginning: those of transformers are pages."""
    text = " ".join(str(error).split())
    return textwrap.shorten(text, 300, placeholder=" …") or type(error).__name__
