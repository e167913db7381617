"""octofold bench gemm on a GPU: what it runs, shows and draws."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from octofold._timing import GRAPH

from ..gemm_options import Shape
from ..products import GemmOptions
from ..report import COLORS, bar_chart, console, new_figure, print_table, tracked
from .gemm import GpuShapeResult, Limits, measure, measure_limits
from .peers import BFLOAT16, OCTOFOLD, PEERS

LEAST_SWEEP = 4
"""So many numbers of rows of each weight are lines rather than bars."""


@dataclasses.dataclass(frozen=True)
class GpuReport:
    """All results of a run."""

    options: GemmOptions
    title: str
    limits: Limits
    results: Sequence[GpuShapeResult]

    def document(self) -> dict[str, Any]:
        return {
            "operation": "gemm",
            "device": "cuda",
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "options": dataclasses.asdict(self.options),
            "limits": dataclasses.asdict(self.limits),
            "results": [dataclasses.asdict(result) for result in self.results],
        }

    def show(self) -> None:
        columns = ["M,N,K", "Octofold\nµs", "\n±", "\nTFLOPS", "of the\nlimit", "relative\nerror"]
        for peer in PEERS:
            columns += [peer.label.replace(", ", ",\n"), "\ntime"]
        rows = [row(result) for result in self.results]
        totals = ["geometric mean", "", "", "", "", ""]
        for peer in PEERS:
            totals += ["", mean_ratio([result.ratios.get(peer.name) for result in self.results])]
        print_table(
            f"gemm on {gpu_name()}: {self.title}; µs, and time over ours", columns, rows, totals
        )
        limits = self.limits
        console().print(
            f"Limit: the longer of all bytes at {limits.bytes_per_second / 1e9:.0f} GB/s (a sum "
            f"over 4 GiB) and all operations at {limits.flops / 1e12:.0f} TFLOPS (cuBLASLt, tensor "
            "scales, 8192³), both measured in this run.",
            style="dim",
        )
        for reason in sorted({text for result in self.results for text in result.missing.values()}):
            console().print(f"Missing: {reason}", style="dim")

    def chart(self) -> Any:
        """Speed over BF16's by M where weights were swept, else rates of all shape by shape."""
        title = f"gemm on {gpu_name()}: {self.title}"
        weights: dict[tuple[int, int], list[GpuShapeResult]] = {}
        for result in self.results:
            weights.setdefault((result.n, result.k), []).append(result)
        if any(len(results) < LEAST_SWEEP for results in weights.values()):
            names = [f"{result.m},{result.n},{result.k}" for result in self.results]
            return bar_chart(title, "TFLOPS", names, rates_of(self.results))
        figure, axes = new_figure(len(weights), title)
        for axis, ((n, k), results) in zip(axes, weights.items(), strict=True):
            rates = rates_of(results)
            own = np.array(rates[BFLOAT16.label])
            rows = [result.m for result in results]
            for color, (label, those) in zip(COLORS, rates.items(), strict=False):
                axis.plot(rows, those / own, color=color, label=label, marker="o", markersize=3)
            axis.set_xscale("log", base=2)
            axis.set_xticks(rows[::2], [str(m) for m in rows[::2]], fontsize="small")
            axis.set_ylim(bottom=0)
            axis.set_title(f"N = {n}, K = {k}", fontsize="medium")
            axis.set_xlabel("M")
        axes[0].set_ylabel("speed over BF16")
        axes[0].legend(frameon=False, loc="lower left")
        return figure


def rates_of(results: Sequence[GpuShapeResult]) -> dict[str, list[float]]:
    """TFLOPS of ours and of each peer that could compute any, NaN where it could not."""
    series = {OCTOFOLD.label: [result.octofold.tflops for result in results]}
    for peer in PEERS:
        timings = [result.peers.get(peer.name) for result in results]
        if any(timings):
            series[peer.label] = [timing.tflops if timing else float("nan") for timing in timings]
    return series


def run(shapes: Sequence[Shape], options: GemmOptions, title: str) -> GpuReport:
    device = torch.device("cuda")
    limits = measure_limits(GRAPH, device)
    results = [
        measure(shape, options, limits, GRAPH, device) for shape in tracked("bench gemm", shapes)
    ]
    return GpuReport(options, title, limits, results)


def gpu_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def row(result: GpuShapeResult) -> list[str]:
    ours = result.octofold
    cells = [
        f"{result.m},{result.n},{result.k}",
        f"{ours.microseconds:.1f}",
        f"{ours.spread:.1%}",
        f"{ours.tflops:.0f}",
        f"{result.share_of_limit:.0%}",
        f"{ours.relative_error:.1e}",
    ]
    for peer in PEERS:
        timing = result.peers.get(peer.name)
        cells += (
            [f"{timing.microseconds:.1f}", f"{result.ratios[peer.name]:.3f}"]
            if timing
            else ["—", "—"]
        )
    return cells


def mean_ratio(ratios: Sequence[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{statistics.geometric_mean(known):.3f}" if known else "—"
