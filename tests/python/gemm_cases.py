"""The table of GEMM cases, which the C++ tests read too, and the limits of docs/numerics.md."""

import csv
from pathlib import Path

CASES_FILE = Path(__file__).parents[1] / "cases" / "gemm.csv"
CASES = list(csv.DictReader(CASES_FILE.read_text().splitlines()))
CASE_NAMES = [case["name"] for case in CASES]

# The limits for narrow outputs are of a norm over many elements, whose roundings average; a few
# alone may each be half an ulp off.
LIMITS = {"float32": 3e-4, "float16": 4e-4, "bfloat16": 2.5e-3}
LIMITS_OF_FEW = {"float32": 3e-4, "float16": 2**-11 + 3e-4, "bfloat16": 2**-8 + 3e-4}
FEW = 4096


def limit(dtype: str, elements: int) -> float:
    """What the relative error of a product may be."""
    return (LIMITS if elements >= FEW else LIMITS_OF_FEW)[dtype]
