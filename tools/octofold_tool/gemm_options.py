"""Options for the matrix products that a command is about: shapes, dtypes, granularities."""

import argparse
from typing import Final

from .suites import SUITES, Shape

OUT_DTYPES: Final = ("bfloat16", "float16", "float32")


def add_shapes(
    parser: argparse.ArgumentParser, suite_help: str = "", required: bool = False
) -> "argparse._MutuallyExclusiveGroup":
    shapes = parser.add_mutually_exclusive_group(required=required)
    shapes.add_argument("--suite", choices=sorted(SUITES), help=suite_help)
    shapes.add_argument(
        "--shape",
        metavar="M,N,K",
        type=parse_shape,
        action="append",
        help="a shape of your own (repeatable)",
    )
    return shapes


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


def parse_shape(text: str) -> Shape:
    sizes = text.split(",")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"expected M,N,K, each at least 1, got '{text}'")
    m, n, k = map(int, sizes)
    return m, n, k


def parse_weight(text: str) -> tuple[int, int]:
    sizes = text.split(",")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"expected N,K, each at least 1, got '{text}'")
    n, k = map(int, sizes)
    return n, k


def parse_pair(text: str, example: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise argparse.ArgumentTypeError(f"expected two, such as {example},{example}, got '{text}'")
    return first, second
