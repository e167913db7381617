"""Seconds that each area of the tests took, by the JUnit files of a folder:

    python3 scripts/test_times.py build/times

An area is a room of tests/cpp in one build, or a folder of tests/python and tests/project."""

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

FOLDER_PARTS = 3  # tests.python.nn, of a test's class name


def area_of(file: Path, case: ElementTree.Element) -> str:
    if file.stem != "python":
        return f"tests/cpp/{case.get('name', '').split('.')[0]} ({file.stem})"
    *folder, _ = case.get("classname", "").split(".")[: FOLDER_PARTS + 1]
    return "/".join(part for part in folder if not part.startswith("test_"))


def times_of(folder: Path) -> dict[str, tuple[int, float]]:
    """Returns, for each area, its number of tests and their seconds."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for file in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(file).iter("testcase"):
            seconds[area_of(file, case)].append(float(case.get("time", 0)))
    return {area: (len(taken), sum(taken)) for area, taken in seconds.items()}


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    times = times_of(Path(sys.argv[1]))
    print(f"{'area':44}{'tests':>7}{'seconds':>9}")
    for area, (count, taken) in sorted(times.items(), key=lambda item: -item[1][1]):
        print(f"{area:44}{count:7}{taken:9.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
