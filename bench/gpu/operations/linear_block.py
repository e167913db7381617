"""A block of Llama's, forward and backward, and the memory that its step takes."""

import copy
import gc
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

import octofold.nn
import torch
from common.measure import Build, measure
from common.run import Run, print_table
from octofold_tool.gpu.measuring import Implementation, relative_error
from torch import Tensor, nn
from torch.nn import functional

from .linear import BFLOAT16, BFLOAT16_COMPILED, Variant, eager_and_compiled, trained, variants

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
        # FP32 has a kernel without all scores in memory, ungrouped.
        grouped = x.dtype != torch.float32
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


def fuse(recipe: str, model: nn.Module) -> None:
    assert isinstance(model, Block)
    model.fuse(recipe)


def all_variants(run: Run) -> Iterator[Variant]:
    """Those of layers, and blocks whose norms and MLP are fused with their casts, of recipes that
    keep no state."""
    yield from variants(run.options)
    for recipe in run.options.recipes:
        if not octofold.nn.recipes.NAMED[recipe].keeps_state:
            name = f"octofold {recipe}, fused"
            yield from eager_and_compiled(name, partial(fuse, recipe), recipe, run.options)


def new_block(sizes: BlockSizes, device: torch.device) -> Block:
    """Weights normal, so that the branches have about the size of the residual."""
    with device:
        block = Block(sizes)
    for parameter in block.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return block.to(torch.bfloat16)


def operands(
    tokens: int, sequence: int, hidden: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """x and dy. What a step reads and writes besides is far larger than any L2 cache."""
    shape = (tokens // sequence, sequence, hidden)
    x = torch.randn(shape, device=device).bfloat16().requires_grad_()
    return x, (1e-3 * torch.randn(shape, device=device)).bfloat16()


def errors_of(model: nn.Module, x: Tensor, dy: Tensor, exact: list[Tensor]) -> dict[str, float]:
    """Returns errors of the output without the residual, of dx without dy and of the weights'
    gradients (the worst), against the same block in FP32."""
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
    """Measures memory of one step after others, gradients and casts of changed weights included."""
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


def measure_block(run: Run, tokens: int) -> None:
    """Forward and backward of a step, and its memory."""
    size, sequence = LLAMA_8B if run.on_gpu else TINY, run.options.sequence or tokens
    block = new_block(size, run.device)
    x, dy = operands(tokens, sequence, size.hidden, run.device)
    exact = exact_branches(block, x, dy)
    models: dict[str, nn.Module] = {}

    def make(variant: Variant) -> Implementation:
        model = models[variant.name] = variant.build(block)
        return Implementation(
            [partial(trained, model, x, dy)],
            lambda: errors_of(model, x, dy, exact),
            *(FP8_ERRORS if variant.is_fp8 else BFLOAT16_ERRORS),
        )

    case = f"{size}, {tokens} tokens in sequences of {sequence}, forward + backward"
    chosen = list(all_variants(run))
    baseline = BFLOAT16 if run.options.no_compiled else BFLOAT16_COMPILED
    builds = [Build(variant.name, partial(make, variant), variant.is_ours) for variant in chosen]
    found = measure(run, "block", case, builds, baseline, tokens=tokens, sequence=sequence)
    if not run.on_gpu:
        return
    rows = []
    for name in found:
        memory = memory_of(models[name], x, dy)
        run.record("memory", name=name, tokens=tokens, sequence=sequence, **asdict(memory))
        rows.append([name, *(f"{b / 2**20:.0f}" for b in (memory.kept, memory.peak))])
    print_table(f"Memory of {case}", ["", "MiB kept", "MiB at the peak"], rows)
