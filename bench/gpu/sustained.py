"""Products back to back for a second, where the chip's power is the limit: rate, joules and clock
of ours and of each peer.

    python bench/gpu/sustained.py RESULTS.jsonl [--shape M,N,K ...] [--window 0.9]
        [--candidate NAME ...] [--only PEER ...]

CUDA graphs go round operands of more than 256 MB. The rate is that of the last third of the time,
energy that of the whole window by NVML's counter, the clock a mean of samples. Peers take turns,
medians of the rounds; every product is checked against FP64 first.
"""

import ctypes
import dataclasses
import statistics
import sys
import time
from functools import partial

import torch
from common.run import Run, new_parser, sizes, text_of
from octofold import tuning
from octofold._timing import COLD_BYTES, captured, event_seconds, new_event, take_turns
from octofold_tool.gpu.check import error_of
from octofold_tool.gpu.gemm import PEER_ERROR_LIMIT, prepare
from octofold_tool.gpu.peers import OCTOFOLD
from octofold_tool.products import GemmOptions

SHAPES = ((4096, 4096, 7168), (4096, 7168, 16384), (4096, 24576, 1536))
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


def window(nvml, replay, calls, seconds):
    """Seconds of a call in the last third, joules of a call, mean clock."""
    replays = max(3, round(seconds / event_seconds(replay)))
    events = [new_event() for _ in range(replays + 1)]
    torch.cuda.synchronize()
    time.sleep(REST)
    joules, clocks = nvml.joules(), []
    events[0].record()
    for event in events[1:]:
        replay()
        event.record()
    while not events[-1].query():
        clocks.append(nvml.megahertz())
        time.sleep(0.02)
    joules = nvml.joules() - joules
    late = replays - replays // 3
    last = events[late].elapsed_time(events[-1]) * 1e-3 / (replays - late)
    return last / calls, joules / (replays * calls), statistics.mean(clocks)


def replay_of(products):
    """A graph of about REPLAY, and how many calls it holds."""

    def once():
        for product in products:
            product.run()

    passes = max(1, round(REPLAY / event_seconds(captured(once))))
    return captured(lambda: [once() for _ in range(passes)]), passes * len(products)


def measured(nvml, shape, run, options):
    """Measures each peer: TFLOPS, picojoules of an operation, clock."""
    form = GemmOptions(**FORM)
    products, missing = prepare(shape, form, run.device, COLD_BYTES)
    for name in options.candidate:
        products[name] = [
            dataclasses.replace(
                product, run=partial(tuning.gemm, product.a, product.b, name, out=product.out)
            )
            for product in products[OCTOFOLD.name]
        ]
    windows = {}
    for name, group in products.items():
        if options.only and name not in options.only:
            continue
        if not max(error_of(product) for product in group) < PEER_ERROR_LIMIT:
            missing[name] = "wrong"
            continue
        replay, calls = replay_of(group)
        windows[name] = partial(window, nvml, replay, calls, options.window)
    samples = take_turns(list(windows.values()), run.rounds)
    operations = 2 * shape[0] * shape[1] * shape[2]
    results = {}
    for name, taken in zip(windows, samples, strict=True):
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
    parser = new_parser(__doc__, rounds=3, seconds=500)
    add = parser.add_argument
    add("--shape", type=sizes, action="append", metavar="M,N,K")
    add("--candidate", nargs="*", default=(), help="of octofold.tuning, beside")
    add("--only", nargs="*", default=(), help="names of peers and candidates")
    add("--window", type=float, default=0.9, help="seconds of a sample")
    options = parser.parse_args()
    with Run(options) as run:
        nvml = Nvml()
        for shape in run.cases(options.shape or SHAPES):
            results, missing = measured(nvml, shape, run, options)
            run.record("sustained", shape=shape, results=results, missing=missing)
            for name, result in results.items():
                print(
                    f"{text_of(shape):16} {name:24} {result['tflops']:6.0f} TFLOPS "
                    f"{result['picojoules']:.3f} pJ an operation, {result['megahertz']:.0f} MHz"
                )
            for name, reason in missing.items():
                print(f"{text_of(shape):16} {name}: {reason}")
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
