"""Linear layers and gated MLPs over ranks: by torch's own styles, eager and compiled, and with its
overlap of products and collectives ("async TP"), which inductor makes or which is called directly.

Gate and up are one matrix and tokens are split along the first of two dimensions: of this torch
2.11 fuses all collectives, of the gather and the scatter in forward and of those in backward. Of
two matrices it does not: in backward the sum of two products stands before one scatter, or each has
a gather and a scatter of its own."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement
from torch.nn import functional


class GatedMLP(nn.Module):
    """SwiGLU. Each rank has its rows of gate, and those of up below them."""

    def __init__(self, gate_up: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone())
    return layer


def by_ranks(gate_up: Tensor, ranks: int) -> Tensor:
    """[gate; up] in the order of ranks: a rank's equal part of the rows has its rows of both."""
    return gate_up.unflatten(0, (2, ranks, -1)).transpose(0, 1).flatten(0, 2)


def column(weight: Tensor, mesh: DeviceMesh, tokens: Placement) -> nn.Module:
    style = ColwiseParallel(input_layouts=tokens)
    return parallelize_module(linear(weight), mesh, style)


def row(weight: Tensor, mesh: DeviceMesh, tokens: Placement) -> nn.Module:
    style = RowwiseParallel(output_layouts=tokens)
    return parallelize_module(linear(weight), mesh, style)


def mlp(gate_up: Tensor, down: Tensor, mesh: DeviceMesh, tokens: Placement) -> nn.Module:
    return GatedMLP(column(by_ranks(gate_up, mesh.size()), mesh, tokens), row(down, mesh, tokens))


def compiled(model: nn.Module, overlap: bool = False) -> Any:
    """overlap: fuse products with the collectives beside them. enable_overlap() comes before."""
    # The hooks of a module's styles are compiled with it only if it is within another.
    within = nn.Sequential(model)
    options: dict[str, Any] | None = {"_micro_pipeline_tp": True} if overlap else None
    return torch.compile(within, dynamic=False, fullgraph=True, options=options)


def enable_overlap(mesh: DeviceMesh) -> str:
    """Symmetric memory for the mesh's group, whose name is returned. Without it inductor fuses
    nothing, also where the call is deprecated."""
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    name = mesh.get_group().group_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        enable_symm_mem_for_group(name)
    return name


class _GatherProduct(torch.autograd.Function):
    """all tokens · weightᵀ"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: str) -> Tensor:
        rows, (y,) = torch.ops.symm_mem.fused_all_gather_matmul(x, [weight.T], 0, group)
        ctx.save_for_backward(rows, weight)
        ctx.group = group
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (dy,) = gradients
        rows, weight = ctx.saved_tensors
        dy = dy.contiguous()
        dx = torch.ops.symm_mem.fused_matmul_reduce_scatter(dy, weight, "sum", 0, ctx.group)
        return dx, dy.T @ rows, None


class _ProductScatter(torch.autograd.Function):
    """The rank's tokens of the sum of x · weightᵀ over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight.T, "sum", 0, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (dy,) = gradients
        x, weight = ctx.saved_tensors
        shard = dy.contiguous()
        rows, (dx,) = torch.ops.symm_mem.fused_all_gather_matmul(shard, [weight], 0, ctx.group)
        return dx, rows.T @ x, None


class OverlappedLinear(nn.Module):
    """A parallel layer of torch's, of the same parameter, whose tokens are split."""

    def __init__(self, layer: Any, group: str, scatters: bool) -> None:
        super().__init__()
        self.weight, self.group = nn.Parameter(layer.weight.to_local()), group
        self.product = _ProductScatter if scatters else _GatherProduct

    def forward(self, x: Tensor) -> Tensor:
        return self.product.apply(x, self.weight, self.group)


def overlapped(model: nn.Module, kind: str, group: str) -> nn.Module:
    """A "column", "row" or "mlp" from above, by torch's overlapped products."""
    if isinstance(model, GatedMLP):
        gate_up, down = model.gate_up, model.down
        return GatedMLP(
            OverlappedLinear(gate_up, group, False), OverlappedLinear(down, group, True)
        )
    return OverlappedLinear(model, group, kind == "row")
