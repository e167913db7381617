"""Tensor parallelism on GPUs: bits beside one GPU.

    torchrun --nproc-per-node 2 tests/gpu/tensor_parallel_worker.py

Prints a line for each thing that was checked; the exit code is 1 where bits differ. Each rank
computes the whole layer too, on its own GPU. bench/gpu/run.py parallel_layers measures.
"""

import copy
import os
import sys
from datetime import timedelta

import octofold
import torch
from octofold.distributed import ColumnParallel, ExpertTensorParallel, MLPParallel, RowParallel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

nn = octofold.nn
RECIPES = ("blockwise", "rowwise", "rowwise_with_gw_hp", "tensorwise")
# Results that have the bits of one GPU, where a weight is split by rows.
BITS = {
    "blockwise": ("y", "weight", "bias"),
    "rowwise": ("y", "weight", "bias"),
    "rowwise_with_gw_hp": ("y", "bias"),
}
problems = []


def say(text):
    if torch.distributed.get_rank() == 0:
        print(text, flush=True)


def own(tensor, layout, mesh):
    if isinstance(layout, Replicate):
        return tensor.detach().clone()
    return tensor.detach().chunk(mesh.size(), layout.dim)[mesh.get_local_rank()].contiguous()


def whole_of(gradient):
    """All of it; None of packed rows, which torch 2.11 does not gather."""
    try:
        return gradient.full_tensor()
    except ValueError:
        return None


def beside(words, module, style, inputs, given, gives, mesh, bits=()):
    """A module on one GPU, and made parallel: bits where they are promised, else the error."""
    parallel = parallelize_module(copy.deepcopy(module), mesh, style)
    whole = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in inputs.items()}
    mine = {k: own(v, given, mesh).requires_grad_(v.is_floating_point()) for k, v in inputs.items()}
    y, own_y = module(**whole), parallel(**mine)
    dy = torch.randn_like(y)
    torch.distributed.broadcast(dy, 0)
    y.backward(dy)
    own_y.backward(own(dy, gives, mesh))
    pairs = {"y": (own_y, own(y, gives, mesh))}
    pairs |= {
        k: (mine[k].grad, own(x.grad, given, mesh)) for k, x in whole.items() if x.requires_grad
    }
    found = dict(parallel.named_parameters())
    pairs |= {
        k: (whole_of(found[k].grad), p.grad)
        for k, p in module.named_parameters()
        if p.grad is not None and whole_of(found[k].grad) is not None
    }
    for name, (actual, wanted) in pairs.items():
        error = ((actual - wanted).float().norm() / wanted.float().norm()).item()
        same = torch.equal(actual, wanted)
        ok = same if name in bits else error < 0.12
        if not ok:
            problems.append(f"{words}: {name}: error {error}")
        say(f"  {'ok' if ok else 'WRONG'} {words}: {name}: {'bits' if same else f'{error:.5f}'}")


def bits(mesh):
    torch.manual_seed(7)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(2, 1024, 1024, **options)
    features, split = Shard(-1), Shard(1)
    for recipe in RECIPES:
        torch.manual_seed(8)
        layer = nn.Linear(1024, 2048, recipe=recipe, force_fp8=True, **options)
        for layout in (Replicate(), split):
            style = ColumnParallel(input_layouts=layout)
            words = f"column, {recipe}, {layout}"
            promised = BITS.get(recipe, ())
            beside(words, layer, style, {"input": x}, layout, features, mesh, promised)
            layer.zero_grad()
            style = RowParallel(output_layouts=layout, reduce_dtype=torch.float32)
            words = f"row, {recipe}, {layout}"
            promised = ("weight",) if recipe in ("blockwise", "rowwise") else ()
            beside(words, layer, style, {"input": x}, features, layout, mesh, promised)
            layer.zero_grad()
    torch.manual_seed(9)
    mlp = nn.MLP(1024, 2048, norm="rms", force_fp8=True, **options)
    for layout in (Replicate(), split):
        style = MLPParallel(input_layouts=layout, output_layouts=layout)
        beside(f"mlp, {layout}", mlp, style, {"input": x}, layout, layout, mesh)
        mlp.zero_grad()
    torch.manual_seed(10)
    experts = nn.Experts(1024, 1024, 8, **options)
    weights, ids = torch.randn(2048, 8, device="cuda").softmax(-1).topk(2)
    inputs = {"input": x.flatten(0, 1), "topk_ids": ids.int(), "topk_weights": weights}
    for layout in (Replicate(), Shard(0)):
        style = ExpertTensorParallel(input_layouts=layout, output_layouts=layout)
        beside(f"experts, {layout}", experts, style, inputs, layout, layout, mesh)
        experts.zero_grad()
    for kind in (nn.InferenceLinear, nn.WeightOnlyLinear):
        for sizes in ((2112, 768), (1024, 2112)):
            torch.manual_seed(11)
            layer = kind.from_linear(torch.nn.Linear(*sizes, bias=False, **options))
            x = torch.randn(64, sizes[0], **options)
            words = f"{kind.__name__} {sizes}"
            beside(words, layer, ColumnParallel(), {"input": x}, Replicate(), features, mesh)
            beside(words, layer, RowParallel(), {"input": x}, features, Replicate(), mesh)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl", timeout=timedelta(seconds=120))
    mesh = init_device_mesh("cuda", (torch.distributed.get_world_size(),), mesh_dim_names=("tp",))
    say(f"{mesh.size()} x {torch.cuda.get_device_name()}, torch {torch.__version__}")
    bits(mesh)
    for problem in problems:
        say(f"WRONG: {problem}")
    torch.distributed.destroy_process_group()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
