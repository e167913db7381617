"""octofold bench host: what a call costs the processor before the GPU has its work."""

from collections.abc import Mapping

import octofold
import torch
from octofold._timing import Call, Method, Timing, timings

from ..products import GemmOptions
from ..report import ToolError, print_table
from .peers import prepare_bfloat16, prepare_octofold, prepare_same_scales, prepare_tensor_scales

# Fewer calls than a stream's queue holds, so that none waits for the GPU.
METHOD = Method("host", rest=0.0, passes=200)
# Done before the host has queued the next one.
SHAPE = (64, 128, 512)
_MOST_ERROR = 0.06  # of FP8
OPTIONS = GemmOptions(("e4m3", "e4m3"), ("1x128", "128x128"), "bfloat16", rounds=21)


def calls(device: torch.device) -> dict[str, Call]:
    """Returns the calls that are timed, by name."""
    m, n, k = SHAPE
    x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    return {
        "octofold.gemm(out=)": prepare_octofold(x, w, OPTIONS).run,
        "octofold.quantize": lambda: octofold.quantize(x),
        "torch.mm(out=), BF16": prepare_bfloat16(x, w, OPTIONS).run,
        "torch._scaled_mm(out=), same scales": prepare_same_scales(x, w, OPTIONS).run,
        "torch._scaled_mm(out=), tensor": prepare_tensor_scales(x, w, OPTIONS).run,
    }


def layer_calls(device: torch.device) -> dict[str, Call]:
    """A linear layer of these sizes, and torch's. Raises where they do not compute the same."""
    m, n, k = SHAPE
    plain = torch.nn.Linear(k, n, device=device, dtype=torch.bfloat16)
    layer = octofold.nn.Linear.from_linear(plain, force_fp8=True)
    frozen = octofold.nn.InferenceLinear.from_linear(plain)
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    own, dy = x.clone().requires_grad_(), torch.randn(m, n, device=device, dtype=torch.bfloat16)
    expected = plain(x).float()
    for each in (layer, frozen):
        error = (each(x).float() - expected).norm() / expected.norm()
        if not error < _MOST_ERROR:
            raise ToolError(f"{type(each).__name__}: relative error {error:.3f}")

    def inference(module: torch.nn.Module) -> Call:
        def call() -> None:
            with torch.no_grad():
                module(x)

        return call

    return {
        "octofold.nn.InferenceLinear": inference(frozen),
        "octofold.nn.Linear, no gradients": inference(layer),
        "torch.nn.Linear, no gradients": inference(plain),
        "octofold.nn.Linear": lambda: layer(own),
        "torch.nn.Linear": lambda: plain(own),
        "octofold.nn.Linear, and backward": lambda: layer(own).backward(dy),
        "torch.nn.Linear, and backward": lambda: plain(own).backward(dy),
    }


def measure(named: dict[str, Call], method: Method = METHOD) -> dict[str, Timing]:
    for call in named.values():
        call()  # loads kernels
    samplers = {name: method.sampler([call]) for name, call in named.items()}
    return timings(samplers, OPTIONS.rounds)


def run() -> dict[str, Timing]:
    device = torch.device("cuda")
    return measure(calls(device) | layer_calls(device))


def show(times: Mapping[str, Timing]) -> None:
    rows = [
        (name, f"{time.microseconds:.1f}", f"{time.spread:.0%}") for name, time in times.items()
    ]
    print_table("Host time per call from Python", ("call", "µs", "±"), rows)
