"""octofold bench host: what a call costs the processor before the GPU has its work."""

from collections.abc import Callable, Mapping
from functools import partial

import octofold
import torch
from octofold._timing import Call, Method, Timing, timings

from ..products import GemmOptions
from ..report import ToolError, print_table
from .peers import prepare_bfloat16, prepare_octofold, prepare_same_scales, prepare_tensor_scales

# Fewer launches than a stream's queue holds, so that none waits for the GPU.
METHOD = Method("host", rest=0.0, passes=40)
# Done before the host has queued the next one.
SHAPE = (64, 128, 512)
_MOST_ERROR = 0.08  # of FP8, in two layers
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


class _TorchMlp(torch.nn.Module):
    """A gated MLP by torch's own modules."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = torch.nn.Linear(features, 2 * hidden, bias=False)
        self.down = torch.nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        y: torch.Tensor = self.down(torch.nn.functional.silu(gate) * up)
        return y


def layer_calls(device: torch.device) -> dict[str, Call]:
    """Layers of these sizes, and torch's. Raises where they do not compute the same."""
    m, n, k = SHAPE
    linear, norm = torch.nn.Linear(k, n), torch.nn.RMSNorm(k)
    mlp = _TorchMlp(k, n)
    plain = torch.nn.ModuleList([linear, torch.nn.Sequential(norm, linear), mlp])
    plain.to(device, torch.bfloat16)
    own = (
        octofold.nn.Linear.from_linear(linear, force_fp8=True),
        octofold.nn.NormLinear.from_modules(norm, linear, force_fp8=True),
        octofold.nn.MLP.from_linears(mlp.gate_up, mlp.down, force_fp8=True),
    )
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    frozen = octofold.nn.inference_linear(linear)
    found = {"octofold.nn.inference_linear": _forward(frozen, x, linear)}
    names = "torch.nn.Linear", "RMSNorm and Linear of torch", "gated MLP of torch"
    for layer, other, name in zip(own, plain, names, strict=True):
        pair = {f"octofold.nn.{type(layer).__name__}": layer, name: other}
        wanted = x.clone().requires_grad_()
        dy = torch.randn_like(other(x))
        for each, module in pair.items():
            found[f"{each}, no gradients"] = _forward(module, x, other)
        for each, module in pair.items():
            found[each] = partial(module, wanted)
        for each, module in pair.items():
            found[f"{each}, and backward"] = _step(module, wanted, dy)
    experts = octofold.nn.Experts(k, n, 8, device=device, dtype=torch.bfloat16)
    choices = torch.randn(m, 8, device=device).topk(2)
    weights = choices.values.softmax(-1)
    routed = partial(experts, topk_ids=choices.indices, topk_weights=weights)
    found["octofold.nn.Experts, and backward"] = _step(routed, x.clone().requires_grad_(), x)
    return found


def _forward(module: torch.nn.Module, x: torch.Tensor, expected: torch.nn.Module) -> Call:
    y = expected(x).float()
    error = (module(x).float() - y).norm() / y.norm()
    if not error < _MOST_ERROR:
        raise ToolError(f"{type(module).__name__}: relative error {error:.3f}")

    def call() -> None:
        with torch.no_grad():
            module(x)

    return call


def _step(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, dy: torch.Tensor) -> Call:
    return lambda: torch.autograd.backward(layer(x), dy)


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
