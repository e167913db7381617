#!/usr/bin/env python3
"""Checks who includes whom, and how long files are.

doors.json is the map of the rooms and their doors. CMake gives each room of src/ an include path
with its doors only (cmake/rooms.cmake); this script covers what a compiler cannot see: relative
paths, third-party headers, device code, and the Python side.

usage: scripts/check_includes.py [ROOT]      exit code 1 if anything is wrong
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 500

_MAP = json.loads((Path(__file__).resolve().parent.parent / "doors.json").read_text("utf-8"))


def _expanded(doors: list[str]) -> list[str]:
    """Returns the doors' folders as they are written in an #include."""
    folders = [f for door in doors for f in _MAP["groups"].get(door, [door])]
    return [folder.removeprefix("src/") for folder in folders]


# Folder -> the project folders that it may include from. The public API ("octofold/") and the
# folder itself are always open, except to device code.
DOORS = {room: _expanded(entry["doors"]) for room, entry in _MAP["rooms"].items()}

# The public headers that device code may include: they include nothing but each other.
VOCABULARY = ("octofold/gemm_form.h", "octofold/vocabulary.h")

# Headers of kernels/ptx for the host.
TWINS = "tests/cpp/support/ptx_on_host"

# The folders that host and device share.
SHARED = _MAP["groups"]["config"]

# Folders whose own headers are included by their bare names; a room's carry the room's name.
FLAT = ["bindings", "bench", "examples"]

# Third-party headers -> the folders (or files) that may use them. Everything else in <> is the
# standard library or the operating system.
THIRD_PARTY = {
    r"fmt/": ["src", "tests/cpp"],
    r"nlohmann/": ["bindings/export.cpp", "src/model", "src/plan/tuning.cpp", "tests/cpp/model"],
    r"cblas\.h": ["src/cpu", "tests/cpp/cpu", "bench"],
    r"dlfcn\.h": ["src/core", "bench", "tests/cpp/support"],
    r"(xxhash|zstd)\.h": ["src/jit"],
    r"tvm/|dlpack/": ["bindings"],
    r"gtest/|gmock/": ["tests/cpp"],
    r"benchmark/|CLI/": ["bench"],
    r"cuda|nvrtc|cutlass|cute/|torch/|ATen/|c10/": [
        "examples/cpp/inference_engine.cpp",
        "examples/kernels/ladder.cu",
    ],
}

CODE = {".h", ".cpp", ".cu", ".cuh", ".inl"}
PUBLIC_ONLY_PYTHON = ["tools", "bench", "examples"]
LENGTH_LIMITED = CODE | {".py", ".cmake", ".sh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def is_under(path: Path, folder: str) -> bool:
    """Or is that file itself."""
    return f"{path.as_posix()}/".startswith(folder + "/")


def room_of(path: Path) -> str | None:
    return next((room for room in DOORS if is_under(path, room)), None)


def check_include(path: Path, bracket: str, header: str) -> str | None:
    """Says what is wrong with this #include of the file at `path`, if anything."""
    room = room_of(path)
    if is_under(path, TWINS) and header.endswith(f"../kernels/ptx/{path.name}"):
        return None  # the twin of a header that is made of others: itself, beside theirs
    if header.startswith(("/", ".")) or "/../" in header:
        return "write the path from the room on, not a relative one"
    if is_under(path, "kernels"):
        if header in VOCABULARY:
            return None
        folder = path.parent.as_posix()
        if folder in SHARED and not any(header.startswith(f + "/") for f in SHARED):
            return "what the host reads too includes no device code"
        if bracket == "<":
            return "device code is self-contained: no system or toolkit header"
    if bracket == "<":
        if room == "include" and re.search(r"[./]", header):
            return "public headers include the C++ standard library only"
        for pattern, folders in THIRD_PARTY.items():
            if re.match(pattern, header) and not any(is_under(path, f) for f in folders):
                return f"only {', '.join(folders) or 'nobody'} may include this"
        return None
    if room is None or (header.startswith("octofold/") and not is_under(path, "kernels")):
        return None
    open_folders = [room.removeprefix("src/"), *DOORS[room]]
    if "/" not in header and room in FLAT:
        return None
    if any(header.startswith(folder + "/") for folder in open_folders):
        return None
    return f"{room} may include {', '.join(['octofold', *open_folders])} only"


def check_cpp(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if match := INCLUDE.match(line):
            bracket, header = match.groups()
            if problem := check_include(path, bracket, header):
                yield f"{path}:{number}: #include of {header}: {problem}"


# Private modules that folders share with the package: how times and files are taken, products of a
# problem's text; and how ranks send, to measure it.
PRIVATE = {
    "tools": ("octofold._timing", "octofold._core.files", "octofold._sample_product"),
    "bench": (
        *("octofold._timing", "octofold._ranks", "octofold.distributed.overlap"),
        "octofold.distributed.expert_parallel.message",
    ),
}


def check_python(path: Path, text: str) -> Iterator[str]:
    """The tool, benchmarks and examples use what `octofold` exports, not its private modules."""
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, *inner = name.split(".")
            if any(name.startswith(f"{module}.") for module in PRIVATE.get(path.parts[0], ())):
                continue
            if package == "octofold" and any(part.startswith("_") for part in inner):
                yield f"{path}:{node.lineno}: import of {name}: use octofold's public names only"


def check(root: Path) -> list[str]:
    problems: list[str] = []
    folders = ["bench", "bindings", "cmake", "examples", "include", "kernels"]
    folders += ["python", "scripts", "src", "tests", "tools"]
    files = sorted(f for folder in folders for f in (root / folder).rglob("*") if f.is_file())
    if not files:
        problems.append(f"{root}: expected Octofold's sources, got none of its folders")
    for file in files:
        path = file.relative_to(root)
        if path.suffix not in LENGTH_LIMITED:
            continue
        text = file.read_text(encoding="utf-8")
        length = text.count("\n")
        if length > MAX_LINES:
            problems.append(f"{path}: {length} lines; {MAX_LINES} are the limit")
        if path.suffix in CODE:
            problems += check_cpp(path, text)
        elif path.suffix == ".py" and any(is_under(path, f) for f in PUBLIC_ONLY_PYTHON):
            problems += check_python(path, text)
    return problems


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
