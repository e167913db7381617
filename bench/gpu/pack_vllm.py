"""Packs what a GPU machine without a network needs to run a layer of vLLM: its Python, without its
extension (750 MB of it), and the packages that this imports, in one file.

    python bench/gpu/pack_vllm.py vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl vllm.tar.xz \\
        --python 3.12

There, beside a torch for its GPU and Octofold:

    mkdir vllm-site && tar xJf vllm.tar.xz -C vllm-site
    PYTHONPATH=vllm-site python bench/gpu/vllm_layer.py results.jsonl
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[2] / "tests" / "integrations" / "vllm.txt"
LEFT_OUT = (
    ".so",
    "/vllm-rs",
    "/third_party/cutlass/",
    "/third_party/deep_gemm/",
    "/third_party/fmha_sm100/",
    "/static/",
)
"""Parts of the names of vLLM's files: compiled code, headers of kernels, pages of a server."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="vLLM's")
    parser.add_argument("file", type=Path, help="that is written")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=version, help=f"of that machine (default: {version})")
    options = parser.parse_args()
    lines = REQUIREMENTS.read_text().splitlines()
    others = [line for line in lines if not line.startswith(("#", "vllm=="))]
    with tempfile.TemporaryDirectory() as folder:
        wheels, site = Path(folder, "wheels"), Path(folder, "site")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", options.python]
        subprocess.run([*command, "--dest", wheels, *others], check=True)
        for wheel in (options.wheel, *sorted(wheels.glob("*.whl"))):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    is_left_out = wheel is options.wheel and any(
                        part in f"/{name}" for part in LEFT_OUT
                    )
                    if not is_left_out:
                        archive.extract(name, site)
        with tarfile.open(options.file, "w:xz") as archive:
            for path in sorted(site.iterdir()):
                archive.add(path, path.name)
    print(f"{options.file}: {options.file.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
