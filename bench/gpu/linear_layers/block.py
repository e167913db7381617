"""A block of Llama's, forward and backward, and the memory that its step takes."""

import copy
import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import octofold.nn
import torch
from octofold_tool.gpu.timing import Call
from torch import Tensor, nn
from torch.nn import functional

from .checks import relative_error, require_right
from .layers import Operands, on_gpu, release
from .results import Results, times_faster
from .sampling import timings
from .ways import BFLOAT16, BFLOAT16_COMPILED, Way, trained

BFLOAT16_ERRORS = (0.05, 0.0)
FP8_ERRORS = (0.25, 2e-2)  # a few products in a row


@dataclass(frozen=True)
class BlockSizes:
    hidden: int = 4096
    heads: int = 32
    key_value_heads: int = 8
    inner: int = 14336  # of the MLP


LLAMA_8B = BlockSizes()
TINY = BlockSizes(256, 4, 2, 512)


class Block(nn.Module):
    """x [sequences, tokens, hidden]. Norm, grouped attention, residual; norm, SwiGLU, residual."""

    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        head = sizes.hidden // sizes.heads
        self.heads = [count * head for count in (sizes.heads, *[sizes.key_value_heads] * 2)]
        self.head = head
        self.attention_norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.mlp_norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.qkv = nn.Linear(sizes.hidden, sum(self.heads), bias=False)
        self.output = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.gate_up = nn.Linear(sizes.hidden, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)
        self.fused_qkv: nn.Module | None = None
        self.fused_mlp: nn.Module | None = None

    def fuse(self, recipe: str) -> None:
        """Norms and MLP as Octofold's modules, of the same parameters in the same order."""
        octofold.nn.convert(self, recipe, force_fp8=True)
        self.fused_qkv = octofold.nn.NormLinear.from_modules(self.attention_norm, self.qkv)
        layers = self.gate_up, self.down
        self.fused_mlp = octofold.nn.MLP.from_linears(*layers, norm=self.mlp_norm)

    def forward(self, x: Tensor) -> Tensor:
        fused = self.fused_qkv
        qkv = self.qkv(self.attention_norm(x)) if fused is None else fused(x)
        parts = qkv.split(self.heads, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        grouped = (
            x.dtype != torch.float32
        )  # FP32 has a kernel without all scores in memory, ungrouped
        if not grouped:
            repeats = q.shape[1] // k.shape[1]
            k, v = (part.repeat_interleave(repeats, dim=1) for part in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        mixed = self.output(mixed.transpose(1, 2).flatten(-2))
        if self.fused_mlp is not None:
            y, x = self.fused_mlp(mixed, x)
            return x + y
        x = x + mixed
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def fused_ways(recipes: Sequence[str], eager: bool, compiled: bool) -> list[Way]:
    """Blocks whose norms and MLP are fused with their casts, of recipes that keep no state."""

    def fuse(recipe: str) -> Callable[[nn.Module], None]:
        def convert(model: nn.Module) -> None:
            assert isinstance(model, Block)
            model.fuse(recipe)

        return convert

    chosen = []
    for recipe in recipes:
        if octofold.nn.recipes.NAMED[recipe].keeps_state:
            continue
        name = f"octofold {recipe}, fused"
        if eager:
            chosen.append(Way(name, fuse(recipe), False, recipe))
        if compiled:
            chosen.append(Way(f"{name} compiled", fuse(recipe), True, recipe))
    return chosen


def new_block(sizes: BlockSizes, device: torch.device) -> Block:
    """Weights normal, so that the branches have about the size of the residual."""
    with device:
        block = Block(sizes)
    for parameter in block.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return block.to(torch.bfloat16)


def operands(tokens: int, sequence: int, hidden: int, device: torch.device) -> Operands:
    """x and dy. What a step reads and writes besides is far larger than any L2 cache."""
    shape = (tokens // sequence, sequence, hidden)
    x = torch.randn(shape, device=device).bfloat16().requires_grad_()
    return x, (1e-3 * torch.randn(shape, device=device)).bfloat16()


def errors_of(model: nn.Module, x: Tensor, dy: Tensor, exact: list[Tensor]) -> dict[str, float]:
    """Of the output without the residual, of dx without dy and of the weights' gradients (the
    worst), against the same block in FP32."""
    results = branches(x, dy, *trained(model, x, dy))
    errors = [relative_error(a, e.double()) for a, e in zip(results, exact, strict=True)]
    return {"y": errors[0], "dx": errors[1], "dw": max(errors[2:])}


def branches(x: Tensor, dy: Tensor, y: Tensor, gradients: tuple[Tensor, ...]) -> list[Tensor]:
    dx, *rest = gradients
    return [(y.float() - x.float()).detach(), dx.float() - dy.float(), *rest]


def exact_branches(block: Block, x: Tensor, dy: Tensor) -> list[Tensor]:
    """By the same block in FP32."""
    wide = copy.deepcopy(block).float()
    x32 = x.detach().float().requires_grad_()
    return branches(x32, dy, *trained(wide, x32, dy.float()))


@dataclass(frozen=True)
class Memory:
    """Bytes on the GPU; weights and x are there before."""

    kept: int  # between forward and backward, the output included
    peak: int  # of the step, beyond what was there before


def memory_of(model: nn.Module, x: Tensor, dy: Tensor) -> Memory:
    """Of one step after others, gradients and casts of changed weights included."""
    parameters = [x, *model.parameters()]
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
    errors_by_way: dict[Way, dict[str, float]] = {}
    for way in ways:
        results.check_time()
        try:
            model = way.build(block)
            errors = errors_of(model, x, dy, exact)
            results.add("errors", way=way.name, block=True, **errors)
            require_right(errors, *(FP8_ERRORS if way.is_fp8 else BFLOAT16_ERRORS))
        except Exception as error:
            results.leave_out(way.name, way.is_ours, error, block=True)
            continue
        models[way] = model
        errors_by_way[way] = errors
    del exact

    def step(model: nn.Module) -> Call:
        def call() -> object:
            return trained(model, x, dy)

        return call

    results.check_time()
    steps = [[step(model)] for model in models.values()]
    measured = dict(zip(models, timings(steps, device, results.rounds), strict=True))
    gc.collect()
    memories = {way: memory_of(models[way], x, dy) for way in models} if on_gpu(device) else {}
    by_name = {way.name: timing for way, timing in measured.items()}
    baseline = by_name.get(BFLOAT16_COMPILED) or by_name[BFLOAT16]
    rows = []
    for way, timing in measured.items():
        memory, errors = memories.get(way), errors_by_way[way]
        results.add(
            "block",
            way=way.name,
            tokens=tokens,
            sequence=sequence,
            **asdict(timing),
            over_bf16=baseline.microseconds / timing.microseconds,
            errors=errors,
            memory=asdict(memory) if memory else None,
        )
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
