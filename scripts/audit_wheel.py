"""Finds what a wheel's library asks of the machine that it runs on, and if its name says so.

    scripts/audit_wheel.py dist/octofold-*.whl

Of each wheel: the newest symbols of glibc and of a C++ run-time library that it asks for, the
libraries that it needs, what it shows to others, its size; and that no path of the machine that
built it is inside. auditwheel judges the tag; the rest is our own (docs/wheels.md).
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

LARGEST = 10_000_000
"""Bytes of a wheel."""

# PEP 600 gives each libraries that every such Linux has; libtvm_ffi comes with apache-tvm-ffi.
NEEDED = re.compile(r"lib(c|m|dl|pthread)\.so\.\d|ld-linux-(x86-64|aarch64)\.so\.\d|libtvm_ffi\.so")
NEWEST_GLIBC = (2, 28)
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Audit:
    """The audit of one wheel."""

    name: str
    bytes: int
    machine: str
    needed: tuple[str, ...]
    glibc: str
    """The newest version that is asked for."""
    foreign: tuple[str, ...]
    """Versions of other libraries, such as GLIBCXX_3.4.30."""
    shown: tuple[str, ...]
    """Symbols that are no functions for tvm-ffi."""
    paths: tuple[str, ...]
    """Paths of the machine that built it."""
    tag: str
    """The tag that auditwheel finds it to deserve."""

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.bytes / 1e6:.1f} MB, {self.machine}, glibc {self.glibc}, C++ "
            f"run-time {', '.join(self.foreign) or 'inside'}, needs {', '.join(self.needed)}; "
            f"auditwheel: {self.tag}"
        )

    def faults(self) -> list[str]:
        """Names everything that is not as it must be."""
        faults = [f"needs {name}" for name in self.needed if not NEEDED.fullmatch(name)]
        faults += [f"asks for {version}" for version in self.foreign]
        faults += [f"shows {symbol}" for symbol in self.shown]
        faults += [f"has a path of this machine inside: {path}" for path in self.paths]
        if tuple(map(int, self.glibc.split("."))) > NEWEST_GLIBC:
            faults.append(f"asks for glibc {self.glibc}")
        if self.tag not in self.name:
            faults.append(f"is {self.tag}, says auditwheel")
        if self.bytes > LARGEST:
            faults.append(f"takes {self.bytes} bytes, {LARGEST} are allowed")
        return faults


def audit(wheel: Path) -> Audit:
    """Reads the wheel's library by readelf, nm and auditwheel."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            library = archive.extract("octofold/octofold_ffi.so", folder)
        dynamic = output("readelf", "--dynamic", "--file-header", "--wide", library)
        undefined = output("readelf", "--dyn-syms", "--wide", library)
        shown = output("nm", "--dynamic", "--defined-only", "--format=just-symbols", library)
        text = Path(library).read_bytes()
    versions = set(re.findall(r"@([A-Z]+)_([\d.]+)", undefined))
    glibc = {tuple(map(int, number.split("."))) for name, number in versions if name == "GLIBC"}
    verdict = output(sys.executable, "-m", "auditwheel", "show", wheel)
    constrained = re.findall(r'"(manylinux_\w+)"', verdict) or ["unknown"]
    return Audit(
        name=wheel.name,
        bytes=wheel.stat().st_size,
        machine=re.findall(r"Machine:\s+(.*)", dynamic)[0],
        needed=tuple(re.findall(r"NEEDED.*\[(.*)\]", dynamic)),
        glibc=".".join(map(str, max(glibc))),
        foreign=tuple(sorted(f"{name}_{v}" for name, v in versions if name != "GLIBC")),
        shown=tuple(name for name in shown.split() if not name.startswith("__tvm_ffi_")),
        paths=tuple(sorted(paths_in(text))),
        tag=constrained[-1],
    )


def paths_in(binary: bytes) -> set[str]:
    """Paths of this checkout, of the user's home or of temporary files."""
    places = {str(REPOSITORY), str(Path.home()), "/tmp", os.environ.get("TMPDIR", "/tmp")}
    prefixes = b"|".join(re.escape(place.rstrip("/").encode()) + b"/" for place in places)
    return {match.decode() for match in re.findall(rb"(?:" + prefixes + rb")[\w./+-]*", binary)}


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheels", nargs="+", type=Path)
    faulty = False
    for wheel in parser.parse_args().wheels:
        found = audit(wheel)
        print(found)
        for fault in found.faults():
            faulty = True
            print(f"  it {fault}")
    sys.exit(faulty)


if __name__ == "__main__":
    main()
