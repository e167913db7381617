"""Fails where a module of python/octofold imports one of a floor above its own, or itself by a
circle.

Every import counts: those inside functions too, which only put a circle off until the first call.
Imports under `if TYPE_CHECKING` do not, as they never run. No import is hidden from this check:
importlib.import_module() is allowed in the package's own __init__.py alone, whose lazy names it
serves.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "python" / "octofold"

# Folders from the ground up: a module may import its own floor and those below. What has no line
# here, the modules at the top of the package, lies on the floor between `_ops` and `nn`.
FLOORS = {"_core": 0, "_ops": 1, "": 2, "nn": 3, "models": 4}


def module_name(path: Path) -> str:
    """"nn.layers.linear" of a file; "" of the package's own __init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path, name: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """The line and the module of each relative import."""
    package = name.split(".") if name else []
    if path.name != "__init__.py":
        package = package[:-1]
    tree = ast.parse(path.read_text())
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level == 0 or node in guarded:
            continue
        base = package[: len(package) - node.level + 1]
        base += node.module.split(".") if node.module else []
        for alias in node.names:
            inner = ".".join([*base, alias.name])
            yield node.lineno, inner if inner in modules else ".".join(base)


def floor(name: str) -> int:
    return FLOORS.get(name.split(".")[0], FLOORS[""])


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, the first of them again at its end; none where there is none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for next_name in sorted(graph[name]):
                if found := walk(next_name, [*path, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def main() -> int:
    paths = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
    graph: dict[str, set[str]] = {name: set() for name in paths}
    errors = []
    for name, path in paths.items():
        for line, imported in imports(path, name, set(paths)):
            where = f"{path.relative_to(ROOT.parents[1])}:{line}"
            if imported not in graph:
                errors.append(f"{where}: no module {imported!r}")
            else:
                graph[name].add(imported)
                if floor(imported) > floor(name):
                    errors.append(f"{where}: {name or 'octofold'} lies below {imported}")
    if found := circle(graph):
        errors.append("circle: " + " -> ".join(name or "octofold" for name in found))
    print("\n".join(errors), end="\n" * bool(errors))
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
