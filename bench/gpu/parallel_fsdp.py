"""Training steps under FSDP2, weights gathered as they are and in FP8:

    torchrun --nproc-per-node 2 bench/gpu/fsdp.py [--tokens 2048 8192] [--layers 4]

A layer is an attention's projections and an MLP of Llama-3-8B (4096, 14336), without the attention
itself. Weights are BF16. Three models take turns: torch's layers in BF16, FP8 layers whose weights
are gathered in BF16, and those that are gathered in FP8; the results of the latter two have to have
the same bits. The table has milliseconds of a step without the optimizer, the median of rounds on
the slowest rank, and the bytes that a rank receives for weights in a step.
"""

import argparse
import os
import statistics

import octofold
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

HIDDEN, INNER = 4096, 14336


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        options = {"bias": False, "device": "cuda", "dtype": torch.bfloat16}
        self.qkv = torch.nn.Linear(HIDDEN, HIDDEN + 2048, **options)
        self.output = torch.nn.Linear(HIDDEN, HIDDEN, **options)
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * INNER, **options)
        self.down = torch.nn.Linear(INNER, HIDDEN, **options)

    def forward(self, x):
        x = x + self.output(self.qkv(x)[..., :HIDDEN])
        gate, up = self.gate_up(x).chunk(2, -1)
        return x + self.down(torch.nn.functional.silu(gate) * up)


def model_of(kind, layers):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Layer() for _ in range(layers)))
    if kind != "bfloat16":
        octofold.nn.convert(model, force_fp8=True, fsdp_fp8=kind == "fp8 gathers")
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def step(model, x):
    y = model(x)
    y.backward(x)
    model.zero_grad()
    return y


def milliseconds(model, x):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    begin.record()
    step(model, x)
    end.record()
    torch.cuda.synchronize()
    slowest = torch.tensor(begin.elapsed_time(end), device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=(2048, 8192), help="of a rank")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    kinds = "bfloat16", "bf16 gathers", "fp8 gathers"
    models = {kind: model_of(kind, options.layers) for kind in kinds}
    weights = sum(parameter.numel() for parameter in models["bfloat16"].parameters())
    others = (dist.get_world_size() - 1) / dist.get_world_size()
    for tokens in options.tokens:
        x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        results = {kind: step(model, x) for kind, model in models.items()}
        assert torch.equal(results["bf16 gathers"], results["fp8 gathers"])
        for model in models.values():
            step(model, x)
        times = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            for kind, model in models.items():
                times[kind].append(milliseconds(model, x))
        if dist.get_rank() == 0:
            found = {kind: statistics.median(some) for kind, some in times.items()}
            for kind, time in found.items():
                each = 1 + 4 / 128**2 if kind == "fp8 gathers" else 2
                gathered = 2 * weights * others * each / 1e9
                speed = found["bfloat16"] / time
                print(f"{tokens:6} {kind:13} {time:8.2f} ms {speed:5.2f} × BF16 {gathered:6.2f} GB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
