"""octofold bench gemm on the CPU reference backend: what it runs, shows and draws."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from .gemm_options import Shape
from .products import GemmOptions, ShapeResult, measure, seconds_per_product
from .report import ToolError, bar_chart, console, print_table, tracked


@dataclasses.dataclass(frozen=True)
class CpuReport:
    """All results of a run, and what it left out."""

    options: GemmOptions
    title: str
    results: Sequence[ShapeResult]
    left_out: Sequence[Shape]

    def document(self) -> dict[str, Any]:
        return {
            "operation": "gemm",
            "device": "cpu",
            "options": dataclasses.asdict(self.options),
            "results": [dataclasses.asdict(result) for result in self.results],
            "left_out": self.left_out,
        }

    def show(self) -> None:
        columns = (
            "M,N,K", "FP8\nms", "\n±", "\nGFLOPS", "FP32\nms", "\n±", "\nGFLOPS", "time\nFP32/FP8",
            "relative\nerror",
        )  # fmt: skip
        rows = [
            (
                f"{result.m},{result.n},{result.k}",
                f"{result.milliseconds_fp8:.2f}",
                f"{result.spread_fp8:.0%}",
                f"{result.gflops_fp8:.1f}",
                f"{result.milliseconds_float32:.2f}",
                f"{result.spread_float32:.0%}",
                f"{result.gflops_float32:.1f}",
                f"{result.ratio:.2f}",
                f"{result.relative_error:.1e}",
            )
            for result in self.results
        ]
        print_table(f"gemm on the CPU reference backend: {self.title}", columns, rows)
        if self.left_out:
            names = " ".join(",".join(map(str, shape)) for shape in self.left_out)
            seconds = self.options.max_seconds
            console().print(f"Left out, {seconds:g} s a round or more: {names}")

    def chart(self) -> Any:
        """Rates of both, shape by shape."""
        names = [f"{r.m},{r.n},{r.k}" for r in self.results]
        rates = {
            "FP8": [r.gflops_fp8 for r in self.results],
            "FP32 (NumPy)": [r.gflops_float32 for r in self.results],
        }
        return bar_chart(f"gemm: {self.title}", "GFLOPS", names, rates)


def run(shapes: Sequence[Shape], options: GemmOptions, title: str) -> CpuReport:
    cost = seconds_per_product(options)
    chosen = [shape for shape in shapes if cost * math.prod(shape) < options.max_seconds]
    if not chosen:
        raise ToolError(
            f"every shape would take {options.max_seconds:g} s a round or more; "
            "allow more with --max-seconds"
        )
    console(stderr=True).print(f"{len(chosen)} of {len(shapes)} shapes", style="dim")
    results = [measure(shape, options) for shape in tracked("bench gemm", chosen)]
    left_out = [shape for shape in shapes if shape not in chosen]
    return CpuReport(options, title, results, left_out)
