"""What it costs that each forward casts its weights anew: of a step of octofold.nn.Linear the share
that the weight's casts take on the GPU, and what they take of the host.

    python measure_weight_casts.py [--rounds 15]

On the GPU: CUDA graphs of a step (forward and backward, casts included), of the weight's casts
alone, and of a BF16 step, in turns; operands are in several copies, so that none comes from the L2
cache. Of the host: eager steps of a small layer, as they come and in keep_casts(), in turns. What
is timed is first compared: gradients with and without kept casts have the same bits, and results
the error of FP8.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import octofold
import torch
from linear_bench.sampling import timings
from octofold.nn.casts import cast_weight
from octofold.nn.recipes import recipe_of
from torch import Tensor

RECIPES = ("blockwise", "rowwise", "tensorwise")
SHAPES = ((8192, 4096, 4096), (8192, 14336, 4096), (2048, 4096, 4096), (16384, 2048, 2048))
COPIES = 4
CALLS = 200


def step(layer: torch.nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    y = layer(x)
    return y, *torch.autograd.grad(y, (x, *layer.parameters()), dy)


def layers_of(recipe: str, tokens: int, out: int, features: int, count: int) -> list[tuple]:
    made = []
    for _ in range(count):
        plain = torch.nn.Linear(features, out, False, "cuda", torch.bfloat16)
        layer = octofold.nn.Linear.from_linear(plain, recipe, force_fp8=True)
        x = torch.randn(tokens, features, device="cuda").bfloat16().requires_grad_()
        made.append((plain, layer, x, torch.randn(tokens, out, device="cuda").bfloat16()))
    return made


def check(plain: torch.nn.Module, layer: torch.nn.Module, x: Tensor, dy: Tensor) -> None:
    expected, anew = step(plain, x, dy), step(layer, x, dy)
    with octofold.nn.keep_casts(layer):
        step(layer, x, dy)
        kept = step(layer, x, dy)
    assert all(torch.equal(left, right) for left, right in zip(anew, kept, strict=True))
    for left, right in zip(anew, expected, strict=True):
        error = float((left.float() - right.float()).norm() / right.float().norm())
        assert 0.02 < error < 0.08, error


def on_the_gpu(recipe: str, shape: tuple[int, int, int], rounds: int) -> str:
    made = layers_of(recipe, *shape, COPIES)
    check(*made[0])
    value = recipe_of("measure", recipe)
    calls: list[list[Callable[[], object]]] = [[], [], []]
    for plain, layer, x, dy in made:
        calls[0].append(lambda layer=layer, x=x, dy=dy: step(layer, x, dy))
        calls[1].append(lambda layer=layer: cast_weight(layer.weight, value, True, True))
        calls[2].append(lambda plain=plain, x=x, dy=dy: step(plain, x, dy))
    ours, cast, bf16 = timings(calls, torch.device("cuda"), rounds)
    share = cast.microseconds / ours.microseconds
    size = ",".join(map(str, shape))
    return (
        f"| {size} | {recipe} | {ours.microseconds:.0f} ±{ours.spread:.1%} | "
        f"{cast.microseconds:.1f} ±{cast.spread:.1%} | {share:.1%} | "
        f"{bf16.microseconds / ours.microseconds:.2f} |"
    )


def on_the_host(recipe: str, rounds: int) -> str:
    ((plain, layer, x, dy),) = layers_of(recipe, 16, 128, 128, 1)

    def run(call: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        seconds = time.perf_counter() - start
        torch.cuda.synchronize()
        return seconds / CALLS * 1e6

    def forward() -> Tensor:
        return layer(x)

    samples: dict[str, list[float]] = {"plain": [], "anew": [], "kept": [], "both": [], "step": []}
    for _ in range(rounds):
        samples["plain"].append(run(lambda: plain(x)))
        samples["anew"].append(run(forward))
        samples["both"].append(run(lambda: step(layer, x, dy)))
        with octofold.nn.keep_casts(layer):
            samples["kept"].append(run(forward))
            samples["step"].append(run(lambda: step(layer, x, dy)))
    median = {name: statistics.median(values) for name, values in samples.items()}
    return (
        f"| {recipe} | {median['plain']:.1f} | {median['anew']:.1f} | {median['kept']:.1f} | "
        f"{median['anew'] - median['kept']:.1f} | {median['both'] - median['step']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    print("| M,N,K | recipe | step, µs | the weight's casts, µs | share | BF16's step over ours |")
    print("|---|---|---|---|---|---|")
    for shape in SHAPES:
        for recipe in RECIPES:
            print(on_the_gpu(recipe, shape, rounds), flush=True)
    print("| recipe | torch, µs | forward | casts kept | difference | of a step |")
    print("|---|---|---|---|---|---|")
    for recipe in RECIPES:
        print(on_the_host(recipe, rounds), flush=True)


if __name__ == "__main__":
    main()
