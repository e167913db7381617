#!/usr/bin/env python3
"""Tests a wheel in the root of another distribution: with its C library, its Python, or for
another architecture, under emulation.

    scripts/test_in_root.py --list                           the roots, and what each proves
    scripts/test_in_root.py glibc-2.31 dist/*.whl            makes the root once, then tests
    scripts/test_in_root.py aarch64 dist/*.whl -- tests/python/test_gemm.py -x
    scripts/test_in_root.py all dist/*.whl                   one root after another

A root is what packages of Debian unpack to; no maintainer script runs, so that any architecture
goes and none of it needs to be root. Packages come from the mirror of this machine's apt sources
(--mirror: another), wheels from pip as it is set up here. The root's Python makes a venv, where pip
takes a wheel only if its tags fit. What runs then has no network, torch, NVRTC or GPU and can write
neither HOME nor the root; for another architecture it has a binfmt_misc of its own (Linux 6.7 or
newer) and the processor of QEMU_CPU, if that is set.

Needs apt, dpkg, unshare, pip. All that it makes is in build/roots; a root whose folder is removed
there is made anew. The exit code is 0 if all tests passed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from shlex import quote
from typing import Any
from xml.etree import ElementTree

from debian_packages import unpack

REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = REPOSITORY / "build" / "roots"
HERE = os.uname().machine


@dataclass(frozen=True)
class Root:
    suite: str  # of Debian
    python: str
    proves: str
    machine: str = "x86_64"
    source: str = ""  # the suite whose `python` is built, where `suite` has none


ROOTS = {
    "glibc-2.31": Root("bullseye", "python3.11", "Debian's oldest glibc", source="bookworm"),
    "python3.11": Root("bookworm", "python3.11", "Python 3.11, the oldest that we take"),
    "python3.13": Root("trixie", "python3.13", "Python 3.13"),
    "python3.14": Root("forky", "python3.14", "Python 3.14, the newest glibc"),
    "python3.15": Root("forky", "python3.15", "Python 3.15, the newest glibc"),
    "aarch64": Root("trixie", "python3.13", "64-bit ARM, emulated by QEMU", machine="aarch64"),
}
FETCH = "apt install --download-only"
PACKAGES = "dash coreutils libstdc++6 tzdata"  # in every root, beside its Python
TO_BUILD_PYTHON = "gcc libc6-dev make sed grep mawk findutils diffutils zlib1g-dev libffi-dev"
TEST_PACKAGES = "pytest hypothesis safetensors"
# Emulation of other machines: what programs begin with, and which of those bits count, for
# binfmt_misc; and the processor. QEMU's own choice has SME, by which the OpenBLAS in NumPy's wheel
# multiplies wrongly there.
EMULATION = {
    "aarch64": (
        r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
        r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
        "neoverse-n1",
    )
}
ENVIRONMENT = (
    "PATH=/venv/bin:/usr/local/bin:/usr/bin HOME=/home LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 "
    "OMP_NUM_THREADS=1 HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis OCTOFOLD_CACHE_DIR=/tmp/cache"
)
FACTS = "import platform; print(platform.libc_ver()[1], platform.python_version())"
LACKS = """
import ctypes, importlib.util, pathlib, octofold
assert not importlib.util.find_spec("torch") and not importlib.util.find_spec("nvidia")
home = pathlib.Path.home() / "file"
for use in (lambda: ctypes.CDLL("libcuda.so.1"), lambda: ctypes.CDLL("libnvrtc.so"), home.touch):
    try:
        use()
    except OSError as error:
        print(f"octofold {octofold.__version__} was imported; {error}")
    else:
        raise SystemExit("there is more than should be")
