"""The table of products, which scripts/generate_cases.py writes, and the pairs of scales of A and B
that tests go through."""

import csv
from pathlib import Path

CASES_FILE = Path(__file__).with_name("gemm.csv")
CASES = list(csv.DictReader(CASES_FILE.read_text().splitlines()))
CASE_NAMES = [case["name"] for case in CASES]

PAIRS = (
    ("tensor", "tensor"),
    ("channel", "channel"),
    ("1x128", "128x128"),
    ("1x128", "1x128"),
)
