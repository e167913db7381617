"""Curves and a table of all runs in a folder: each recipe beside the seeds of BF16."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from .training import RECIPES, read_lines

BASELINE = "bfloat16"
BASELINE_COLORS = ("#333333", "#999999", "#C8B08A")
COLOR = "#0072B2"
SMOOTHED_OVER = 50  # a curve of training losses is a running mean over 1 / 50 of the steps
COLUMNS = (
    "recipe",
    "seed",
    "final validation loss",
    "− BF16's mean",
    "− BF16, same seed",
    "ms a step",
)


@dataclass(frozen=True)
class Run:
    about: dict[str, Any]
    losses: np.ndarray  # of training, [steps done]
    validation_steps: np.ndarray
    validation_losses: np.ndarray
    step_seconds: float | None  # median; none where runs shared the device

    @property
    def recipe(self) -> str:
        return str(self.about["recipe"])

    @property
    def seed(self) -> int:
        return int(self.about["seed"])

    @property
    def is_complete(self) -> bool:
        return len(self.losses) == self.about["steps"]


def read_run(path: Path) -> Run:
    first, *lines = read_lines(path)
    about = first["run"]
    validation = [
        (line["step"], line["validation_loss"]) for line in lines if "validation_loss" in line
    ]
    steps, losses = zip(*validation, strict=True) if validation else ((), ())
    times = [line["seconds_per_step"] for line in lines if "seconds_per_step" in line]
    alone = about["concurrent"] == 1 and len(times) > 1
    return Run(
        about,
        np.array([line["loss"] for line in lines if "loss" in line]),
        np.array(steps),
        np.array(losses),
        median(times[1:]) if alone else None,  # the first holds the loading of kernels
    )


def read_runs(folder: Path) -> list[Run]:
    """The complete ones, BF16 first."""
    runs = [read_run(path) for path in folder.glob("*-seed*.jsonl")]
    runs = [run for run in runs if run.is_complete]
    for key in ("text", "size", "steps", "learning_rate"):
        if len(values := {run.about[key] for run in runs}) > 1:
            raise ValueError(f"{folder}: expected runs of the same {key}, got {sorted(values)}")
    return sorted(runs, key=lambda run: (RECIPES.index(run.recipe), run.seed))


def baselines(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.recipe == BASELINE]


def seeds_spread(runs: list[Run]) -> float | None:
    """The largest difference between final validation losses of BF16 runs."""
    finals = [float(run.validation_losses[-1]) for run in baselines(runs)]
    return max(finals) - min(finals) if len(finals) > 1 else None


def table(runs: list[Run]) -> list[list[str]]:
    """Rows under COLUMNS."""
    finals = {run.seed: float(run.validation_losses[-1]) for run in baselines(runs)}
    rows = []
    for run in runs:
        final = float(run.validation_losses[-1])
        same_seed = finals.get(run.seed) if run.recipe != BASELINE else None
        rows.append(
            [
                run.recipe,
                str(run.seed),
                f"{final:.4f}",
                f"{final - fmean(finals.values()):+.4f}" if finals else "—",
                f"{final - same_seed:+.4f}" if same_seed is not None else "—",
                f"{run.step_seconds * 1e3:.2f}" if run.step_seconds else "—",
            ]
        )
    return rows


def markdown(runs: list[Run]) -> str:
    about = runs[0].about
    tokens = about["batch"] * about["context"]
    lines = [
        f"{about['parameters'] / 1e6:.1f} M parameters, {about['steps']} steps of {tokens} bytes, "
        f"{about['device_name']}, torch {about['torch']}; text {about['text']}: "
        f"{about['training_bytes'] / 1e6:.1f} MB for training, "
        f"{about['validation_bytes'] / 1e6:.2f} MB held out. Losses in nats a byte.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row) + " |" for row in table(runs)),
    ]
    spread = seeds_spread(runs)
    if spread is not None:
        lines += ["", f"Spread of BF16's seeds: {spread:.4f}."]
    return "\n".join(lines) + "\n"


def smoothed(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(steps, running means)."""
    width = max(1, len(losses) // SMOOTHED_OVER)
    means = np.convolve(losses, np.full(width, 1 / width), mode="valid")
    return np.arange(width, len(losses) + 1), means


def figure_of(runs: list[Run]) -> Any:
    """A column for each recipe: training, validation, difference from the mean of BF16's seeds."""
    from matplotlib.figure import Figure

    seeds = baselines(runs)
    if not seeds:
        raise ValueError("expected a run of bfloat16 to plot the others beside; got none")
    others = [recipe for recipe in RECIPES[1:] if any(run.recipe == recipe for run in runs)]
    columns = others or [BASELINE]
    figure = Figure(figsize=(1.5 + 3.6 * len(columns), 8.5), layout="constrained")
    axes = figure.subplots(3, len(columns), squeeze=False, sharex=True, sharey="row")
    mean_validation = np.mean([run.validation_losses for run in seeds], axis=0)
    for column, recipe in enumerate(columns):
        training, validation, difference = axes[:, column]
        training.set_title(recipe)
        shown = [*seeds, *(run for run in runs if run.recipe == recipe and recipe != BASELINE)]
        for index, run in enumerate(shown):
            is_baseline = run.recipe == BASELINE
            color = BASELINE_COLORS[index % len(BASELINE_COLORS)] if is_baseline else COLOR
            style = {"color": color, "linewidth": 1.2, "label": f"{run.recipe}, seed {run.seed}"}
            steps, means = smoothed(run.losses)
            training.plot(steps, means, **style)
            validation.plot(run.validation_steps, run.validation_losses, **style)
            delta = run.validation_losses - mean_validation
            difference.plot(run.validation_steps, delta, marker=".", **style)
        validation.legend(frameon=False, fontsize="small")
        difference.set_xlabel("step")
        for axis in axes[:, column]:
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(alpha=0.3)
    names = ("training loss, nats a byte", "validation loss", "validation loss − BF16's mean")
    for axis, name in zip(axes[:, 0], names, strict=True):
        axis.set_ylabel(name)
    # From where the curves are flat enough to be told apart.
    top = float(np.max([run.validation_losses[0] for run in runs]))
    low = min(float(run.validation_losses.min()) for run in runs)
    for axis in axes[0]:
        axis.set_ylim(low - 0.1 * (top - low), top + 0.6 * (top - low))
    late = [
        run.validation_losses[1:] - mean_validation[1:] for run in runs if len(mean_validation) > 1
    ]
    if late:
        reach = 1.3 * max(float(np.abs(delta).max()) for delta in late)
        axes[2, 0].set_ylim(-reach or None, reach or None)
    return figure


def write(folder: Path) -> tuple[list[Run], list[Path]]:
    """losses.png and losses.md of the complete runs of a folder, if it has any."""
    runs = read_runs(folder)
    if not runs:
        return runs, []
    paths = [folder / "losses.md"]
    paths[0].write_text(markdown(runs), encoding="utf-8")
    if baselines(runs):
        paths.append(folder / "losses.png")
        figure_of(runs).savefig(paths[1], dpi=130)
    return runs, paths
