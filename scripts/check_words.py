#!/usr/bin/env python3
"""Names comments and docstrings that begin without a subject: "Of ...", "What ...", "Whether ...".

A comment is a sentence that says what a thing is, does or is for. Generated files count as well.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = "Of What Whether Where That Those As Such Which Likewise Whose".split()
FIRST = re.compile(rf"({'|'.join(WORDS)})\b")
# The first line of a run of comments, alone on its lines or behind code.
COMMENT = re.compile(r"^(?P<before>.*?)(?P<mark>///?<?|#) (?P<text>.*)$")


def in_cpp_or_cmake(text: str, mark: str) -> list[int]:
    lines, found = text.splitlines(), []
    for number, line in enumerate(lines, 1):
        before, sign, comment = line.partition(f"{mark} ")
        above = lines[number - 2].strip() if number > 1 else ""
        goes_on = not before.strip(" /<") and above.startswith(mark[0]) and above.strip("/#< ")
        if sign and not goes_on and FIRST.match(comment) and before.count('"') % 2 == 0:
            found.append(number)
    return found


def in_python(text: str) -> list[int]:
    found = in_cpp_or_cmake(text, "#")
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr) and isinstance(value, ast.Constant):
            if isinstance(value.value, str) and FIRST.match(value.value.lstrip()):
                found.append(node.lineno)
    return sorted(found)


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *sys.argv[1:]], cwd=ROOT, capture_output=True, check=True
    )
    count = 0
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if path.suffix == ".py":
            found = in_python(path.read_text("utf-8"))
        elif path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            found = in_cpp_or_cmake(path.read_text("utf-8"), "//")
            found += in_cpp_or_cmake(path.read_text("utf-8"), "///")
        else:
            continue
        for number in sorted(set(found)):
            print(f"{name}:{number}: {path.read_text('utf-8').splitlines()[number - 1].strip()}")
        count += len(set(found))
    print(f"{count} comments begin without a subject", file=sys.stderr)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
