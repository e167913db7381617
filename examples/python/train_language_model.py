"""Trains a language model in BF16 and in FP8, and plots the losses beside each other:

    python train_language_model.py --output runs                      all recipes; on a GPU minutes
    python train_language_model.py --output runs --recipe bfloat16 blockwise --graph
    python train_language_model.py --output runs --resume             goes on where runs ended
    python train_language_model.py plot --output runs                 curves and table once more
    python train_language_model.py --output tiny --size tiny --steps 20 --device cpu

The model is a transformer (RMSNorm, rotary positions, grouped heads, SwiGLU) of 17 M parameters
over bytes. Its text: the Python sources of the standard library and of the packages on this
machine, of which 2 % of the files are held out for validation. Weights and AdamW are FP32, the
rest BF16; a recipe turns every linear layer but the output layer into FP8 by octofold.nn.convert.
Runs of one seed begin with the same weights and see the same data in the same order.

Needs: pip install '.[torch,tool]'
"""

import argparse
import dataclasses
import multiprocessing
import queue
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from language_model import plots
from language_model.model import SIZES
from language_model.text import text_of
from language_model.training import RECIPES, Progress, Report, Settings, train
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

SEEDS = {"bfloat16": [0, 1]}  # the difference between two is the measure of the others'
STEPS = 2000


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("action", nargs="?", choices=["train", "plot"], default="train")
    add("--output", type=Path, required=True, metavar="DIR", help="losses, checkpoints, plots")
    add("--recipe", nargs="+", choices=RECIPES, default=list(RECIPES), help="default: all")
    add(
        "--seeds",
        type=int,
        nargs="+",
        help="of every recipe; default: 0, and 1 too for bfloat16",
    )
    add("--steps", type=positive, default=STEPS, help="default: %(default)s")
    add("--size", choices=SIZES, default="small", help="default: %(default)s")
    add("--learning-rate", type=float, default=1e-3, help="the highest; default: %(default)s")
    add("--text-bytes", type=positive, default=48_000_000, help="default: %(default)s")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--graph", action="store_true", help="replay a CUDA graph of the whole step")
    add("--jobs", type=positive, default=1, help="runs at a time, each a process; default: 1")
    add("--resume", action="store_true", help="go on from the checkpoints in DIR")
    add("--evaluate-every", type=positive, default=100, metavar="STEPS")
    add("--checkpoint-every", type=positive, default=500, metavar="STEPS")
    add("--log-every", type=positive, default=50, metavar="STEPS", help="waits for the device")
    add("--stop-at", type=positive, metavar="STEP", help="as if interrupted there")
    options = parser.parse_args(arguments)
    if options.graph and not options.device.startswith("cuda"):
        parser.error(f"--graph: expected a CUDA device, got {options.device}")
    return options


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return number


def settings_of(options: argparse.Namespace) -> list[Settings]:
    """One of each run."""
    common = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(Settings)
        if hasattr(options, field.name) and field.name not in ("recipe", "seed")
    }
    recipes = dict.fromkeys(options.recipe)
    pairs = [
        (recipe, seed) for recipe in recipes for seed in options.seeds or SEEDS.get(recipe, [0])
    ]
    concurrent = min(options.jobs, len(pairs))
    return [Settings(recipe, seed, **common, concurrent=concurrent) for recipe, seed in pairs]


def check_output(output: Path, runs: list[Settings], resume: bool) -> None:
    output.mkdir(parents=True, exist_ok=True)
    there = [run.name for run in runs if (output / f"{run.name}.jsonl").exists()]
    if there and not resume:
        raise ValueError(f"--output: {output} has {', '.join(there)}; --resume goes on with them")


class Display:
    """Bars on a terminal, lines elsewhere."""

    def __init__(self, console: Console, runs: list[Settings]) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        texts = (TextColumn("{task.fields[losses]}"), TimeRemainingColumn())
        self.bars = Bars(*columns, *texts, console=console, disable=not console.is_terminal)
        self._tasks = {
            run.name: self.bars.add_task(run.name, total=run.steps, start=False, losses="")
            for run in runs
        }

    def show(self, progress: Progress) -> None:
        losses = f"loss {progress.loss:.3f}, validation {progress.validation_loss:.4f}"
        task = self._tasks[progress.name]
        self.bars.start_task(task)
        self.bars.update(task, completed=progress.step, losses=losses)
        quarter = max(1, progress.steps // 4)
        if not self._console.is_terminal and progress.step % quarter == 0:
            self._console.print(f"{progress.name} {progress.step}/{progress.steps}: {losses}")


_reports: Any = None  # the queue of a process that is one of several


def _share(reports: Any, threads: int) -> None:
    global _reports
    _reports = reports
    torch.set_num_threads(threads)


def _train_beside_others(run: Settings, output: Path, resume: bool) -> None:
    train(run, output, resume, _reports.put)


def train_all(runs: list[Settings], output: Path, resume: bool, jobs: int, report: Report) -> None:
    if jobs == 1:
        for run in runs:
            train(run, output, resume, report)
        return
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        reports = manager.Queue()
        threads = max(1, torch.get_num_threads() // jobs)
        with ProcessPoolExecutor(jobs, context, _share, (reports, threads)) as pool:
            futures = [pool.submit(_train_beside_others, run, output, resume) for run in runs]
            while not all(future.done() for future in futures) or not reports.empty():
                try:
                    report(reports.get(timeout=0.2))
                except queue.Empty:
                    continue
            for future in futures:
                future.result()


def main() -> int:
    options = parsed()
    console = Console(highlight=False, soft_wrap=True)
    try:
        if options.action == "train":
            runs = settings_of(options)
            check_output(options.output, runs, options.resume)
            text_of(options.output, options.text_bytes)
            display = Display(console, runs)
            with display.bars:
                train_all(runs, options.output, options.resume, options.jobs, display.show)
        complete, paths = plots.write(options.output)
    except ValueError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"train_language_model.py: {error}", markup=False
        )
        return 1
    if not complete:
        console.print(f"{options.output}: no complete run yet")
        return 0
    table = Table()
    for index, name in enumerate(plots.COLUMNS):
        table.add_column(name, justify="right" if index else "left", no_wrap=index == 0)
    for row in plots.table(complete):
        table.add_row(*row)
    console.print(table)
    console.print(*map(str, paths), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
