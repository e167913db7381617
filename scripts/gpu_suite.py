#!/usr/bin/env python3
"""Runs Octofold's GPU suite on a machine with a GPU, out of the folder that `make gpu-bundle` made.

    python3 gpu_suite.py --output results
    python3 gpu_suite.py --output results --only tests --seconds 500
    python3 gpu_suite.py --output results --only tests -- -k streams

Needs Python, PyTorch and pytest on the machine, and no network. Parts:

    tests      tests/gpu and those tests of tests/python that run on each device, in parallel
               (other arguments for pytest behind --)
    sanitizer  tests/gpu/sanitizer_problems.py under compute-sanitizer, memcheck and racecheck
    bench      `octofold bench gemm` and `host`, and the C++ benchmark of host time
    compare    bench/gpu/compare_wheels.py: the wheel in baseline/, if there is one, and ours

Into the output folder go summary.md and summary.json, suite.log with all that was printed, and the
benches' own JSON and charts. Each part runs even where one before it failed; the exit code is 1
if any did. docs/gpu.md says more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass
from pathlib import Path

BUNDLE = Path(__file__).resolve().parent
WHEELS, BASELINE = BUNDLE / "wheels", BUNDLE / "baseline"
WORKERS = 8  # of the tests, which mostly compile kernels
PARTS = ("tests", "sanitizer", "bench", "compare")
SANITIZER_TOOLS = ("memcheck", "racecheck")
INTERRUPT_GRACE = 20  # seconds that an interrupted step has to say what it has done


@dataclass(frozen=True)
class Step:
    """One command of the suite."""

    name: str
    command: list[str]
    environment: dict[str, str]
    junit: Path | None = None


@dataclass(frozen=True)
class Result:
    """The outcome of a step."""

    name: str
    outcome: str  # "passed", "failed", "out of time" or "skipped"
    seconds: float
    detail: str  # counts of tests, the last line of output, or why it was skipped


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder; made if need be")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="for everything; what runs then is interrupted"
    )
    parser.add_argument(
        "--suite", action="append", help="suites of octofold bench gemm (default: deepseek-v3)"
    )
    parser.add_argument(
        "--site", type=Path, default=BUNDLE / "site", help="where the wheels are unpacked"
    )
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, behind --")
    return parser.parse_args()


def install(site: Path, wheels: list[Path]) -> None:
    """Wheels into a folder of their own: the machine's Python stays as it is."""
    if not wheels:
        sys.exit(f"gpu_suite: no wheels in {WHEELS}; make gpu-bundle packs them")
    shutil.rmtree(site, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-compile", "--no-cache-dir", "--target", site, *wheels], check=True)


def python_environment(site: Path) -> dict[str, str]:
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def tests(arguments: argparse.Namespace) -> list[Step]:
    # Warnings of the machine's own packages are not ours to turn into errors.
    options = ["-W", "default", "-p", "no:cacheprovider", "-q", "--durations=10", "--tb=short"]
    of_python = map(str, sorted((BUNDLE / "tests/python").glob("test_*.py")))
    workers = f"-n={min(WORKERS, os.cpu_count() or 1)}"
    parts: dict[str, tuple[str, ...]] = {"tests": (workers, "-m", "gpu", *of_python)}
    if not arguments.pytest:  # which may choose others
        parts["tests of times"] = ("-m", "times")
    # torch's threads of as many processes would stand in each other's way: 4 times as long.
    environment = python_environment(arguments.site) | {"OMP_NUM_THREADS": "1"}
    steps = []
    for name, chosen in parts.items():
        junit = arguments.output / f"{name.replace(' ', '-')}.xml"
        command = [sys.executable, "-m", "pytest", *options, f"--junitxml={junit}", *chosen]
        steps.append(Step(name, [*command, "tests/gpu", *arguments.pytest], environment, junit))
    return steps


def sanitizer(arguments: argparse.Namespace) -> list[Step]:
    environment = python_environment(arguments.site) | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    script = [sys.executable, "-m", "tests.gpu.sanitizer_problems"]
    return [
        Step(
            f"compute-sanitizer {tool}",
            ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *script],
            environment,
        )
        for tool in SANITIZER_TOOLS
    ]


def bench(arguments: argparse.Namespace) -> list[Step]:
    environment = python_environment(arguments.site)
    tool = [sys.executable, "-m", "octofold_tool", "bench"]
    steps = []
    for suite in arguments.suite or ["deepseek-v3"]:
        files = [
            f"--{kind}={arguments.output / f'gemm-{suite}'}.{kind}" for kind in ("json", "png")
        ]
        command = [*tool, "gemm", "--device", "cuda", "--suite", suite, *files]
        steps.append(Step(f"bench gemm {suite}", command, environment))
    host = [*tool, "host", f"--json={arguments.output / 'host.json'}"]
    steps.append(Step("bench host, Python", host, environment))
    libraries = os.pathsep.join([str(arguments.site / "octofold"), str(BUNDLE / "bin")])
    command = [str(BUNDLE / "bin" / "octofold_bench"), "--benchmark_filter=host_time"]
    steps.append(Step("bench host, C++", command, {"LD_LIBRARY_PATH": libraries}))
    return steps


