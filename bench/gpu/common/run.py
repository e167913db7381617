"""One run: its arguments, its limits of time, the lines of JSON and the tables."""

import argparse
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from octofold_tool.report import environment

Item = TypeVar("Item")


class OutOfTime(Exception):  # noqa: N818  # nothing is wrong then
    """The time limit of the run has passed."""


def parsed(operation: ModuleType, arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a run of an operation: its own, and those that all have."""
    name = operation.__name__.rpartition(".")[2]
    parser = argparse.ArgumentParser(
        prog=f"bench/gpu/run.py {name}",
        description=operation.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    add = parser.add_argument
    add("results", type=Path, help="a file, to which lines of JSON are appended")
    add("--rounds", type=at_least_two, default=operation.ROUNDS)
    add("--seconds", type=float, default=operation.SECONDS, help="then the rest is left out")
    limit = getattr(operation, "CASE_SECONDS", 240.0)
    add("--case-seconds", type=float, default=limit, help="a case that takes longer ends the run")
    add("--device", default="cuda", help="cpu: to try the script itself, on tiny cases")
    if hasattr(operation, "add_options"):
        operation.add_options(parser)
    return parser.parse_intermixed_args(arguments)


def add_shapes(parser: argparse.ArgumentParser, form: str = "M,N,K") -> None:
    parser.add_argument("shapes", nargs="*", metavar=form, help="default: a list of its own")


def add_choices(parser: argparse.ArgumentParser, name: str, choices: Sequence[str]) -> None:
    """An option of which several can be given; all by default."""
    parser.add_argument(name, nargs="+", choices=choices, default=list(choices))


def add_only(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="parts of the cases' names"
    )


def add_candidates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--candidates",
        nargs="*",
        metavar="TEXT",
        help="time every kernel of ours instead (with a TEXT of these in its name)",
    )


def at_least_two(text: str) -> int:
    if (number := int(text)) < 2:
        raise argparse.ArgumentTypeError(f"expected at least 2, got {text}")
    return number


def sizes(text: str) -> tuple[int, ...]:
    """4096,7168"""
    return tuple(int(size) for size in text.split(","))


def shapes_of(texts: Iterable[str]) -> Iterator[tuple[int, ...]]:
    """M,N,K; M may be several numbers: 1/16/64,4096,7168."""
    for text in texts:
        rows, *others = text.split(",")
        for m in rows.split("/"):
            yield sizes(",".join((m, *others)))


def text_of(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


class Run:
    """A context: what it measures goes to the file as it comes; tables are printed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rounds: int = options.rounds
        self.seconds, self.case_seconds = options.seconds, options.case_seconds
        self.device = torch.device(options.device)
        self.failed = False
        self._start = time.monotonic()

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def __enter__(self) -> "Run":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = False
        name = torch.cuda.get_device_name() if self.on_gpu else "CPU"
        versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
        facts = {**environment(), **versions, "device": name, "arguments": sys.argv[1:]}
        self.record("environment", **facts)
        self.line(f"{name}, torch {versions['torch']}, CUDA {versions['cuda']}")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def exit_code(self) -> int:
        """1 if something of Octofold's failed or was wrong."""
        return 1 if self.failed else 0

    def cases(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items while there is time. A kernel that hangs lets no exception through: then the
        process ends, and what was measured before is in the file."""
        for item in items:
            self.check_time()
            timer = threading.Timer(self.case_seconds, self._end, [item])
            timer.daemon = True
            timer.start()
            try:
                yield item
            finally:
                timer.cancel()
            self.release()

    def check_time(self) -> None:
        if time.monotonic() - self._start > self.seconds:
            raise OutOfTime

    def release(self) -> None:
        """Frees memory and compiled code of what has gone."""
        if torch._dynamo.utils.counters:
            torch._dynamo.reset()
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def line(self, text: str = "") -> None:
        print(text, flush=True)

    def record(self, section: str, **facts: Any) -> None:
        """Appends a line of JSON."""
        with self.options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"section": section, **facts}) + "\n")

    def leave_out(self, name: str, ours: bool, error: Exception, **where: Any) -> None:
        """Records an implementation that does not work or is wrong. Ours has to be right."""
        self.failed = self.failed or ours
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        self.record("failed" if ours else "missing", name=name, **where, reason=reason)
        self.line(f"{'FAILED' if ours else 'left out'}: {name}: {reason}")
        if self.on_gpu:
            torch.cuda.synchronize()  # raises again if the context is lost: nothing more to do

    def _end(self, item: object) -> None:
        print(f"{item}: no end after {self.case_seconds:.0f} s", flush=True)
        os._exit(3)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is aligned on the left, numbers on the right. Columns without a text in any
    row are left out."""
    shown = [i for i in range(len(columns)) if i == 0 or any(row[i] for row in rows)]
    lines = [[line[i] for i in shown] for line in (columns, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(shown))]
    print(f"\n{title}")
    for first, *others in lines:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        print("  ".join([first.ljust(widths[0]), *cells]))
