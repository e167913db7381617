"""Measures the rates of the GPU at hand. Imports torch."""

import itertools
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import octofold
import torch
from octofold._timing import COLD_BYTES, EVENTS, GRAPH, Call, Method, medians, set_count
from octofold.ops import cast
from torch import Tensor

from .rates import Kind, Measured, Product, Rates

Shown: TypeAlias = Callable[[Sequence[Product]], Iterable[Product]]

ROUNDS: Final = 5
COMMAND: Final = "octofold plan-parallel --rates measure"
PEAKS: Final = {"fp8": 1.979e15, "bf16": 9.89e14}
"""NVIDIA's for an H100 or H200 with SXM, without sparsity. No measurement."""

# Features (outputs, inputs) of the layers of Llama-70B, whole and in eighths, and of DeepSeek-V3.
FEATURES: Final = (
    *((10240, 8192), (57344, 8192), (8192, 28672)),
    *((1280, 8192), (7168, 8192), (8192, 1024), (8192, 3584)),
    *((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384)),
)
EXPERTS: Final = ((4096, 7168), (7168, 2048))
TOKENS: Final = (1024, 4096, 16384)
WEIGHT_TOKENS: Final = (4096, 16384)
GROUPS: Final = ((4, 8192), (8, 2048), (32, 512))
"""Groups, and the tokens of each."""


@dataclass(frozen=True)
class Plan:
    """What is measured, where and how."""

    products: Sequence[Product]
    cast_shape: tuple[int, int]
    attention_shape: tuple[int, int, int]
    """Heads, tokens, features of a head."""
    device: torch.device
    products_by: Method = GRAPH
    attention_by: Method = EVENTS
    rounds: int = ROUNDS
    cold_bytes: int = COLD_BYTES
    """Of all sets of a product's operands together, which are multiplied in turn."""


def products() -> list[Product]:
    kinds = [Product("rows", 1, m, *nk) for nk in (*FEATURES, *EXPERTS) for m in TOKENS]
    kinds += [Product("weight", 1, *mn, k) for mn in FEATURES for k in WEIGHT_TOKENS]
    for groups, tokens in GROUPS:
        kinds += [Product("rows", groups, tokens, *nk) for nk in EXPERTS]
        kinds += [Product("weight", groups, *mn, tokens) for mn in EXPERTS]
    return kinds


def measure(shown: Shown = iter) -> Rates:
    """The rates of the first GPU. `shown` hands out products, and may show how many are done."""
    plan = Plan(products(), (16384, 8192), (32, 8192, 128), torch.device("cuda"))
    return measured(plan, shown)


def measured(plan: Plan, shown: Shown = iter) -> Rates:
    """Medians of rounds, in which what is compared takes turns."""
    entries = [measured_product(product, plan) for product in shown(plan.products)]
    copy, rows, inputs, gradients = cast_rates(plan)
    forward, backward = attention_rates(plan)
    on_gpu = plan.device.type == "cuda"
    return Rates(
        machine=f"one {torch.cuda.get_device_name()}" if on_gpu else "CPU",
        date=time.strftime("%Y-%m-%d"),
        command=COMMAND,
        commit=commit(),
        notes=f"torch {torch.__version__}. Bursts, not sustained load. Outputs in BF16. Peaks: "
        "NVIDIA's for an H100, no measurement.",
        products=tuple(entries),
        attention_forward=forward,
        attention_backward=backward,
        copy=copy,
        cast_rows=rows,
        cast_inputs=inputs,
        cast_gradients=gradients,
        peak_fp8=PEAKS["fp8"],
        peak_bf16=PEAKS["bf16"],
    )


def commit() -> str:
    """Of the checkout that this file lies in, if it is one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"octofold {octofold.__version__}, no checkout"
    return done.stdout.strip()


def normal(rows: int, columns: int, plan: Plan) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.bfloat16, device=plan.device)


def seconds_of(calls: Sequence[Sequence[Call]], method: Method, rounds: int) -> list[float]:
    """Of each list's calls, the mean."""
    for call in itertools.chain(*calls):
        call()  # compiles and loads
    return medians([method.sampler(those) for those in calls], rounds)


def measured_product(product: Product, plan: Plan) -> Measured:
    """FP8 with the recipe `blockwise`'s scales, operands cast already, beside torch in BF16."""
    calls = dense_calls if product.groups == 1 else group_calls
    sizes = m, n, k = int(product.m), int(product.n), int(product.k)
    bytes_ = product.groups * ((m + n) * k + 2 * m * n)
    sets = range(set_count(bytes_, total=plan.cold_bytes))
    fp8_calls, bf16_calls = zip(*(calls(product, plan) for _ in sets), strict=True)
    fp8, bf16 = seconds_of((fp8_calls, bf16_calls), plan.products_by, plan.rounds)
    return Measured(product.kind, product.groups, *sizes, fp8, bf16)


