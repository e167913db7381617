"""Tests a wheel with the oldest versions of what it stands on that it admits, and the newest.

    scripts/test_matrix.py WHEEL [oldest newest]   # `make test-matrix`, with ENDS=oldest for one

Each end has an environment of its own, in build/matrix, made by pip; tests/python runs in it, the
quick ones. It stays where they fail, and else is removed: it takes gigabytes. An end may name its
own Python (PYTHON_NEWEST=python3.14). Other Pythons and other distributions:
scripts/test_in_root.py.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = ("hypothesis", "matplotlib", "nvidia-cuda-nvrtc>=13,<14", "pytest", "pytest-xdist", "rich")

# torch on PyPI brings CUDA along, gigabytes of it: each end takes minutes and 7 GB.
ENDS: Final = {
    "oldest": ("apache-tvm-ffi==0.1.11", "ml_dtypes==0.5.0", "numpy==1.26.*", "torch==2.9.*"),
    "newest": ("apache-tvm-ffi>=0.1.15,<0.2", "ml_dtypes", "numpy>=2.4", "torch==2.14.*"),
}

SHOW = """
import platform, numpy, octofold, torch, tvm_ffi
print("Python", platform.python_version(), "torch", torch.__version__, "NumPy", numpy.__version__)
print("tvm-ffi", tvm_ffi.__version__, octofold.__file__)
"""


def test(wheel: Path, end: str) -> bool:
    """True if the wheel passes the tests with the versions of this end of ENDS."""
    folder = REPOSITORY / "build" / "matrix" / end
    python = folder / "bin" / "python"
    base = os.environ.get(f"PYTHON_{end.upper()}", sys.executable)
    subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
    install = [python, "-m", "pip", "install", "--quiet", *ENDS[end], *TESTS, "safetensors", wheel]
    subprocess.run(install, check=True)
    # The wheel is what is tested: the sources' own package is not on the path.
    subprocess.run([python, "-c", SHOW], check=True, cwd=folder)
    workers = os.environ.get("CTEST_PARALLEL_LEVEL", str(os.cpu_count()))
    pytest = [python, "-m", "pytest", "-q", "-n", workers, "--dist", "loadfile", "tests/python"]
    pytest += ["-m", "not slow", "--hypothesis-profile=quick"]
    pytest += ["-p", "no:cacheprovider", "-r", "fE"]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(pytest, cwd=REPOSITORY, env=environ, check=False)
    if done.returncode == 0:
        shutil.rmtree(folder)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("ends", nargs="*", metavar="END", help="oldest, newest; all by default")
    arguments = parser.parse_args()
    for end in arguments.ends:
        if end not in ENDS:
            parser.error(f"'{end}': expected one of {', '.join(ENDS)}")
    if not arguments.wheel.is_file():
        parser.error(f"{arguments.wheel} is not there: make release-dry-run")
    failed = [e for e in arguments.ends or ENDS if not test(arguments.wheel.resolve(), e)]
    if failed:
        raise SystemExit(f"test_matrix: {', '.join(failed)} failed")


if __name__ == "__main__":
    main()
