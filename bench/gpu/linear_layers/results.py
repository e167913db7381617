"""What was measured: lines of JSON as they come, tables at the end."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octofold_tool.report import environment, print_table


class OutOfTime(Exception):  # noqa: N818  # nothing is wrong then
    """The time limit of the run has passed."""


@dataclass
class Results:
    path: Path | None
    seconds: float  # the limit
    rounds: int
    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)
    failed: bool = False

    def begin(self, **facts: Any) -> None:
        self._write({"section": "environment", **environment(), **facts}, "w")

    def add(self, section: str, **facts: Any) -> None:
        """A line of JSON, and the same to look at."""
        self._write({"section": section, **facts}, "a")
        texts = (
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in facts.items()
        )
        print(f"{section}: {', '.join(texts)}", flush=True)

    def leave_out(self, way: str, ours: bool, error: Exception, **where: Any) -> None:
        """A way that does not work, or gives something wrong. Ours has to."""
        self.failed = self.failed or ours
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        self.add("failed" if ours else "missing", way=way, **where, reason=reason)

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        """To be shown at the end of the run."""
        if rows:
            self.tables.append((title, columns, rows))

    def check_time(self) -> None:
        if time.monotonic() - self.start > self.seconds:
            raise OutOfTime

    def show(self) -> None:
        for table in self.tables:
            print_table(*table)

    def _write(self, line: dict[str, Any], mode: str) -> None:
        if self.path is not None:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def times_faster(baseline: float | None, other: float | None) -> str:
    return f"{baseline / other:.2f}" if baseline and other else "—"
