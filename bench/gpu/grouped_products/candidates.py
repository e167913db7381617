"""Every configuration of the kernel for a case, beside what the planner takes."""

import multiprocessing
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from linear_bench.results import Results
from octofold_tool.gpu.timing import Sampler, take_turns

from . import doors
from .cases import Case
from .ways import Build, Way, checked, sampler_of

SCREENINGS = 3  # of all; then the best take turns with the planner's choice
FINALISTS = 6
PLANNED = "planned"


@dataclass(frozen=True)
class Compared:
    """Microseconds by name: screened, and those of the finalists anew."""

    screened: dict[str, float]
    final: dict[str, float]

    @property
    def best(self) -> list[str]:
        """Candidates among the finalists, the fastest first."""
        names = [name for name in self.final if name != PLANNED]
        return sorted(names, key=lambda name: self.final[name])


def names_of(case: Case, build: Build, only: Sequence[str]) -> list[str]:
    names = doors.candidates(case.section, build.pair or ("", ""))
    return [name for name in names if not only or any(text in name for text in only)]


def medians(samplers: dict[str, Sampler], rounds: int) -> dict[str, float]:
    samples = take_turns(list(samplers.values()), rounds)
    return {
        name: statistics.median(seconds) * 1e6
        for name, seconds in zip(samplers, samples, strict=True)
    }


def compare(
    case: Case, build: Build, only: Sequence[str], device: torch.device, results: Results
) -> Compared | None:
    """All that are right; what is not is said."""
    samplers: dict[str, Sampler] = {}
    kept = []  # graphs read the tensors of their ways
    for name in (PLANNED, *names_of(case, build, only)):
        try:
            way: Way = build.build(None if name == PLANNED else name)
            checked(way)
            kept.append(way)
            samplers[name] = sampler_of(way.calls, device)[0]
        except Exception as error:
            results.leave_out(f"{build.name}: {name}", True, error, case=case.name)
            if device.type == "cuda":
                torch.cuda.synchronize()  # raises again if the context is lost
    if not samplers:
        return None
    screened = medians(samplers, SCREENINGS)
    finalists = sorted(screened, key=lambda name: screened[name])[:FINALISTS]
    if PLANNED in samplers:
        finalists.append(PLANNED)
    final = medians({name: samplers[name] for name in dict.fromkeys(finalists)}, results.rounds)
    results.add("candidates", case=case.name, way=build.name, screened=screened, final=final)
    return Compared(screened, final)


def row(case: Case, build: Build, compared: Compared) -> list[str]:
    """For the table: the planner's time, and over it those of the best."""
    final, best = compared.final, compared.best
    planned = final.get(PLANNED)
    cells = [f"{case.name} {build.name}", f"{planned:.1f}" if planned else "—"]
    base = planned or final[best[0]]
    return cells + [f"{final[name] / base:.3f} {name}" for name in best[:3]]


def compile_in_parallel(script: Path, arguments: Sequence[str]) -> None:
    """Into the cache on disk: this script again, tiny, a share of the candidates each."""
    count = min(12, multiprocessing.cpu_count())
    command = [sys.executable, str(script), *arguments]
    processes = [
        subprocess.Popen([*command, "--share", str(index), str(count)]) for index in range(count)
    ]
    if any(process.wait() for process in processes):
        print("a compiling process failed", flush=True)


def compile_share(
    cases: Iterable[tuple[Case, Build]], only: Sequence[str], index: int, count: int
) -> None:
    """Runs its share of the candidates of tiny cases, whose kernels have the same forms."""
    pairs = {}
    for case, build in cases:
        kind = "masked" if "masked" in f"{case.section}{build.name}" else case.section
        kind = "contiguous" if kind == "decode" else kind
        for name in names_of(case, build, only):
            pairs.setdefault((kind, build.pair, name), (build, name))
    for build, name in list(pairs.values())[index::count]:
        try:
            build.build(name).calls[0]()
        except Exception as error:
            print(f"{build.name}: {name}: {error}", flush=True)
