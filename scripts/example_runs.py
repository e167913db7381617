"""Runs of the examples, for the gallery of the site and for the tests: each command runs once.

What a command printed and the pictures that it drew are kept in build/examples, under a name that
follows from the command, from the examples, and from the library that is installed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "examples"
PICTURES = {".png", ".svg"}


@dataclass(frozen=True)
class Run:
    output: str
    pictures: tuple[Path, ...]


def command_of(block: str) -> str:
    """The command of a console block."""
    return block.strip().removeprefix("$ ").replace("\\\n", " ")


def key(command: str) -> str:
    """Changes with whatever the result depends on."""
    digest = hashlib.sha256(command.encode())
    digest.update((distribution("octofold").read_text("RECORD") or "").encode())
    for folder in ("examples", "include"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run(command: str) -> Run:
    """Runs a line of bash beside links to the repository's folders; it has to succeed."""
    kept = KEPT / key(command)
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            result = Path(folder) / "result"
            result.mkdir()
            (result / "output.txt").write_text(_execute(command, Path(folder)))
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in PICTURES and result not in path.parents:
                    shutil.copy(path, result)
            if not kept.exists():  # another process may have been quicker
                result.rename(kept)
    pictures = sorted(path for path in kept.iterdir() if path.suffix in PICTURES)
    return Run((kept / "output.txt").read_text(), tuple(pictures))


def _execute(command: str, folder: Path) -> str:
    for name in ("examples", "include"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "build").mkdir()
    (folder / "build" / "release").symlink_to(ROOT / "build" / "release")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Small matrices, several runs at once: more threads would wait for each other.
    environment = {
        "PATH": path,
        "COLUMNS": "100",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"{command}\n{result.stdout}")
    return result.stdout
