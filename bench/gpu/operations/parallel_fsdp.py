"""Training steps under FSDP2, by what its gathers move:

    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_fsdp RESULTS.jsonl [--tokens 2048 8192]
    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_fsdp RESULTS.jsonl --compiled --torchao

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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import octofold
import torch
import torch.distributed as dist
from common.models import LlamaBlock
from common.ranks import DEVICE, RankRun, interleaved
from octofold_tool.gpu.measuring import relative_error
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

ROUNDS, SECONDS, ON_RANKS = 15, 540, True
BF16 = "BF16"
KINDS = (BF16, "blockwise, BF16 gathers", "blockwise, FP8 gathers", "tensorwise, FP8 gathers")
OF_TORCHAO = ("torchao, BF16 gathers", "torchao, FP8 gathers")
SEQUENCE = 4096
WORST = 0.12  # the relative error of a result of FP8 layers beside BF16's


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", type=int, nargs="+", default=(2048, 8192), help="of a rank")
    add("--layers", type=int, default=4)
    add("--hidden", type=int, default=4096)
    add("--inner", type=int, default=14336)
    add("--head", type=int, default=128)
    add("--compiled", action="store_true")
    add("--torchao", action="store_true", help="measure torchao, too")


def model_of(kind: str, options: argparse.Namespace) -> nn.Sequential:
    torch.manual_seed(0)
    heads = options.hidden // options.head
    sizes = options.hidden, heads, max(heads // 4, 1), options.inner
    model = nn.Sequential(*(LlamaBlock(*sizes) for _ in range(options.layers))).to(
        DEVICE, torch.bfloat16
    )
    in_fp8 = kind.endswith("FP8 gathers")
    if kind in OF_TORCHAO:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig(enable_fsdp_float8_all_gather=in_fp8)
        convert_to_float8_training(model, config=config)
    elif kind != BF16:
        octofold.nn.convert(model, kind.split(",")[0], force_fp8=True)
        if in_fp8:
            octofold.distributed.gather_in_fp8(model)
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
    return y.detach(), x.grad


def require_same_bits(
    calls: Mapping[str, Callable[[], tuple[Tensor, Tensor]]], case: str, run: RankRun
) -> None:
    """Requires the same bits of both gathers of blockwise layers, with attention that adds in one
    order: the fast kernels do not, backward."""
    kinds = [f"blockwise, {gathers} gathers" for gathers in (BF16, "FP8")]
    with sdpa_kernel(SDPBackend.MATH):
        found = [calls[kind]() for kind in kinds]
    for name, wanted, actual in zip(("y", "dx"), *found, strict=True):
        error = relative_error(actual, wanted)
        run.require(torch.equal(actual, wanted), f"{case}: {name} of {kinds[1]} by {error}")


def gigabytes(kind: str, model: nn.Module) -> float:
    """Gigabytes of weights, forward and backward, that a rank receives."""
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    size = 2.0
    if kind.endswith("FP8 gathers"):
        size = 1 + 4 / 128**2 if kind.startswith("blockwise") else 1
    return 2 * weights * size * (1 - 1 / dist.get_world_size()) / 1e9


def cases(run: RankRun) -> Iterator[tuple[Mapping[str, nn.Module], int]]:
    kinds = KINDS + (OF_TORCHAO if run.options.torchao else ())
    models = {kind: model_of(kind, run.options) for kind in kinds}
    for kind, model in models.items():
        run.line(f"  {kind:<24} {gigabytes(kind, model):6.2f} GB")
    for tokens in run.options.tokens:
        yield models, tokens


def measure(run: RankRun, case: tuple[Mapping[str, nn.Module], int]) -> None:
    (models, tokens), options = case, run.options
    length = min(tokens, SEQUENCE)
    shape = tokens // length, length, options.hidden
    x = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    calls = {
        kind: partial(step, model, x, end_of_step(kind, model)) for kind, model in models.items()
    }
    results = {kind: call() for kind, call in calls.items()}
    for kind, found in results.items():
        errors = map(relative_error, found, results[BF16])
        run.require(max(errors) < WORST, f"{kind}, {tokens} tokens")
    if not options.compiled:  # a compiler rounds what it fuses in another order
        require_same_bits(calls, f"{tokens} tokens", run)
    del results
    how = "compiled" if options.compiled else "eager"
    title = f"{tokens} tokens, {how}"
    run.times("fsdp", title, interleaved(calls, run.rounds), BF16)
