"""Options for the matrix products that a command is about: shapes and named sets of them, dtypes,
granularities."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from octofold import tuning

from .report import ToolError

Shape: TypeAlias = tuple[int, int, int]

# N and K are those of the linear layers of well-known models; M is the number of tokens.

# DeepSeek-V3 (hidden 7168), the layers that DeepGEMM's benchmarks name.
DEEPSEEK_V3 = (
    (2112, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
)

# Llama 3 70B (hidden 8192, FFN 28672, 8 KV heads of 128): qkv, attention output, gate and up, down.
_LLAMA_70B = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))

SUITES: dict[str, tuple[Shape, ...]] = {
    "deepseek-v3": tuple((m, n, k) for m in (1, 64, 128, 1024, 4096) for n, k in DEEPSEEK_V3),
    "llama-70b": tuple((m, n, k) for m in (1, 128, 4096) for n, k in _LLAMA_70B),
    "square": tuple((size, size, size) for size in (256, 512, 1024, 2048, 4096)),
}

OUT_DTYPES: Final = ("bfloat16", "float16", "float32")


def add_shapes(
    parser: argparse.ArgumentParser, suite_help: str
) -> "argparse._MutuallyExclusiveGroup":
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--suite", choices=sorted(SUITES), help=suite_help)
    shapes.add_argument(
        "--shape",
        metavar="M,N,K",
        type=sizes("M,N,K"),
        action="append",
        help="a shape of your own (repeatable)",
    )
    return shapes


def add_problems(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--problem",
        metavar="TEXT",
        action="append",
        default=[],
        help='a product (repeatable), such as "gemm: m 300, n 4096, k 7168" (docs/tuning.md)',
    )
    parser.add_argument(
        "--problems",
        metavar="FILE",
        type=Path,
        help="products, one a line, as octofold.tuning.recording() gives them",
    )
    parser.add_argument("--suite", choices=sorted(SUITES), help="gemm of a named set of shapes")


def problems_of(arguments: argparse.Namespace) -> list[str]:
    """Each once, with all that may be left out."""
    problems = list(arguments.problem)
    if arguments.problems is not None:
        try:
            lines = arguments.problems.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ToolError(f"--problems: {arguments.problems}: {error}") from None
        problems += [line.strip() for line in lines if line.strip()]
    problems += [f"gemm: m {m}, n {n}, k {k}" for m, n, k in SUITES.get(arguments.suite, ())]
    return list(dict.fromkeys(map(tuning.complete, problems)))


def add_kind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        metavar="A,B",
        type=lambda text: parse_pair(text, "e4m3"),
        default=("e4m3", "e4m3"),
        help="FP8 formats of A and B: e4m3 or e5m2 (default: e4m3,e4m3)",
    )
    parser.add_argument(
        "--granularity",
        metavar="A,B",
        type=lambda text: parse_pair(text, "1x128"),
        default=("1x128", "128x128"),
        help="granularities of A and B: tensor, channel, 1x128 or 128x128 (default: 1x128,128x128)",
    )
    parser.add_argument(
        "--out-dtype", choices=OUT_DTYPES, default="bfloat16", help="default: %(default)s"
    )
    parser.add_argument(
        "--fast-accumulation",
        action="store_true",
        help="let the tensor cores sum all of K (tensor and channel scales)",
    )


def whole_number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number of at least {least}, got '{text}'"
            )
        return int(text)

    return parse


def sizes(names: str) -> Callable[[str], tuple[int, ...]]:
    """Parses sizes with these names, such as "M,N,K"."""

    def parse(text: str) -> tuple[int, ...]:
        found = text.split(",")
        good = all(size.isdecimal() and int(size) > 0 for size in found)
        if not good or len(found) != len(names.split(",")):
            raise argparse.ArgumentTypeError(f"expected {names}, each at least 1, got '{text}'")
        return tuple(map(int, found))

    return parse


def parse_pair(text: str, example: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise argparse.ArgumentTypeError(f"expected two, such as {example},{example}, got '{text}'")
    return first, second
