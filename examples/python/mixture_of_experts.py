"""The experts of a mixture-of-experts layer in FP8: choose, compute, go back, and hold all of it
against a plain loop over experts.

    python examples/python/mixture_of_experts.py                       # Qwen3-30B-A3B's experts
    python examples/python/mixture_of_experts.py --model deepseek-v3 --tokens 4096
    python examples/python/mixture_of_experts.py --model mixtral-8x7b --recipe rowwise

On a GPU the layer is the model's; then it also runs in a CUDA graph whose routing changes between
replays. On the CPU it has fewer experts and tokens, to take seconds.
"""

import argparse
from dataclasses import dataclass, replace

import octofold
import octofold.nn
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Configuration:
    experts: int
    top_k: int
    hidden: int
    inner: int
    scoring: str = "softmax"
    groups: int = 1  # of experts, of which the best few are chosen from
    top_groups: int = 1
    scaling_factor: float = 1.0

    def choose(self, logits: Tensor) -> octofold.ops.TopK:
        return octofold.ops.top_k(
            logits,
            self.top_k,
            scoring=self.scoring,
            normalize=True,
            groups=self.groups,
            top_groups=self.top_groups,
            scaling_factor=self.scaling_factor,
        )


MODELS = {
    "qwen3-30b-a3b": Configuration(128, 8, 2048, 768),
    "mixtral-8x7b": Configuration(8, 2, 4096, 14336),
    "deepseek-v3": Configuration(
        256, 8, 7168, 2048, "sigmoid", groups=8, top_groups=4, scaling_factor=2.5
    ),
}


def loop_over_experts(x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """Computes what the layer does, in FP32, one expert after another."""
    y = torch.zeros_like(x, dtype=torch.float32)
    for expert in ids.unique().tolist():
        tokens, slots = torch.where(ids == expert)
        gate, up = functional.linear(x[tokens].float(), w13[expert].float()).chunk(2, dim=-1)
        rows = functional.linear(functional.silu(gate) * up, w2[expert].float())
        y = y.index_add(0, tokens, rows * weights[tokens, slots, None])
    return y


@torch.no_grad()
def relative_error(got: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.norm(got.float() - expected) / torch.linalg.norm(expected))


def in_a_graph(
    layer: octofold.nn.Experts, model: Configuration, logits: Tensor, x: Tensor
) -> float:
    """Captures choice and experts, gives the graph other tokens to route, and returns how far its
    result is from the eager one's: nowhere."""
    with torch.no_grad():
        layer(x, *model.choose(logits))  # compiles kernels, casts weights
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = layer(x, *model.choose(logits))
        logits.copy_(torch.randn_like(logits))
        graph.replay()
        return float((captured - layer(x, *model.choose(logits))).abs().max())


def draw(errors: dict[str, float], title: str, file: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(list(errors), list(errors.values()), color="#0072b2")
    axes.bar_label(bars, fmt="%.3f", padding=3)
    axes.set(title=title, xlabel="relative error against a loop in FP32", xlim=(0, 0.1))
    axes.invert_yaxis()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="qwen3-30b-a3b")
    parser.add_argument(
        "--experts",
        type=int,
        help="default: the model's; on the CPU four more than a token goes to",
    )
    parser.add_argument("--tokens", type=int, help="default: 1024; on the CPU 32")
    parser.add_argument("--recipe", default="blockwise")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--png", help="where a chart of the errors goes (needs matplotlib)")
    options = parser.parse_args()
    on_gpu = options.device != "cpu"
    model = MODELS[options.model]
    experts = options.experts or (model.experts if on_gpu else model.top_k + 4)
    if experts != model.experts:  # as many of them as there are, in one group
        top_k = min(model.top_k, experts)
        model = replace(model, experts=experts, top_k=top_k, groups=1, top_groups=1)
    tokens = options.tokens or (1024 if on_gpu else 32)

    torch.manual_seed(0)
    torch.set_default_device(options.device)
    x = torch.randn(tokens, model.hidden, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(tokens, model.hidden, dtype=torch.bfloat16)
    w13 = torch.randn(experts, 2 * model.inner, model.hidden, dtype=torch.bfloat16)
    w2 = torch.randn(experts, model.hidden, model.inner, dtype=torch.bfloat16)
    w13 *= model.hidden**-0.5
    w2 *= model.inner**-0.5
    logits = torch.randn(tokens, experts)  # of a router: x · router weightᵀ

    # The experts that each token goes to, and their weights; nothing of it is read by the host.
    ids, weights = model.choose(logits)
    weights.requires_grad_()
    layer = octofold.nn.Experts.from_weights(w13, w2, recipe=options.recipe)
    y = layer(x, ids, weights)
    parameters = (layer.gate_up_proj, layer.down_proj)
    gradients = torch.autograd.grad(y, (x, weights, *parameters), dy)

    counts = torch.bincount(ids.flatten(), minlength=experts)
    print(
        f"{options.model}: {tokens} tokens to {model.top_k} of {experts} experts of "
        f"{model.hidden}×{model.inner}, {int(counts.min())} to {int(counts.max())} each"
    )
    exact = loop_over_experts(x, ids, weights, *parameters)
    errors = {"result": relative_error(y, exact)}
    print(f"relative error against FP32: {errors['result']:.3f}")
    of_loop = torch.autograd.grad(exact, (x, weights, *parameters), dy.float())
    for name, got, expected in zip(("x", "weights", "w13", "w2"), gradients, of_loop, strict=True):
        errors[f"gradient by {name}"] = relative_error(got, expected.float())
        print(f"of the gradient by {name}: {errors[f'gradient by {name}']:.3f}")
    if options.png:
        draw(errors, f"{options.model}, recipe {options.recipe}", options.png)
    if on_gpu:
        difference = in_a_graph(layer, model, logits, x)
        print(f"in a CUDA graph, of other routing: {difference:g} away")


if __name__ == "__main__":
    main()