"""
SMOKE = (
    f"cd /tmp; python -c {quote(LACKS)}; "
    "python -m octofold_tool.__main__ info; "
    "python /repository/examples/python/quantize_and_multiply.py"
)
PYTEST = (
    "cd /repository; python -m pytest -p no:cacheprovider --quiet -m 'not slow' "
    "--hypothesis-profile=quick --junitxml=/results/tests.xml"
)


def run(*command: str | Path, **options: Any) -> str:
    """Runs a command and returns what it prints, unless that goes elsewhere by the options."""
    options = {"check": True, "stdout": subprocess.PIPE, "text": True, **options}
    return str(subprocess.run([str(part) for part in command], **options).stdout)


def inside(name: str, command: str, writable: bool = False, **options: Any) -> str:
    """A command of the shell in the root, which has the repository, the wheels to install, and
    results, which can be written and stay."""
    machine, environment, emulation = ROOTS[name].machine, ENVIRONMENT, ""
    if machine != HERE:
        magic, mask, processor = EMULATION[machine]
        environment += f" QEMU_CPU={os.environ.get('QEMU_CPU', processor)}"
        entry = f":{machine}:M::{magic}:{mask}:{CACHE}/qemu/root/usr/bin/qemu-{machine}:F"
        emulation = f"""mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
        printf %s {quote(entry)} > /proc/sys/fs/binfmt_misc/register"""
    steps = f"""
        mount --bind root root
        mount --bind {quote(str(REPOSITORY))} root/repository
        mount -o remount,bind,ro root/repository
        mount --bind wheels root/wheels
        mount --bind results root/results
        mount --rbind /dev root/dev
        mount -t proc proc root/proc
        mount -t tmpfs tmpfs root/tmp
        mount -t tmpfs -o ro tmpfs root/home
        {"" if writable else "mount -o remount,bind,ro root"}
        {emulation}
        exec chroot root /usr/bin/env -i {environment} sh -ec {quote(command)}"""
    namespaces = ("--user", "--map-root-user", "--mount", "--net", "--pid", "--fork")
    return run("unshare", *namespaces, "bash", "-ec", steps, cwd=CACHE / name, **options)


def make_root(name: str, mirror: str) -> None:
    root, folder = ROOTS[name], CACHE / name
    if root.machine != HERE and not (CACHE / "qemu/complete").exists():
        shutil.rmtree(CACHE / "qemu", ignore_errors=True)
        # From this suite on, qemu-user needs no libraries.
        unpack(CACHE / "qemu", mirror, HERE, ["deb trixie"], f"{FETCH} qemu-user")
        (CACHE / "qemu/complete").touch()
    if (folder / "complete").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    suites, fetch = [f"deb {root.suite}"], f"{FETCH} {PACKAGES} {root.python}"
    if root.source:
        suites.append(f"deb-src {root.source}")
        fetch = f"{FETCH} {PACKAGES} {TO_BUILD_PYTHON}; apt source --download-only {root.python}"
    unpack(folder, mirror, root.machine, suites, fetch)
    inner = ("dev", "proc", "tmp", "home", "etc", "repository", "wheels", "results", "python")
    for place in (*(f"root/{place}" for place in inner), "wheels", "results"):
        (folder / place).mkdir(exist_ok=True)
    (folder / "root/etc/passwd").write_text("root:x:0:0:root:/home:/bin/sh\n")
    for link, program in (("sh", "dash"), ("awk", "mawk")):  # which packages' scripts would make
        if not (folder / "root/bin" / link).exists():
            (folder / "root/bin" / link).symlink_to(program)
    if root.source:
        unpacked = ("tar", "--no-same-owner", "--strip-components=1", "-C", folder / "root/python")
        run(*unpacked, "-xf", *folder.glob("*.orig.tar.*"))
        build = "cd /python; ./configure --with-ensurepip=no; make -j2; make altinstall"
        with (folder / "results/python.log").open("w") as log:
            inside(name, build, writable=True, stdout=log, stderr=log)
    (folder / "complete").touch()


def fetch_wheels(folder: Path, wheel: Path, machine: str, glibc: str, python: str) -> None:
    """The wheel, all that it and its tests need, and the pip that installs them."""
    shutil.rmtree(folder)
    abi = "cp" + "".join(python.split(".")[:2])
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp"]
    command += [f"--abi={name}" for name in (abi, "abi3", "none")]
    major, minor = map(int, glibc.split("."))
    tags = ["manylinux2014", *(f"manylinux_{major}_{i}" for i in range(5, minor + 1))]
    command += [f"--platform={tag}_{machine}" for tag in tags]
    run(*command, "--dest", folder, "pip", *TEST_PACKAGES.split(), f"{wheel}[tool]")


def test(name: str, wheels: Sequence[Path], mirror: str, pytest_options: Sequence[str]) -> bool:
    """True if all tests passed in the root. Prints a row of the table in docs/wheels.md."""
    root = ROOTS[name]
    fitting = [wheel.resolve() for wheel in wheels if wheel.stem.endswith(root.machine)]
    if len(fitting) != 1:
        raise SystemExit(f"expected one wheel for {root.machine}, got {len(fitting)}")
    make_root(name, mirror)
    interpreter = f"{'/usr/local' if root.source else '/usr'}/bin/{root.python}"
    glibc, python = inside(name, f"{interpreter} -c {quote(FACTS)}").split()
    print(f"== {name}: {root.machine}, glibc {glibc}, Python {python}", flush=True)
    fetch_wheels(CACHE / name / "wheels", fitting[0], root.machine, glibc, python)
    install = (
        f"{interpreter} -m venv --without-pip --clear /venv; "
        "python $(echo /wheels/pip-*)/pip --quiet --no-cache-dir install --no-index "
        f"--find-links /wheels 'octofold[tool]' {TEST_PACKAGES}"
    )
    inside(name, install, writable=True, stdout=None)
    inside(name, SMOKE, stdout=None)
    report = CACHE / name / "results/tests.xml"
    report.unlink(missing_ok=True)
    options = " ".join(map(quote, pytest_options or ["tests/python"]))
    start = time.monotonic()
    inside(name, f"{PYTEST} {options} || test $? = 1", stdout=None)  # 1: the report has failures
    seconds = time.monotonic() - start
    cases = [{part.tag for part in case} for case in ElementTree.parse(report).iter("testcase")]
    failed = sum(bool(parts & {"failure", "error"}) for parts in cases)
    skipped = sum("skipped" in parts for parts in cases)
    result = f"{len(cases) - failed - skipped} passed, {failed} failed, {skipped} skipped"
    columns = (name, root.machine, glibc, python, result, f"{seconds:.0f} s", str(date.today()))
    print(f"| {' | '.join(columns)} |", flush=True)
    return failed == 0


def main() -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("root", nargs="?", choices=[*ROOTS, "all"])
    add("wheels", nargs="*", type=Path, help="that of the root's machine is taken")
    add("--list", action="store_true", help="the roots, and what each proves")
    add("--mirror", help="of Debian, in place of this machine's")
    separator = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:separator])
    if arguments.list or not arguments.root:
        for name, root in ROOTS.items():
            print(f"{name:12}Debian {root.suite}, {root.machine}: {root.proves}")
        return 0
    wanted = ("Created-By: Packages", "Origin: Debian", "Label: Debian")
    own = run("apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted).split()
    if not (mirrors := [arguments.mirror] if arguments.mirror else own):
        parser.error("no Debian in this machine's apt sources (or no apt-get update): --mirror")
    names = [*ROOTS] if arguments.root == "all" else [arguments.root]
    passed = [test(name, arguments.wheels, mirrors[0], sys.argv[separator + 1 :]) for name in names]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