def compare(arguments: argparse.Namespace) -> list[Step]:
    baseline = sorted(BASELINE.glob("octofold-*.whl"))
    if not baseline:
        return []
    others = [wheel for wheel in WHEELS.glob("*.whl") if not wheel.name.startswith("octofold-")]
    site = arguments.site.with_name(f"{arguments.site.name}-baseline")
    install(site, [*baseline, *sorted(others)])
    command = [sys.executable, "bench/gpu/compare_wheels.py", str(site), str(arguments.site)]
    command.append(f"--json={arguments.output / 'compare.json'}")
    return [Step("compare with the baseline", command, {"PYTHONUNBUFFERED": "1"})]


def run(step: Step, seconds: float, log: Path) -> Result:
    """Its output goes to the log and to standard output."""
    if shutil.which(step.command[0]) is None:
        return Result(step.name, "skipped", 0.0, f"{step.command[0]} is not on this machine")
    print(f"\n===== {step.name}: {' '.join(step.command)}", flush=True)
    start = time.monotonic()
    begin = log.stat().st_size if log.exists() else 0
    with log.open("a") as output:
        output.write(f"\n===== {step.name}: {' '.join(step.command)}\n")
        output.flush()
        process = subprocess.Popen(
            step.command,
            cwd=BUNDLE,
            env=os.environ | step.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(max(seconds, 1.0))
            outcome = "passed" if code == 0 else "failed"
        except subprocess.TimeoutExpired:
            outcome = "out of time"
            stop(process)
    text = log.read_text(errors="replace")[begin:]
    print(text[-6000:], flush=True)
    detail = test_counts(step.junit) or last_line(text)
    if "ERROR OCCURRED" in text:
        outcome = "failed"  # Google Benchmark ends well all the same
    if outcome == "passed" and step.junit is not None and not detail.startswith("passed"):
        outcome = "failed"  # all were skipped: nothing was shown
    return Result(step.name, outcome, time.monotonic() - start, detail)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupts as Ctrl-C does, so that pytest sums up what it has; then kills the process."""
    for signal_ in (signal.SIGINT, signal.SIGKILL):
        os.killpg(process.pid, signal_)
        try:
            process.wait(INTERRUPT_GRACE)
            return
        except subprocess.TimeoutExpired:
            continue


def test_counts(junit: Path | None) -> str:
    """ "passed 812, failed 2, skipped 3", without what there is none of, and how many candidates
    they ran; "" without a report."""
    if junit is None or not junit.exists():
        return ""
    report = ElementTree.parse(junit)
    counts = dict.fromkeys(("passed", "failed", "skipped", "candidates"), 0)
    for entry in report.iterfind(".//testcase/properties/property[@name='candidates']"):
        counts["candidates"] += int(entry.get("value", "0"))
    for case in report.iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        counts["failed" if bad else "skipped" if skipped else "passed"] += 1
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def machine(site: Path) -> dict[str, object]:
    """Describes the machine and the versions that the results depend on."""
    script = (
        "import json, dataclasses, octofold, torch;"
        "print(json.dumps({'octofold': dataclasses.asdict(octofold.info()),"
        " 'torch': torch.__version__, 'cuda': torch.version.cuda}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | python_environment(site),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        sys.exit(f"gpu_suite: octofold or torch cannot be imported:\n{result.stderr}")
    described: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return described


def write_summary(output: Path, described: dict[str, object], results: list[Result]) -> str:
    gpus = [gpu["name"] for gpu in described["octofold"]["gpus"]]  # type: ignore[index]
    lines = [
        "# GPU suite",
        "",
        f"{time.strftime('%Y-%m-%d %H:%M')} · {', '.join(gpus) or 'no GPU'} · "
        f"torch {described['torch']}, CUDA {described['cuda']}",
        "",
        "| step | outcome | s | |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {result.name} | {result.outcome} | {result.seconds:.0f} | {result.detail} |"
        for result in results
    ]
    text = "\n".join(lines) + "\n"
    (output / "summary.md").write_text(text)
    content = {"machine": described, "steps": [asdict(result) for result in results]}
    (output / "summary.json").write_text(json.dumps(content, indent=2) + "\n")
    return text


def main() -> int:
    arguments = parse_arguments()
    arguments.output = arguments.output.resolve()
    arguments.site = arguments.site.resolve()
    arguments.output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + arguments.seconds
    log = arguments.output / "suite.log"
    log.unlink(missing_ok=True)

    install(arguments.site, sorted(WHEELS.glob("*.whl")))
    described = machine(arguments.site)
    make_steps = {"tests": tests, "sanitizer": sanitizer, "bench": bench, "compare": compare}
    steps = [
        step
        for part in PARTS
        if part in (arguments.only or PARTS)
        for step in make_steps[part](arguments)
    ]
    if not steps:
        sys.exit(f"gpu_suite: nothing to run: {BASELINE} has no wheel to compare with")
    results: list[Result] = []
    for step in steps:
        left = end - time.monotonic()
        if left < 1:
            results.append(Result(step.name, "skipped", 0.0, "no time was left"))
        else:
            results.append(run(step, left, log))
        text = write_summary(arguments.output, described, results)  # anew: a kill loses little
    print("\n" + text)
    return 0 if all(result.outcome == "passed" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
