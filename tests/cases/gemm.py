"""The table of products, which scripts/generate_cases.py writes."""

import csv
from pathlib import Path

CASES_FILE = Path(__file__).with_name("gemm.csv")
CASES = list(csv.DictReader(CASES_FILE.read_text().splitlines()))
CASE_NAMES = [case["name"] for case in CASES]
