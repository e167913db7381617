"""A block of Llama's, forward and backward, and the memory that its step takes."""

import copy
import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from octofold_tool.gpu.timing import Call
from torch import Tensor, nn
from torch.nn import functional

from .checks import Wrong, relative_error
from .layers import Operands, first_line, on_gpu, release
from .results import Results, times_faster
from .sampling import sampler_of, timings
from .ways import BFLOAT16, BFLOAT16_COMPILED, Way, trained, weights_changed

FP8_LIMIT = 0.15  # of the block against the same in BF16; it has a few products in a row


@dataclass(frozen=True)
class BlockSizes:
    hidden: int = 4096
    heads: int = 32
    key_value_heads: int = 8
    inner: int = 14336  # of the MLP


LLAMA_8B = BlockSizes()
TINY = BlockSizes(256, 4, 2, 512)


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class Block(nn.Module):
    """x [sequences, tokens, hidden]. Norm, grouped attention, residual; norm, SwiGLU, residual."""

    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        head = sizes.hidden // sizes.heads
        self.heads = [count * head for count in (sizes.heads, *[sizes.key_value_heads] * 2)]
        self.head = head
        self.attention_norm, self.mlp_norm = RMSNorm(sizes.hidden), RMSNorm(sizes.hidden)
        self.qkv = nn.Linear(sizes.hidden, sum(self.heads), bias=False)
        self.output = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.gate_up = nn.Linear(sizes.hidden, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.attention_norm(x)).split(self.heads, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def new_block(sizes: BlockSizes, device: torch.device) -> Block:
    with device:
        return Block(sizes).to(torch.bfloat16)


def operands(tokens: int, sequence: int, hidden: int, device: torch.device) -> Operands:
    """x and dy. What a step reads and writes besides is far larger than any L2 cache."""
    shape = (tokens // sequence, sequence, hidden)
    x = torch.randn(shape, device=device).bfloat16().requires_grad_()
    return x, (1e-3 * torch.randn(shape, device=device)).bfloat16()


def errors_of(way: Way, model: nn.Module, x: Tensor, dy: Tensor, exact: list[Tensor]) -> dict:
    """Of the output without the residual, of dx without dy and of the weights' gradients (the
    worst), against the same block in FP32."""
    y, gradients = trained(model, x, dy)
    results = branches(x, dy, y, gradients)
    errors = [relative_error(a, e.double()) for a, e in zip(results, exact, strict=True)]
    limit = FP8_LIMIT if way.is_fp8 else FP8_LIMIT / 5
    if not max(errors) <= limit:
        raise Wrong(f"{way.name}: block: relative errors {errors} exceed {limit}")
    return {"y": errors[0], "dx": errors[1], "dw": max(errors[2:])}


def branches(x: Tensor, dy: Tensor, y: Tensor, gradients: tuple[Tensor, ...]) -> list[Tensor]:
    dx, *rest = gradients
    return [(y.float() - x.float()).detach(), dx.float() - dy.float(), *rest]


def exact_branches(block: Block, x: Tensor, dy: Tensor) -> list[Tensor]:
    """By the same block in FP32."""
    wide = copy.deepcopy(block).float()
    x32 = x.detach().float().requires_grad_()
    y, gradients = trained(wide, x32, dy.float())
    return branches(x32, dy, y, gradients)


@dataclass(frozen=True)
class Memory:
    """Bytes on the GPU; weights and x are there before."""

    kept: int  # between forward and backward, the output included
    peak: int  # of the step, beyond what was there before


def memory_of(model: nn.Module, x: Tensor, dy: Tensor) -> Memory:
    """Of one step after others, gradients and casts of changed weights included."""
    parameters = [x, *model.parameters()]
    for module in model.modules():
        if hasattr(module, "forget_casts"):
            module.forget_casts()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = model(x)
    kept = torch.cuda.memory_allocated() - before
    gradients = torch.autograd.grad(y, parameters, dy)
    peak = torch.cuda.max_memory_allocated() - before
    del y, gradients
    return Memory(kept, peak)


def measure_block(
    sizes: BlockSizes,
    tokens: int,
    sequence: int,
    ways: Sequence[Way],
    device: torch.device,
    results: Results,
) -> None:
    """Forward and backward of a step, and its memory."""
    block = new_block(sizes, device)
    x, dy = operands(tokens, sequence, sizes.hidden, device)
    exact = exact_branches(block, x, dy)
    models: dict[Way, nn.Module] = {}
    facts: dict[Way, dict[str, float]] = {}
    for way in ways:
        results.check_time()
        try:
            model = way.build(block)
            errors = errors_of(way, model, x, dy, exact)
        except Wrong:
            raise
        except Exception as error:
            if way.recipe is not None or not way.is_fp8:
                raise
            results.add("missing", way=way.name, block=True, reason=first_line(error))
            continue
        models[way] = model
        facts[way] = errors
    del exact

    def step(model: nn.Module) -> Call:
        def call() -> object:
            weights_changed(model)
            return trained(model, x, dy)

        return call

    results.check_time()
    samplers = [sampler_of([step(model)], device) for model in models.values()]
    measured = dict(zip(models, timings(samplers, results.rounds), strict=True))
    del samplers
    release_graphs(device)
    memories = {way: memory_of(models[way], x, dy) for way in models} if on_gpu(device) else {}
    baseline = next(
        (
            measured[way]
            for name in (BFLOAT16_COMPILED, BFLOAT16)
            for way in measured
            if way.name == name
        ),
    )
    rows = []
    for way, timing in measured.items():
        memory = memories.get(way)
        results.add(
            "block",
            way=way.name,
            tokens=tokens,
            sequence=sequence,
            **asdict(timing),
            over_bf16=baseline.microseconds / timing.microseconds,
            errors=facts[way],
            memory=asdict(memory) if memory else None,
        )
        errors = facts[way]
        rows.append(
            [
                way.name,
                f"{timing.microseconds:.0f}",
                f"{timing.spread:.1%}",
                times_faster(baseline.microseconds, timing.microseconds),
                *(f"{errors[name]:.1e}" for name in ("y", "dx", "dw")),
                *([f"{b / 2**20:.0f}" for b in (memory.kept, memory.peak)] if memory else "——"),
            ]
        )
    title = f"A block of {sizes}, {tokens} tokens in sequences of {sequence}, forward + backward"
    columns = ["way", "µs", "±", "× BF16", "error of y", "dx", "dw", "MiB kept", "MiB at the peak"]
    results.table(title, columns, rows)
    models.clear()
    release(device)


def release_graphs(device: torch.device) -> None:
    gc.collect()
    if on_gpu(device):
        torch.cuda.empty_cache()
