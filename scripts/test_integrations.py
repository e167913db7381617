"""Tests the plugs of octofold.integrations with the real programs that they plug into.

    scripts/test_integrations.py WHEEL [HOST...]   # `make test-integrations`, with HOSTS="vllm"

Each host has an environment of its own, build/integrations/<host>, made by pip with pinned
versions, over one that they share (torch, the wheel, pytest). A host that cannot be installed is
skipped, and the reason is shown. Its tests are tests/integrations/test_<host>*.py.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
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


# What vLLM imports where its layers and tables are, of the 76 packages that it wants (CUDA, for one).
_VLLM: Final = (
    "vllm==0.33.0",
    "aiohappyeyeballs==2.7.1",
    "aiohttp==3.14.5",
    "aiosignal==1.4.0",
    "annotated-doc==0.0.7",
    "annotated-types==0.8.0",
    "anyio==4.16.0",
    "attrs==26.1.0",
    "cachetools==8.0.2",
    "cbor2==6.3.0",
    "certifi==2026.10.19.post1",
    "cloudpickle==3.1.3",
    "compressed-tensors==0.17.0",
    "einops==0.8.2",
    "fastapi==0.165.0",
    "frozenlist==1.8.0",
    "h11==0.16.0",
    "httpcore2==2.16.2",
    "httpx2==2.16.2",
    "huggingface-hub==2.4.0",
    "idna==3.20",
    "llguidance==1.9.1",
    "loguru==0.7.3",
    "msgspec==0.22.0",
    "multidict==7.2.1",
    "openai==3.57.0",
    "openai-harmony==0.0.8",
    "opentelemetry-api==1.45.2",
    "partial-json-parser==0.2.1.1.post7",
    "pillow==13.0.0",
    "prometheus-client==0.26.0",
    "propcache==0.5.4",
    "psutil==7.2.2",
    "py-cpuinfo==9.0.0",
    "pybase64==1.5.1",
    "pydantic==2.14.4",
    "pydantic-core==2.50.5",
    "pyyaml==6.0.4",
    "pyzmq==27.3.0",
    "regex==2026.11.19",
    "requests==2.34.2",
    "sniffio==1.3.1",
    "starlette==1.10.0",
    "tokenizers==0.23.3",
    "tqdm==4.70.1",
    "transformers==5.20.0",
    "truststore==0.10.5",
    "typing-inspection==0.4.5",
    "urllib3==2.8.0",
    "uvloop==0.23.0",
    "xgrammar==0.2.8",
    "yarl==1.25.1",
)

HOSTS: Final = {
    "vllm": Environment(alone=_VLLM),
    "transformers": Environment(("transformers==5.24.0", "accelerate==1.15.0", "peft==0.21.2")),
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
    files = sorted(TESTS.glob(f"test_{host}*.py"))
    pytest = [folder / "bin" / "python", "-m", "pytest", "-q", "-r", "fEs", *files]
    pytest += ["-p", "no:cacheprovider", "-n", os.environ.get("CTEST_PARALLEL_LEVEL", "2")]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(pytest, cwd=REPOSITORY, env=environ, check=False)
    return "failed" if done.returncode else "passed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "hosts", nargs="*", metavar="HOST", help=f"{', '.join(HOSTS)}; by default all"
    )
    arguments = parser.parse_args()
    for host in arguments.hosts:
        if host not in HOSTS:
            parser.error(f"'{host}': expected one of {', '.join(HOSTS)}")
    if not arguments.wheel.is_file():
        parser.error(f"{arguments.wheel} is not there: make wheel")
    shared = Environment((*SHARED, str(arguments.wheel.resolve())))
    if reason := make_environment(FOLDER / "shared", None, shared):
        raise SystemExit(f"test_integrations: {reason}")
    results = {host: test(host) for host in arguments.hosts or HOSTS}
    for host, result in results.items():
        print(f"test_integrations: {host} {result}")
    if "failed" in results.values():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
