"""Products back to back for a second, where the chip's power is the limit: rate, joules and clock
of ours and of each peer.

    python tests/gpu/measure_sustained.py RESULTS.json [--shape M,N,K ...] [--seconds 0.9]
        [--candidate NAME ...] [--only PEER ...]

CUDA graphs go round operands of more than 256 MB. The rate is that of the last third of the time,
energy that of the whole window by NVML's counter, the clock a mean of samples. Peers take turns,
medians of the rounds; every product is checked against FP64 first.
"""

import argparse
import ctypes
import dataclasses
import json
import statistics
import time

import torch
from octofold_tool.gpu.check import error_of
from octofold_tool.gpu.gemm import PEER_ERROR_LIMIT, prepare
from octofold_tool.gpu.peers import OCTOFOLD
from octofold_tool.gpu.timing import MIN_BYTES, captured, new_event, replay_seconds
from octofold_tool.gpu.tune import by_candidate
from octofold_tool.products import GemmOptions

SHAPES = ("4096,4096,7168", "4096,7168,16384", "4096,24576,1536")
REPLAY = 10e-3  # seconds of a graph
REST = 0.7  # seconds before each window
SM_CLOCK = 1  # NVML_CLOCK_SM


class Nvml:
    """Energy and clock of the first GPU (NVML API Reference, device queries)."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        self.call("nvmlInit_v2")
        self.call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self.handle))

    def call(self, name, *arguments):
        if (error := getattr(self.library, name)(*arguments)) != 0:
            raise RuntimeError(f"{name}: error {error}")

    def joules(self):
        millijoules = ctypes.c_ulonglong()
        self.call("nvmlDeviceGetTotalEnergyConsumption", self.handle, ctypes.byref(millijoules))
        return millijoules.value * 1e-3

    def megahertz(self):
        clock = ctypes.c_uint()
        self.call("nvmlDeviceGetClockInfo", self.handle, SM_CLOCK, ctypes.byref(clock))
        return clock.value


def window(nvml, graph, calls, seconds):
    """Seconds of a call in the last third, joules of a call, mean clock."""
    replays = max(3, round(seconds / replay_seconds(graph)))
    events = [new_event() for _ in range(replays + 1)]
    torch.cuda.synchronize()
    time.sleep(REST)
    joules, clocks = nvml.joules(), []
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    while not events[-1].query():
        clocks.append(nvml.megahertz())
        time.sleep(0.02)
    joules = nvml.joules() - joules
    late = replays - replays // 3
    last = events[late].elapsed_time(events[-1]) * 1e-3 / (replays - late)
    return last / calls, joules / (replays * calls), statistics.mean(clocks)


def measured(nvml, shape, options):
    """Of each peer: TFLOPS, picojoules of an operation, clock."""
    form = GemmOptions(**FORM)
    products, missing = prepare(shape, form, torch.device("cuda"), MIN_BYTES)
    for name in options.candidate:
        products[name] = [
            dataclasses.replace(product, run=by_candidate(product, name, form))
            for product in products[OCTOFOLD.name]
        ]
    runs = {}
    for name, group in products.items():
        if options.only and name not in options.only:
            continue
        if not max(error_of(product) for product in group) < PEER_ERROR_LIMIT:
            missing[name] = "wrong"
            continue
        once = replay_seconds(captured([product.run for product in group], 1))
        passes = max(1, round(REPLAY / once))
        graph = captured([product.run for product in group], passes)
        runs[name] = graph, passes * len(group)
    samples = {name: [] for name in runs}
    for turn in range(options.rounds):
        names = list(runs)[turn % len(runs) :] + list(runs)[: turn % len(runs)]
        for name in names:
            samples[name].append(window(nvml, *runs[name], options.seconds))
    operations = 2 * shape[0] * shape[1] * shape[2]
    results = {}
    for name, taken in samples.items():
        seconds, joules, clock = (statistics.median(values) for values in zip(*taken, strict=True))
        results[name] = {
            "tflops": operations / seconds * 1e-12,
            "picojoules": joules / operations * 1e12,
            "megahertz": clock,
            "samples": taken,
        }
    return results, missing


FORM = {
    "dtypes": ("e4m3", "e4m3"),
    "granularities": ("1x128", "128x128"),
    "out_dtype": "bfloat16",
    "rounds": 1,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("--shape", action="append", metavar="M,N,K")
    parser.add_argument("--candidate", nargs="*", default=(), help="of octofold.tuning, beside")
    parser.add_argument("--only", nargs="*", default=(), help="names of peers and candidates")
    parser.add_argument("--seconds", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    nvml = Nvml()
    document = {"gpu": torch.cuda.get_device_name(), "shapes": {}}
    for text in options.shape or SHAPES:
        shape = tuple(int(size) for size in text.split(","))
        results, missing = measured(nvml, shape, options)
        document["shapes"][text] = results
        for name, result in results.items():
            print(
                f"{text:16} {name:24} {result['tflops']:6.0f} TFLOPS {result['picojoules']:.3f} pJ "
                f"an operation, {result['megahertz']:.0f} MHz",
                flush=True,
            )
        for name, reason in missing.items():
            print(f"{text:16} {name}: {reason}", flush=True)
    with open(options.results, "w") as file:
        json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
