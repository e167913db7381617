#!/usr/bin/env python3
"""Tests a wheel in the root of another distribution: with its C library, its Python, or for
another architecture, under emulation.

    scripts/test_in_root.py --list                           the roots, and what each proves
    scripts/test_in_root.py glibc-2.31 dist/*.whl            makes the root once, then tests
    scripts/test_in_root.py aarch64 dist/*.whl -- tests/python/test_gemm.py -x
    scripts/test_in_root.py all dist/*.whl                   one root after another

A root is what packages of Debian unpack to; no maintainer script runs, so that any architecture
goes and none of it needs to be root. The packages come from the mirror of this machine's own apt
sources (--mirror: another), the wheels from pip as it is set up here. The root's own Python makes a
venv, and pip in it takes a wheel only if the tags fit. What runs then has no network, torch, NVRTC
or GPU, can write neither HOME nor the root, and for another architecture has a binfmt_misc of its
own (Linux 6.7 or newer).

Needs apt, dpkg, unshare and pip. All that it makes is in build/roots; to make a root anew, remove
its folder there. The exit code is 0 if all tests passed.
"""

import argparse
import json
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

REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = REPOSITORY / "build" / "roots"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
HERE = os.uname().machine


@dataclass(frozen=True)
class Root:
    suite: str  # of Debian
    python: str
    proves: str
    machine: str = "x86_64"
    source_suite: str = ""  # has the source of `python`, where `suite` has no package of it


ROOTS = {
    "glibc-2.31": Root(
        *("bullseye", "python3.11", "the oldest glibc on Debian's mirrors; Python is built there"),
        source_suite="bookworm",
    ),
    "python3.11": Root("bookworm", "python3.11", "Debian's own Python 3.11, the oldest we take"),
    "python3.13": Root("trixie", "python3.13", "Python 3.13"),
    "python3.14": Root("forky", "python3.14", "Python 3.14, the newest glibc"),
    "python3.15": Root("forky", "python3.15", "Python 3.15, the newest glibc"),
    "aarch64": Root("trixie", "python3.13", "64-bit ARM, by QEMU's emulation", machine="aarch64"),
}
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
PACKAGES = ("dash", "coreutils", "libstdc++6", "tzdata")  # in every root, beside its Python
TO_BUILD_PYTHON = (
    *("gcc", "libc6-dev", "make", "sed", "grep", "mawk", "findutils", "diffutils", "bash"),
    *("zlib1g-dev", "libffi-dev", "libssl-dev", "libbz2-dev", "liblzma-dev"),
)
TEST_PACKAGES = ("pytest", "hypothesis", "safetensors")
# What programs of another machine begin with, and which of those bits count: for binfmt_misc.
PROGRAMS = {
    "aarch64": (
        r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
        r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
    )
}
ENVIRONMENT = (
    "PATH=/venv/bin:/usr/local/bin:/usr/bin HOME=/home LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 "
    "PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis"
)
FACTS = (
    "import json, os, platform; print(json.dumps([os.confstr('CS_GNU_LIBC_VERSION').split()[1], "
    "platform.python_version()]))"
)
LACKS = """
import ctypes, importlib.util, pathlib, octofold
for name in ("libcuda.so.1", "libnvrtc.so.12", "libnvrtc.so.13"):
    try:
        ctypes.CDLL(name)
    except OSError:
        continue
    raise SystemExit(f"{name} is there")
for name in ("torch", "nvidia"):
    if importlib.util.find_spec(name):
        raise SystemExit(f"{name} is there")
try:
    pathlib.Path.home().joinpath("file").touch()
except OSError as error:
    print(f"octofold {octofold.__version__} without torch, NVRTC, libcuda; HOME: {error}")
else:
    raise SystemExit("HOME can be written")
"""
SMOKE = (
    f"cd /tmp; python -c {quote(LACKS)}; python -m octofold_tool.__main__ info; "
    "python /repository/examples/python/quantize_and_multiply.py"
)
PYTEST = (
    "cd /repository; python -m pytest -p no:cacheprovider --quiet -m 'not slow' "
    "--quarantine=without --hypothesis-profile=quick --junitxml=/results/tests.xml"
)


