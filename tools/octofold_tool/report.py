"""The output of the commands: tables, progress bars, JSON files, charts."""

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import octofold
from octofold._core.files import read_text as read_text
from octofold._core.files import write_whole as write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

Item = TypeVar("Item")

# Colours that stay apart in print and for colour-blind readers (Okabe and Ito, 2008).
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


class ToolError(Exception):
    """An error that the user is told in one line."""


def require(module: str, extra: str) -> None:
    """Raise ToolError that says how to get a package which an extra of octofold brings."""
    try:
        __import__(module)
    except ImportError as error:
        raise ToolError(f"this needs {error.name}: pip install 'octofold[{extra}]'") from None


def console(stderr: bool = False) -> "Console":
    """Colours and bars on terminals (NO_COLOR: none), plain text elsewhere."""
    require("rich", "tool")
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    totals: Sequence[str] | None = None,
) -> None:
    """Print rows of text; the first column is left-aligned, numbers right-aligned."""
    output = console()
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if totals is not None:
        table.add_section()
        table.add_row(*totals, style="bold")
    # The table is as wide as it needs: a narrow terminal wraps lines rather than lose numbers.
    unbounded = output.options.update(width=1000)
    table.width = output.measure(table, options=unbounded).maximum
    output.print(table, crop=False)


@contextmanager
def progress(description: str, bytes_: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while the block runs, moved by (done, total); nothing of it stays."""
    bar_console = console(stderr=True)
    from rich import progress as bars

    amount = bars.DownloadColumn() if bytes_ else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), amount)
    with bars.Progress(
        *columns,
        bars.TimeRemainingColumn(),
        console=bar_console,
        transient=True,
        disable=not bar_console.is_terminal,
    ) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def tracked(description: str, items: Sequence[Item]) -> Iterator[Item]:
    """The items, with a progress bar that moves as they are done."""
    with progress(description) as advance:
        for done, item in enumerate(items):
            advance(done, len(items))
            yield item


def check_writable(path: Path) -> None:
    """Raise ToolError if a file could not be written there: better before a long run than after."""
    if path.is_dir():
        raise ToolError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise ToolError(f"{path}: the folder {path.parent} does not exist")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}") from None


def add_folder(parser: argparse.ArgumentParser, default: str, files: Sequence[str]) -> None:
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        default=Path(default),
        help=f"where {', '.join(files)} go; made if need be (default: %(default)s)",
    )


def made_folder(folder: Path, files: Sequence[str]) -> Path:
    """The folder, which is there now, and can take the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        check_writable(folder / name)
    return folder


def json_text(content: Mapping[str, Any]) -> str:
    """`content` with the versions and the machine that it was measured on."""
    return json.dumps({"environment": environment(), **content}, indent=2)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json_text(content) + "\n")


def write_png(path: Path, figure: "Figure") -> None:
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=150, bbox_inches="tight")
    write_whole(path, picture.getvalue())


def new_figure(columns: int, title: str, width_ratios: Sequence[float] | None = None) -> Any:
    """A figure without a window, and its axes, in the house style."""
    require("matplotlib", "tool")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0 * columns, 4.6), layout="constrained")
    figure.suptitle(title, fontweight="bold")
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=width_ratios)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    return figure, axes


def bar_chart(
    title: str, ylabel: str, names: Sequence[str], series: Mapping[str, Sequence[float]]
) -> Any:
    """Bars of each series beside each other, by name; where one has NaN there is none."""
    figure, (axis,) = new_figure(1, title)
    positions = np.arange(len(names))
    width = 0.8 / len(series)
    for index, (label, values) in enumerate(series.items()):
        offset = (index - (len(series) - 1) / 2) * width
        axis.bar(positions + offset, np.nan_to_num(values), width, color=COLORS[index], label=label)
    axis.set_ylabel(ylabel)
    axis.set_xticks(positions, names, rotation=60, ha="right", fontsize="small")
    # Above the axes, where no bar can be.
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(series), frameon=False)
    return figure


def environment() -> dict[str, Any]:
    """Describes what a measured number depends on beside the code."""
    info = octofold.info()
    return {
        "octofold": octofold.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(),
        "cpu_threads": info.cpu_threads,
        "cpu": info.cpu.detail,
        "gpus": [gpu.name for gpu in info.gpus],
    }


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
