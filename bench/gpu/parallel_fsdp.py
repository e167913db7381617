"""Training steps under FSDP2, by what its gathers move:

    torchrun --nproc-per-node 2 bench/gpu/parallel_fsdp.py [RESULTS.jsonl] [--tokens 2048 8192]
    torchrun --nproc-per-node 2 bench/gpu/parallel_fsdp.py --compiled --torchao

The model is so many layers of Llama-3-8B (4096 features, 32 heads on 8, 14336 inside), without
rotary positions and embeddings, each one an FSDP unit. A step is forward and backward of a rank's
tokens, in sequences of at most 4096, without the optimizer. By turns:

    BF16                     torch's layers
    blockwise, BF16 gathers  Octofold's FP8 layers, whose weights are gathered as they are
    blockwise, FP8 gathers   the same, gathered as codes; the results have to have the same bits
    tensorwise, FP8 gathers
    torchao, BF16 gathers    tensorwise, with --torchao
    torchao, FP8 gathers     the same with enable_fsdp_float8_all_gather; its scales of all weights
                             are computed at the end of a step

--compiled compiles each layer, of all of them. GB is what a rank receives of weights in a step.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import octofold
import torch
import torch.distributed as dist
from common.operands import relative_error
from common.ranks import DEVICE, Report, interleaved, ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention, silu

BF16 = "BF16"
KINDS = (BF16, "blockwise, BF16 gathers", "blockwise, FP8 gathers", "tensorwise, FP8 gathers")
OF_TORCHAO = ("torchao, BF16 gathers", "torchao, FP8 gathers")
SEQUENCE = 4096
WORST = 0.12  # the relative error of a result of FP8 layers beside BF16's


class Layer(nn.Module):
    """A layer like Llama's: attention of grouped heads, and a gated MLP."""

    def __init__(self, hidden: int, inner: int, head: int) -> None:
        super().__init__()
        self.heads, self.pairs = hidden // head, max(hidden // head // 4, 1)
        self.head = head
        of_pairs = self.pairs * head
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.queries = nn.Linear(hidden, hidden, bias=False)
        self.keys, self.values = (nn.Linear(hidden, of_pairs, bias=False) for _ in range(2))
        self.output = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention_norm(x)
        queries, keys, values = (
            projection(y).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for projection in (self.queries, self.keys, self.values)
        )
        y = scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        x = x + self.output(y.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


def model_of(kind: str, options: argparse.Namespace) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = options.hidden, options.inner, options.head
    dtype = getattr(torch, options.parameters)
    model = nn.Sequential(*(Layer(*sizes) for _ in range(options.layers))).to(DEVICE, dtype)
    in_fp8 = kind.endswith("FP8 gathers")
    if kind in OF_TORCHAO:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig(enable_fsdp_float8_all_gather=in_fp8)
        convert_to_float8_training(model, config=config)
    elif kind != BF16:
        octofold.nn.convert(model, kind.split(",")[0], force_fp8=True, fsdp_fp8=in_fp8)
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model:
        if options.compiled:
            layer.compile(dynamic=False)  # other numbers of tokens are compiled anew
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def end_of_step(kind: str, model: nn.Module) -> Callable[[], Any]:
    """Returns the call that comes between the optimizer and the next step."""
    if kind != "torchao, FP8 gathers":
        return lambda: None
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    return partial(precompute_float8_dynamic_scale_for_fsdp, model)


def step(model: nn.Module, x: Tensor, end: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    """y, and the gradient by x."""
    x = x.detach().requires_grad_()
    y = model(x)
    y.backward(y.detach())
    model.zero_grad()
    end()
    assert x.grad is not None
    return y.detach(), x.grad


def require_same_bits(
    calls: Mapping[str, Callable[[], tuple[Tensor, Tensor]]], case: str, report: Report
) -> None:
    """Requires the same bits of both gathers of blockwise layers, with attention that adds in one
    order: the fast kernels do not, backward."""
    kinds = [f"blockwise, {gathers} gathers" for gathers in (BF16, "FP8")]
    with sdpa_kernel(SDPBackend.MATH):
        found = [calls[kind]() for kind in kinds]
    for name, wanted, actual in zip(("y", "dx"), *found, strict=True):
        error = relative_error(actual, wanted)
        report.require(torch.equal(actual, wanted), f"{case}: {name} of {kinds[1]} by {error}")


def gigabytes(kind: str, model: nn.Module) -> float:
    """Gigabytes of weights, forward and backward, that a rank receives."""
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    size = 2.0
    if kind.endswith("FP8 gathers"):
        size = 1 + 4 / 128**2 if kind.startswith("blockwise") else 1
    return 2 * weights * size * (1 - 1 / dist.get_world_size()) / 1e9


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--tokens", type=int, nargs="+", default=(2048, 8192), help="of a rank")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=14336)
    parser.add_argument("--head", type=int, default=128)
    parser.add_argument("--parameters", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--torchao", action="store_true", help="measure torchao, too")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    with ranks(options.results) as report:
        kinds = KINDS + (OF_TORCHAO if options.torchao else ())
        models = {kind: model_of(kind, options) for kind in kinds}
        for kind, model in models.items():
            report.line(f"  {kind:<24} {gigabytes(kind, model):6.2f} GB")
        for tokens in options.tokens:
            length = min(tokens, SEQUENCE)
            shape = tokens // length, length, options.hidden
            x = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
            calls = {
                kind: partial(step, model, x, end_of_step(kind, model))
                for kind, model in models.items()
            }
            results = {kind: call() for kind, call in calls.items()}
            for kind, found in results.items():
                errors = map(relative_error, found, results[BF16])
                report.require(max(errors) < WORST, f"{kind}, {tokens} tokens")
            if not options.compiled:  # a compiler rounds what it fuses in another order
                require_same_bits(calls, f"{tokens} tokens", report)
            del results
            how = "compiled" if options.compiled else "eager"
            case = f"{tokens} tokens, {how}, {options.parameters}"
            report.times("fsdp", case, interleaved(calls, options.rounds), BF16)


if __name__ == "__main__":
    main()
