"""Entry point: parses the command line and turns every failure into one clear line."""

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import octofold

from . import (
    advise,
    bench,
    cache,
    convert,
    demo,
    info,
    inspect_checkpoint,
    quantize,
    tune,
)
from .report import ToolError

DESCRIPTION = """\
FP8 linear algebra from the command line: see what this machine can do, try FP8 on a real model,
plan a model of yours, measure and tune matrix products, convert checkpoints, compile kernels in
advance.

  octofold demo                                  FP8 in every linear layer of a real model
  octofold info                                  what works here, and why not more
  octofold advise my-model/                      which layers of a model gain by FP8
  octofold bench gemm --suite square             FP8 beside FP32, checked and timed
  octofold quantize MODEL_DIR OUT_DIR --family compressed-tensors
  octofold convert FP8_DIR OUT_DIR --to deepseek-v3
  octofold inspect MODEL_DIR
  octofold cache warm --suite llama-70b --arch sm_90a
  octofold tune --suite deepseek-v3              the fastest kernels on this GPU
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and shows descriptions of several lines as they are.
    `late_epilog` makes the end of the help when that is shown: whatever asks the library loads it.
    """

    def __init__(self, *, late_epilog: Callable[[], str] | None = None, **options: Any) -> None:
        raw = "\n" in (options.get("description") or "")
        formatter = argparse.RawDescriptionHelpFormatter if raw else argparse.HelpFormatter
        super().__init__(**options, formatter_class=formatter)
        self.late_epilog = late_epilog

    def format_help(self) -> str:
        if self.late_epilog is not None:
            self.epilog = self.late_epilog()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="octofold",
        description=DESCRIPTION,
    )
    parser.add_argument("--version", action="version", version=f"octofold {octofold.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (
        *(info, demo, advise, bench, tune),
        *(quantize, convert, inspect_checkpoint, cache),
    ):
        command.add_parser(commands)
    return parser


def one_line(error: Exception) -> str:
    """Says what went wrong; if the system refused something, it names the file first."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def print_log(level: str, message: str) -> None:
    """Prints a message that the library logs, to standard error."""
    print(f"octofold: {level}: {message}", file=sys.stderr)


def interrupt_when_terminated() -> list[int]:
    """SIGTERM and SIGHUP end a run as Ctrl-C does, which undoes what was begun, unless somebody
    handles or ignores them (nohup). Returns the list of those that came."""
    came: list[int] = []

    def interrupt(number: int, frame: object) -> NoReturn:
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, interrupt)
    return came


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, 2 for an error, 128 and the number of the signal
    that ended it."""
    came = interrupt_when_terminated()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ‖ shows ? and goes on
    try:
        arguments = build_parser().parse_args(argv)
        octofold.set_log_handler(print_log)  # loads the library: not for --help
        arguments.run(arguments)
        sys.stdout.flush()  # a closed pipe shows here and not at exit
    except (ToolError, octofold.Error, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):  # `octofold … | head` has what it wants
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"octofold: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        number = came[0] if came else signal.SIGINT
        what = f"ended by {signal.Signals(number).name}" if came else "interrupted"
        print(f"octofold: {what}", file=sys.stderr)
        return 128 + number
    return 0


if __name__ == "__main__":
    sys.exit(main())