def run(*command: str | Path, **options: Any) -> str:
    """What it prints, unless that goes elsewhere by the options."""
    options = {"check": True, "stdout": subprocess.PIPE, "text": True, **options}
    return str(subprocess.run([str(part) for part in command], **options).stdout)


def debian_mirror() -> str:
    wanted = ("Created-By: Packages", "Origin: Debian", "Label: Debian")
    found = run("apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted).split()
    if not found:
        raise SystemExit("no Debian in this machine's apt sources (or no apt-get update): --mirror")
    return found[0]


def unpack(
    folder: Path,
    mirror: str,
    machine: str,
    suite: str,
    packages: Sequence[str],
    source: Root | None,
) -> None:
    """The packages, with all that they depend on, into folder/root; the archive of a Python's
    source into the folder. Apt has its state there, in which nothing is installed."""
    for inner in ("state/lists/partial", "cache/archives/partial", "root/usr"):
        (folder / inner).mkdir(parents=True)
    (folder / "status").touch()
    origin = f"[signed-by={KEYRING}] {mirror}"
    lines = [f"deb {origin} {suite} main\n"]
    if source:
        lines += [f"deb-src {origin} {source.source_suite} main\n"]
    (folder / "sources.list").write_text("".join(lines))
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": DEBIAN_NAMES[machine],
        "APT::Architectures::": DEBIAN_NAMES[machine],
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",  # _apt may not be let into the folder
    }
    apt = ["apt-get", "-qq", "--yes", *(f"-o{name}={value}" for name, value in options.items())]
    run(*apt, "update")
    run(*apt, "install", "--download-only", *packages)
    if source:
        run(*apt, "source", "--download-only", source.python, cwd=folder)
    for name in ("bin", "sbin", "lib", "lib64"):  # as in every Debian since 12
        (folder / "root/usr" / name).mkdir()
        (folder / "root" / name).symlink_to(f"usr/{name}")
    tar = f"tar -x --no-same-owner --keep-directory-symlink -C {quote(str(folder / 'root'))}"
    for package in sorted((folder / "cache/archives").glob("*.deb")):
        run(
            "bash",
            "-o",
            "pipefail",
            "-ec",
            f"dpkg-deb --fsys-tarfile {quote(str(package))} | {tar}",
        )


def inside(name: str, command: str, writable: bool = False, **options: Any) -> str:
    """A command of the shell in the root, which has the repository, the wheels to install, and
    results, which can be written and stay."""
    machine = ROOTS[name].machine
    script = [f"cd {quote(str(CACHE / name))}", "mount --bind root root"]
    for place, source in (("repository", REPOSITORY), ("wheels", CACHE / name / "wheels")):
        script += [f"mount --bind {quote(str(source))} root/{place}"]
        script += [f"mount -o remount,bind,ro root/{place}"]
    script += ["mount --rbind /dev root/dev", "mount -t proc proc root/proc"]
    script += ["mount -t tmpfs tmpfs root/tmp", "mount -t tmpfs -o ro tmpfs root/home"]
    script += ["mount --bind results root/results"]
    if not writable:
        script += ["mount -o remount,bind,ro root"]
    if machine != HERE:
        entry = f":{machine}:M::{':'.join(PROGRAMS[machine])}"
        entry += f":{CACHE / 'qemu/root/usr/bin'}/qemu-{machine}:F"
        script += ["mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc"]
        script += [f"printf %s {quote(entry)} > /proc/sys/fs/binfmt_misc/register"]
    script += [f"exec chroot root /usr/bin/env -i {ENVIRONMENT} sh -ec {quote(command)}"]
    namespaces = ("--user", "--map-root-user", "--mount", "--net", "--pid", "--fork")
    return run("unshare", *namespaces, "bash", "-ec", "\n".join(script), **options)


