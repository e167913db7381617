#!/usr/bin/env python3
"""Checks who imports whom in python/octofold: no circle of modules, none of folders, and no arrow
up the floors.

Every import counts, those inside functions too: they only put a circle off until the first call.
Imports under `if TYPE_CHECKING` do not count, as they never run, nor do the names that the
package's own __init__.py imports when somebody asks for them.

usage: scripts/check_imports.py [ROOT]      exit code 1 if anything is wrong
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# The floors, from the ground up. A module imports from its own floor and from those below it. The
# modules at the top of the package (the name "") lie between `_ops` and `_ranks`.
FLOORS = ("_core", "_ops", "", "_ranks", "nn", "distributed", "models", "integrations")


def module_name(path: Path, root: Path) -> str:
    """Relative to the package: "nn.layers.linear", and "" for the package's own __init__.py."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path, name: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """The line and the module of each import from the package."""
    tree = ast.parse(path.read_text())
    hidden = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(
            n.name.split(".")[0] == "octofold" for n in node.names
        ):
            raise SystemExit(f"{path}:{node.lineno}: import by relative names inside the package")
        if not isinstance(node, ast.ImportFrom) or node.level == 0 or node in hidden:
            continue
        base = [part for part in package if part][: len(package) - node.level + 1]
        base += node.module.split(".") if node.module else []
        for alias in node.names:
            inner = ".".join([*base, alias.name])
            yield node.lineno, inner if inner in modules else ".".join(base)


def floor(name: str) -> int:
    first = name.split(".")[0]
    return FLOORS.index(first if first in FLOORS else "")


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The names of one circle, its first name again at the end; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            done.add(name)
            for other in sorted(graph[name]):
                if found := walk(other, [*path, name]):
                    return found
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def problems(root: Path) -> Iterator[str]:
    paths = {module_name(path, root): path for path in sorted(root.rglob("*.py"))}
    if not paths:
        yield f"{root}: expected the package, got no Python"
    modules: dict[str, set[str]] = {name: set() for name in paths}
    folder = {name: str(path.parent.relative_to(root)) for name, path in paths.items()}
    folders: dict[str, set[str]] = {name: set() for name in folder.values()}
    for name, path in paths.items():
        for line, other in imports(path, name, set(paths)):
            modules[name].add(other)
            here, there = folder[name], folder[other]
            if here != there and path.name != "__init__.py":  # which shows what lies below it
                folders[here].add(there)
            if floor(other) > floor(name):
                yield f"{path}:{line}: {name or 'octofold'} lies below {other}"
    for kind, graph in (("modules", modules), ("folders", folders)):
        if found := circle(graph):
            yield f"circle of {kind}: {' -> '.join(name or 'octofold' for name in found)}"


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1])
    found = list(problems(root / "python" / "octofold"))
    print("\n".join(found), end="\n" * bool(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
