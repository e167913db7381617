"""Builds wheels for any Linux since glibc 2.28, on this machine, whatever its glibc is.

    scripts/manylinux_wheel.py SOURCE OUT [x86_64 aarch64]

SOURCE is a folder or an sdist, OUT gets the wheels. Zig's C++ compiler (PyPI's ziglang) links
against the symbols of that glibc and brings the C++ run-time library along; the libraries inside
the wheel are Debian's packages for each machine, unpacked into build/manylinux/MACHINE/packages.
tvm-ffi is the oldest that we take. Kernels are compiled once, by the build in build/release (`make
wheel`). Debian's archive keys are needed: the package debian-archive-keyring.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from debian_packages import DEBIAN_NAMES, KEYRING, unpack

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = REPOSITORY / "build" / "manylinux"
KERNELS = REPOSITORY / "build" / "release" / "precompiled_kernels.bin"
MIRROR = "http://deb.debian.org/debian"
# libfmt9: fmt's CMake package asks for its files, though none is linked.
PACKAGES = (
    "libfmt-dev",
    "libfmt9",
    "libxxhash-dev",
    "libzstd-dev",
    "nlohmann-json3-dev",
)
SUITE = "bookworm"


def run(*command: str | Path, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def root_of(machine: str) -> Path:
    """The folder with the libraries for a machine, made if it is not there whole."""
    folder = ROOTS / machine / "packages"
    if not (folder / "complete").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        download = f"apt download {' '.join(PACKAGES)}; mv ./*.deb var/cache/apt/archives"
        unpack(folder, MIRROR, machine, [f"deb {SUITE}"], download)
        add_tvm_ffi(machine, folder)
        (folder / "complete").touch()
    return folder / "root"


def version_of(package: str, machine: str = "x86_64") -> str:
    """9.1.0+ds1-2, of libfmt-dev_9.1.0+ds1-2_amd64.deb."""
    archives = root_of(machine).parent / "var/cache/apt/archives"
    return next(archives.glob(f"{package}_*.deb")).name.split("_")[1]


def oldest_tvm_ffi() -> str:
    """0.1.11, of the requirement apache-tvm-ffi>=0.1.11,<0.2."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    requirement = next(r for r in project["dependencies"] if r.startswith("apache-tvm-ffi"))
    return str(requirement.partition(">=")[2].partition(",")[0])


def add_tvm_ffi(machine: str, folder: Path) -> None:
    """Its headers and its library, which are the same for every Python."""
    run(
        *(sys.executable, "-m", "pip", "download", f"apache-tvm-ffi=={oldest_tvm_ffi()}"),
        *("--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11"),
        *(f"--platform=manylinux_2_28_{machine}", "--dest", folder),
    )
    with zipfile.ZipFile(next(folder.glob("apache_tvm_ffi-*.whl"))) as wheel:
        wheel.extractall(folder)
    shutil.copytree(folder / "tvm_ffi/include", folder / "root/usr/include", dirs_exist_ok=True)
    shutil.copy(folder / "tvm_ffi/lib/libtvm_ffi.so", folder / "root/usr/lib")


def build(source: Path, out: Path, machine: str) -> None:
    """One wheel, from a folder of sources."""
    import ziglang

    settings = {
        "build-dir": folder(ROOTS / machine / "build"),
        "build.targets": "octofold_ffi",
        # One of the builds holds that each file includes what it needs of ours.
        "cmake.define.OCTOFOLD_BUNDLE_ROOMS": "OFF" if machine == "x86_64" else "ON",
        "cmake.args": f"--toolchain;{source}/cmake/toolchains/manylinux.cmake",
        "cmake.define.OCTOFOLD_WHEEL_MACHINE": machine,
        "cmake.define.OCTOFOLD_WHEEL_ROOT": root_of(machine),
        "cmake.define.OCTOFOLD_ZIG": Path(ziglang.__file__).parent / "zig",
        "cmake.define.OCTOFOLD_KERNEL_PACK": KERNELS,
        "wheel.tags": f"py3-none-manylinux_2_28_{machine}",
    }
    run(
        *(sys.executable, "-m", "pip", "wheel", source, "--wheel-dir", out, "--quiet"),
        *("--no-deps", "--no-build-isolation"),
        *(f"--config-settings={name}={value}" for name, value in settings.items()),
        # ccache makes paths relative, which the toolchain's mapping of paths does not find.
        env=os.environ | {"CCACHE_DISABLE": "1"},
    )


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("machines", nargs="*", default=list(DEBIAN_NAMES), metavar="MACHINE")
    arguments = parser.parse_args()
    for machine in arguments.machines:
        if machine not in DEBIAN_NAMES:
            parser.error(f"'{machine}': expected one of {', '.join(DEBIAN_NAMES)}")
    for needed, how in (
        (KERNELS, "make wheel"),
        (Path(KEYRING), "apt-get install debian-archive-keyring"),
    ):
        if not needed.is_file():
            parser.error(f"{needed} is not there: {how}")
    source = arguments.source.resolve()
    if source.is_file():
        unpacked = ROOTS / "source"
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(source) as archive:
            archive.extractall(unpacked, filter="data")
        source = next(unpacked.iterdir())
    out = folder(arguments.out.resolve())
    for machine in arguments.machines:
        # An sdist's files bear one date, by which a build cannot tell what has changed.
        shutil.rmtree(ROOTS / machine / "build", ignore_errors=True)
        build(source, out, machine)


if __name__ == "__main__":
    os.umask(0o022)
    main()