def make_root(name: str, mirror: str) -> None:
    root, folder = ROOTS[name], CACHE / name
    if root.machine != HERE and not (CACHE / "qemu/complete").exists():
        shutil.rmtree(CACHE / "qemu", ignore_errors=True)
        # From here on, qemu-user needs no libraries.
        unpack(CACHE / "qemu", mirror, HERE, "trixie", ["qemu-user"], None)
        (CACHE / "qemu/complete").touch()
    if (folder / "complete").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    python = TO_BUILD_PYTHON if root.source_suite else [root.python]
    source = root if root.source_suite else None
    unpack(folder, mirror, root.machine, root.suite, [*PACKAGES, *python], source)
    inner = ("dev", "proc", "tmp", "home", "etc", "repository", "wheels", "results")
    for place in (*(f"root/{place}" for place in inner), "wheels", "results"):
        (folder / place).mkdir(exist_ok=True)
    (folder / "root/etc/passwd").write_text("root:x:0:0:root:/home:/bin/sh\n")
    if not (folder / "root/bin/sh").exists():  # older dashes leave that to a script
        (folder / "root/bin/sh").symlink_to("dash")
    if root.source_suite:
        (tree := folder / "root/python").mkdir()
        [archive] = folder.glob("*.orig.tar.*")
        run("tar", "-xf", archive, "--no-same-owner", "--strip-components=1", cwd=tree)
        build = "cd /python; ./configure --with-ensurepip=no; make -j2; make altinstall"
        with (folder / "results/python.log").open("w") as log:
            inside(name, build, writable=True, stdout=log, stderr=log)
        shutil.rmtree(tree)
    (folder / "complete").touch()


def fetch_wheels(folder: Path, wheel: Path, python: str, glibc: str) -> None:
    """The wheel, all that it and its tests need, and the pip that installs them."""
    shutil.rmtree(folder)
    abi = "cp" + "".join(python.split(".")[:2])
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp"]
    command += [f"--abi={name}" for name in (abi, "abi3", "none")]
    machine = wheel.stem.partition("manylinux_2_28_")[2]
    major, minor = map(int, glibc.split("."))
    tags = ["manylinux2014", *(f"manylinux_{major}_{i}" for i in range(5, minor + 1))]
    command += [f"--platform={tag}_{machine}" for tag in tags]
    run(*command, "--dest", folder, "pip", *TEST_PACKAGES, f"{wheel}[tool]")


def test(name: str, wheels: Sequence[Path], mirror: str, pytest_options: Sequence[str]) -> bool:
    """Whether all passed. Prints a row of the table in docs/wheels.md."""
    root = ROOTS[name]
    fitting = [wheel.resolve() for wheel in wheels if wheel.stem.endswith(f"_{root.machine}")]
    if len(fitting) != 1:
        raise SystemExit(f"expected one wheel for {root.machine}, got {len(fitting)}")
    make_root(name, mirror)
    interpreter = f"{'/usr/local' if root.source_suite else '/usr'}/bin/{root.python}"
    glibc, python = json.loads(inside(name, f"{interpreter} -c {quote(FACTS)}"))
    print(f"== {name}: {root.machine}, glibc {glibc}, Python {python}", flush=True)
    fetch_wheels(CACHE / name / "wheels", fitting[0], python, glibc)
    install = (
        f"{interpreter} -m venv --without-pip --clear /venv; "
        "python $(echo /wheels/pip-*)/pip --quiet --no-cache-dir install --no-index "
        f"--find-links /wheels 'octofold[tool]' {' '.join(TEST_PACKAGES)}"
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("root", nargs="?", choices=[*ROOTS, "all"], help="see --list")
    add("wheels", nargs="*", type=Path, help="that of the root's machine is taken")
    add("--list", action="store_true", help="the roots, and what each proves")
    add("--mirror", help="of Debian, in place of this machine's")
    separator = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:separator])
    if arguments.list or not arguments.root:
        for name, root in ROOTS.items():
            print(f"{name:12}Debian {root.suite}, {root.machine}: {root.proves}")
        return 0
    mirror = arguments.mirror or debian_mirror()
    names = [*ROOTS] if arguments.root == "all" else [arguments.root]
    passed = [test(name, arguments.wheels, mirror, sys.argv[separator + 1 :]) for name in names]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
