"""One run of a script: its arguments, its limits of time, the lines of JSON and the tables."""

import argparse
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from octofold_tool.report import environment

Item = TypeVar("Item")


class OutOfTime(Exception):  # noqa: N818  # nothing is wrong then
    """The time limit of the run has passed."""


def new_parser(description: str | None, *, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """A parser of the file of results and the options that every script takes."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    add = parser.add_argument
    add("results", type=Path, help="a file, to which lines of JSON are appended")
    add("--rounds", type=at_least_two, default=rounds)
    add("--seconds", type=float, default=seconds, help="after these the rest is left out")
    add("--case-seconds", type=float, default=240.0, help="a case that takes longer ends the run")
    add("--device", default="cuda", help="cpu: to try the script itself, on tiny cases")
    return parser


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
        self.path: Path = options.results
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
        print(f"{name}, torch {versions['torch']}, CUDA {versions['cuda']}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, OutOfTime):
            print(f"stopped after {self.seconds:.0f} s")
            return True
        return False

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

    def record(self, section: str, **facts: Any) -> None:
        """Appends a line of JSON."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"section": section, **facts}) + "\n")

    def leave_out(self, name: str, ours: bool, error: Exception, **where: Any) -> None:
        """Records an implementation that does not work or is wrong. Ours has to be right."""
        self.failed = self.failed or ours
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        self.record("failed" if ours else "missing", name=name, **where, reason=reason)
        print(f"{'FAILED' if ours else 'left out'}: {name}: {reason}")
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
