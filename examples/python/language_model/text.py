"""Text that every machine with Python has: the sources of its standard library and of the packages
installed beside it, code and docstrings, as bytes.

Which files: all *.py below the standard library and site-packages, without tests, without files of
more than 200 kB (they are mostly tables) and without second copies of the same content, in the
order of the SHA-256 of their paths relative to those folders, until there are enough bytes. A file
whose hash ends with one of five bytes of 256 (2 %) is held out: training and validation have no
file in common. The same installation gives the same bytes; `Text.digest` says whether two do.
"""

import hashlib
import json
import os
import site
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

MAX_FILE_BYTES = 200_000
HELD_OUT = 5  # of 256 files
MIN_HELD_OUT = 0.01  # of the bytes
SEPARATOR = b"\0"
WITHOUT = {"test", "tests", "testing", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Text:
    """Bytes, uint8 [length]."""

    training: torch.Tensor
    validation: torch.Tensor
    digest: str  # SHA-256 of both, the first 16 hexadecimal digits


def folders() -> list[Path]:
    """The standard library, then site-packages."""
    paths = sysconfig.get_paths()
    names = [paths["stdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()]
    return list(dict.fromkeys(Path(name).resolve() for name in names if Path(name).is_dir()))


def sources(roots: list[Path]) -> list[tuple[bytes, Path]]:
    """(SHA-256 of the path below its root, path), in the order of the hashes."""
    found: dict[bytes, Path] = {}
    walked = {str(root) for root in roots}
    for root in roots:
        for folder, names, files in os.walk(root):
            # A root below another one is walked by itself.
            names[:] = [
                name
                for name in names
                if name not in WITHOUT and os.path.join(folder, name) not in walked
            ]
            below = Path(folder).relative_to(root)
            for name in files:
                if name.endswith(".py"):
                    key = hashlib.sha256((below / name).as_posix().encode()).digest()
                    found.setdefault(key, Path(folder, name))
    return sorted(found.items())


def contents(roots: list[Path]) -> Iterator[tuple[bool, bytes]]:
    """(held out, content) of every file that is taken."""
    seen = set()
    for key, path in sources(roots):
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                continue
            content = path.read_bytes()
        except OSError:
            continue
        digest = hashlib.sha256(content).digest()
        if content and digest not in seen:
            seen.add(digest)
            yield key[-1] < HELD_OUT, content


def collect(length: int, roots: list[Path] | None = None) -> Text:
    """About so many bytes, fewer if there are no more."""
    parts: dict[bool, bytearray] = {False: bytearray(), True: bytearray()}
    for held_out, content in contents(folders() if roots is None else roots):
        parts[held_out] += content + SEPARATOR
        enough = len(parts[False]) + len(parts[True]) >= length
        if enough and len(parts[True]) >= MIN_HELD_OUT * length:
            break
    digest = hashlib.sha256(parts[False] + SEPARATOR + parts[True]).hexdigest()[:16]
    training, validation = (as_tensor(parts[held_out]) for held_out in (False, True))
    return Text(training, validation, digest)


def as_tensor(data: bytearray) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def text_of(output: Path, length: int) -> Text:
    """The text of the runs in a folder. The first call writes it there, so that all of them, and
    those resumed after a package was installed, read the same."""
    data, about = output / "text.bin", output / "text.json"
    if not about.exists():
        text = collect(length)
        data.write_bytes(torch.cat([text.training, text.validation]).numpy().tobytes())
        facts = {"length": length, "training": len(text.training), "digest": text.digest}
        temporary = about.with_suffix(".tmp")
        temporary.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        temporary.replace(about)
    facts = json.loads(about.read_text(encoding="utf-8"))
    if facts["length"] != length:
        raise ValueError(
            f"--text-bytes: expected {facts['length']}, as {about} has it; got {length}"
        )
    tokens = as_tensor(bytearray(data.read_bytes()))
    return Text(tokens[: facts["training"]], tokens[facts["training"] :], facts["digest"])
