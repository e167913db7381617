"""The table of GEMM cases."""

import csv
from pathlib import Path

CASES_FILE = Path(__file__).parents[1] / "cases" / "gemm.csv"
CASES = list(csv.DictReader(CASES_FILE.read_text().splitlines()))
CASE_NAMES = [case["name"] for case in CASES]
