#!/usr/bin/env python3
"""Times over M, of the results that bench/gpu/run.py gemm writes, as a chart.

    scripts/plot_over_rows.py RESULTS.jsonl CHART.svg N,K ...

A panel for each N, K; both axes logarithmic; microseconds, medians. Needs matplotlib.
"""

from __future__ import annotations

import json
import sys

import matplotlib as mpl
from matplotlib.figure import Figure

LINES = {
    "planned": ("Octofold", "C0", "o"),
    "same scales": ("cuBLASLt, same scales", "C1", "s"),
    "tensor scales": ("cuBLASLt, tensor scales", "C2", "^"),
    "bfloat16": ("BF16", "C7", "x"),
}


def main() -> None:
    results, chart, *panels = sys.argv[1:]
    with open(results) as file:
        lines = [json.loads(line) for line in file]
    measured = [line for line in lines if line["section"] == "gemm"]
    # The same file from the same numbers; text as text.
    mpl.rcParams.update({"svg.hashsalt": "octofold", "svg.fonttype": "none"})
    figure = Figure(figsize=(5 * len(panels), 4.2))
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        n, k = (int(size) for size in panel.split(","))
        shapes = sorted((x for x in measured if x["shape"][1:] == [n, k]), key=lambda x: x["shape"])
        for name, (label, color, marker) in LINES.items():
            points = [(x["shape"][0], x["times"][name][-1]) for x in shapes if name in x["times"]]
            axis.plot(
                *zip(*points, strict=True), color=color, marker=marker, markersize=4, label=label
            )
        axis.set(title=f"N, K = {n}, {k}", xlabel="M", xscale="log", yscale="log")
        axis.grid(visible=True, which="major", alpha=0.25)
    axes[0][0].set_ylabel("µs")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(chart, metadata={"Date": None})


if __name__ == "__main__":
    main()
