#!/usr/bin/env python3
"""Time and memory of quantize_checkpoint beside torch's casts: the table of docs/checkpoints.md.

    python scripts/measure_checkpoint.py FOLDER [--gigabytes 1.5] [--rounds 3]

FOLDER, on a disk with twice that free, gets the checkpoint. Beside: read each tensor by the
safetensors package, cast it by torch to the same codes, write all by safetensors. Both run in
turns, in processes of their own, which say their peak memory; the page cache is warm for both.
"""

import argparse
import importlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROWS, COLS = 8192, 4096
FAMILIES = {"deepseek-v3": "128x128", "compressed-tensors": "channel", "comfyui": "tensor"}


def make(path: Path, gigabytes: float) -> None:
    import torch
    from safetensors.torch import save_file

    count = max(1, round(gigabytes * 1e9 / (2 * ROWS * COLS)))
    weight = torch.randn(ROWS, COLS, dtype=torch.bfloat16)
    save_file({f"layers.{i}.proj.weight": weight.roll(i) for i in range(count)}, path)


def octofold_run(source: Path, target: Path, family: str) -> None:
    import octofold

    octofold.quantize_checkpoint(source, target, family=family)


def torch_run(source: Path, target: Path, family: str) -> None:
    import torch
    from safetensors.torch import safe_open, save_file

    def cast(x, scale):
        return (x / scale).clamp(-448, 448)

    tensors = {}
    with safe_open(source, "pt") as file:
        for name in list(file.keys()):
            x = file.get_tensor(name).float()
            if FAMILIES[family] == "128x128":
                blocks = x.view(ROWS // 128, 128, COLS // 128, 128)
                scale = blocks.abs().amax((1, 3), keepdim=True) / 448
                codes = cast(blocks, scale).view(ROWS, COLS)
                scale = scale.view(ROWS // 128, COLS // 128)
            else:
                dims = (1,) if FAMILIES[family] == "channel" else (0, 1)
                scale = x.abs().amax(dims, keepdim=True) / 448
                codes = cast(x, scale)
            tensors[name] = codes.to(torch.float8_e4m3fn)
            tensors[f"{name}_scale"] = scale
    save_file(tensors, target)


def one(way: str, source: Path, target: Path, family: str) -> None:
    """In a process of its own: seconds, and megabytes at the peak beyond those of the imports."""
    for module in ("octofold", "safetensors.torch"):
        importlib.import_module(module)
    before = peak_megabytes()
    start = time.perf_counter()
    {"octofold": octofold_run, "torch": torch_run}[way](source, target, family)
    seconds = time.perf_counter() - start
    print(seconds, peak_megabytes() - before)


def peak_megabytes() -> float:
    """Not getrusage(), which begins with what the parent had."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "FAMILY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    source, target = (options.folder / f"{name}.safetensors" for name in ("in", "out"))
    if options.one:
        one(options.one[0], source, target, options.one[1])
        return
    make(source, options.gigabytes)
    for family, granularity in FAMILIES.items():
        seconds = {"octofold": [], "torch": []}
        megabytes = {}
        for _ in range(options.rounds):
            for way, times in seconds.items():
                target.unlink(missing_ok=True)
                arguments = [options.folder, "--one", way, family]
                out = subprocess.check_output([sys.executable, __file__, *arguments], text=True)
                times.append(float(out.split()[0]))
                megabytes[way] = max(megabytes.get(way, 0), float(out.split()[1]))
        ours, theirs = (statistics.median(seconds[way]) for way in ("octofold", "torch"))
        print(
            f"{granularity:<8} octofold {ours:5.2f} s, peak {megabytes['octofold']:5.0f} MB; torch "
            f"and safetensors {theirs:5.2f} s, {megabytes['torch']:5.0f} MB; {ours / theirs:.2f}",
            flush=True,
        )
    source.unlink()
    target.unlink()


if __name__ == "__main__":
    main()
