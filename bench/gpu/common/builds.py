"""Several builds of Octofold beside each other: a process for each holds the same operands and
takes samples when it is told to. Nothing of Octofold is imported here but the timing module."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

TIMING = "OCTOFOLD_BENCH_TIMING"


def timing_of(site: str | Path) -> ModuleType:
    """The timing module of a build, by itself: others are measured by it too."""
    name = "octofold_timing"
    spec = importlib.util.spec_from_file_location(name, Path(site) / "octofold" / "_timing.py")
    if spec is None or spec.loader is None:
        sys.exit(f"{site}: no octofold/_timing.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Build:
    """The process of one build, from here: this script again, with --worker."""

    def __init__(self, site: Path, timing_site: Path, device: str) -> None:
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(paths), TIMING: str(timing_site)}
        self.site = site
        self.process = subprocess.Popen(
            [sys.executable, sys.argv[0], "--worker", "--device", device],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        described = self.ask("describe")
        if not Path(described["octofold"]).resolve().is_relative_to(site.resolve()):
            sys.exit(f"{site}: octofold came from {described['octofold']}")
        self.description = f"{described['device']}, torch {described['torch']}"

    def ask(self, *request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.site}: its process ended with exit code {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(worker: Any) -> None:
    """Answers requests, each the name of a method and arguments: a line of JSON in, one out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is no answer
    for line in sys.stdin:
        request, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, request)(*arguments)), file=answers, flush=True)


class Worker:
    """In the process of a build. `prepared`: by name, what makes samplers of a case."""

    def __init__(self, device: str, sections: Mapping[str, Callable[..., Any]]) -> None:
        import octofold
        import torch

        self.octofold, self.torch, self.device = octofold, torch, torch.device(device)
        self.timing = timing_of(os.environ[TIMING])
        self.on_gpu = self.device.type == "cuda"
        self._sections = sections
        self._samplers: dict[str, Callable[[], float]] = {}

    def describe(self) -> dict[str, str]:
        name = self.torch.cuda.get_device_name() if self.on_gpu else "the CPU"
        return {"octofold": self.octofold.__file__, "torch": self.torch.__version__, "device": name}

    def prepare(self, section: str, case: Sequence[int]) -> dict[str, float]:
        """The relative error of each implementation; then sample() has it by name."""
        self._samplers = {}
        errors = {}
        made = self._sections[section](self, *case)
        for name, (calls, error, method) in made.items():
            for call in (*calls, *calls):
                call()
            errors[name] = error()
            method = method if self.on_gpu or method.kind == "host" else self.timing.CPU
            self._samplers[name] = method.sampler(calls)
        return errors

    def sample(self, name: str) -> float:
        return self._samplers[name]()