def second_scales(kind: Kind) -> str:
    return "128x128" if kind == "rows" else "channel"


def dense_calls(product: Product, plan: Plan) -> tuple[Call, Call]:
    m, n, k = int(product.m), int(product.n), int(product.k)
    a, b = normal(m, k, plan), normal(n, k, plan)
    a8, b8 = octofold.quantize(a, "1x128"), octofold.quantize(b, second_scales(product.kind))
    out = torch.empty(m, n, dtype=torch.bfloat16, device=plan.device)
    return lambda: octofold.gemm(a8, b8, out=out), lambda: torch.mm(a, b.t(), out=out)


def group_calls(product: Product, plan: Plan) -> tuple[Call, Call]:
    """Equal groups; in K groups all have multiples of 128."""
    groups, m, n, k = product.groups, int(product.m), int(product.n), int(product.k)
    tokens = m if product.kind == "rows" else k
    ends = torch.arange(groups + 1, dtype=torch.int32, device=plan.device) * tokens
    if product.kind == "rows":
        a, b = normal(groups * m, k, plan), normal(groups * n, k, plan)
        a8, b8 = (
            octofold.quantize(a, "1x128"),
            cast(b.view(groups, n, k), rows="128x128", matrices=groups).rows,
        )
        stack = b.view(groups, n, k).transpose(1, 2)
        kind: octofold.Rows | octofold.Depth = octofold.Rows(ends)
        right = stack
    else:
        dy, x = normal(groups * k, m, plan), normal(groups * k, n, plan)
        a8, b8 = (
            cast(value, transposed=scales, offsets=ends).transposed
            for value, scales in ((dy, "1x128"), (x, second_scales(product.kind)))
        )
        a, right, kind = dy.t(), x, octofold.Depth(ends)
    return (
        lambda: octofold.grouped_gemm(a8, b8, kind),
        lambda: grouped_mm(a, right, ends[1:]),
    )


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Any:
    """torch's product of groups in BF16, by whichever name this release has."""
    public = getattr(torch.nn.functional, "grouped_mm", None)
    return public(a, b, offs=ends) if public else torch._grouped_mm(a, b, offs=ends)


def cast_rates(plan: Plan) -> tuple[float, float, float, float]:
    """Bytes a second, least bytes read and written: copy, rows, both of x, both of dY."""
    x = normal(*plan.cast_shape, plan)
    other = torch.empty_like(x)
    calls: tuple[tuple[float, Call], ...] = (
        (4.0, lambda: other.copy_(x)),
        (3.0, lambda: octofold.quantize(x, "1x128")),
        (4.0, lambda: cast(x, rows="1x128", transposed="channel")),
        (4.0, lambda: cast(x, rows="1x128", transposed="1x128")),
    )
    seconds = seconds_of([[call] for _, call in calls], plan.products_by, plan.rounds)
    copy, rows, inputs, gradients = (
        bytes_ * x.numel() / each for (bytes_, _), each in zip(calls, seconds, strict=True)
    )
    return copy, rows, inputs, gradients


def attention_rates(plan: Plan) -> tuple[float, float]:
    """Operations a second of causal attention, forward and backward, by torch's fastest backend."""
    heads, tokens, features = plan.attention_shape
    q, k, v, dy = (
        torch.randn(1, heads, tokens, features, dtype=torch.bfloat16, device=plan.device)
        for _ in range(4)
    )
    flops = 2.0 * heads * tokens * tokens * features
    forward, backward = [], []
    for backend in backends(plan.device):
        with torch.nn.attention.sdpa_kernel(backend):
            calls = attention_calls(q, k, v, dy)
            try:
                seconds = seconds_of([[call] for call in calls], plan.attention_by, plan.rounds)
            except RuntimeError:  # a backend that this GPU or release has not
                continue
        forward.append(flops / seconds[0])
        backward.append(2.5 * flops / seconds[1])
    return max(forward), max(backward)


def backends(device: torch.device) -> Iterator[Any]:
    names = torch.nn.attention.SDPBackend
    if device.type == "cuda":
        yield names.CUDNN_ATTENTION
    yield names.FLASH_ATTENTION


def attention_calls(q: Tensor, k: Tensor, v: Tensor, dy: Tensor) -> tuple[Call, Call]:
    """Forward without gradients; backward of a forward that is done once, when it is first asked
    for."""
    attend: Callable[..., Tensor] = torch.nn.functional.scaled_dot_product_attention
    kept: list[Tensor] = []
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(q, k, v, is_causal=True)

    def backward() -> Any:
        if not kept:
            kept.append(attend(q, k, v, is_causal=True))
        return torch.autograd.grad(kept[0], inputs, dy, retain_graph=True)

    return forward, backward
