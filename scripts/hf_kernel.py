"""Lays out a wheel as a kernel that `kernels.get_local_kernel()` of Hugging Face loads.

    scripts/hf_kernel.py WHEEL [FOLDER]     # by default dist/kernels/octofold

FOLDER/build has a folder for each variant that `kernels` tells apart: the CPU, CUDA 12 from 12.6
on, and CUDA 13. They hold the same files, once on the disk, because Octofold opens the driver and
NVRTC when it runs.
"""

import argparse
import base64
import hashlib
import json
import os
import platform
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).resolve().parents[1]
OUT = REPOSITORY / "dist" / "kernels" / "octofold"

NUMBER: Final = 1
"""The kernel's version, as `kernels` counts: one more whenever its `__all__` grows."""
BACKENDS: Final = {"cpu": "cpu", "cu126": "cuda", "cu130": "cuda"}
CUDA_ARCHS: Final = ["7.5+PTX"]
"""The architectures that gemm_weight_only() runs on. octofold.capabilities() has the rest."""


def lay_out(package: Path, version: str, folder: Path) -> None:
    """Lays out the kernel from the package's folder, with its library, and its version."""
    shutil.rmtree(folder, ignore_errors=True)
    first = None
    for backend, kind in BACKENDS.items():
        name = f"tvm-ffi01-{backend}-{platform.machine()}-linux"
        variant = folder / "build" / name
        if first is None:
            copy(package, version, variant)
            first = variant
        else:
            shutil.copytree(first, variant, copy_function=os.link)
            (variant / "metadata.json").unlink()
        write_metadata(variant, name, kind)


def copy(package: Path, version: str, variant: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, variant / "octofold", ignore=ignored)
    kernel = variant / "octofold" / "integrations" / "hf_kernel"
    (kernel / "entry.py").rename(variant / "__init__.py")
    (kernel / "layers.py").rename(variant / "layers.py")
    kernel.rmdir()
    (variant / "VERSION").write_text(f"{version}\n")


def write_metadata(variant: Path, name: str, kind: str) -> None:
    """With a digest of all other files."""
    files = sorted(path for path in variant.rglob("*") if path.is_file())
    digests = {str(path.relative_to(variant)): digest(path) for path in files}
    contents = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:12]
    backend = {"type": kind} | ({"archs": CUDA_ARCHS} if kind == "cuda" else {})
    metadata = {
        "id": f"octofold_{name.replace('-', '_')}_{contents}",
        "name": "octofold",
        "version": NUMBER,
        "license": "MIT",
        "python-depends": ["tvm-ffi"],
        "backend": backend,
        "digest": {"algorithm": "sha256", "files": digests},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")


def digest(path: Path) -> str:
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=OUT)
    arguments = parser.parse_args()
    if not arguments.wheel.is_file():
        parser.error(f"{arguments.wheel} is not there: make wheel")
    version = arguments.wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as unpacked:
        zipfile.ZipFile(arguments.wheel).extractall(unpacked)
        lay_out(Path(unpacked) / "octofold", version, arguments.folder)
    print(f"hf_kernel: {arguments.folder}, octofold {version}")


if __name__ == "__main__":
    main()
