"""Training with gradients that are added to `weight.main_grad`, and an optimizer that reads them.

    python examples/python/main_grad_optimizer.py
    python examples/python/main_grad_optimizer.py --device cpu --steps 40

With main_grad=True the product that makes a weight's gradient adds it to weight.main_grad, in FP32.
torch's own optimizers read weight.grad, so an optimizer around one of them has to hand it the
gradients: here MainGradOptimizer, which also keeps FP32 masters of BF16 weights, as Megatron does.
The model learns a function of random numbers twice, each time with 4 micro-batches in a step: by
MainGradOptimizer, and without main_grad by torch's AdamW over FP32 weights. The script prints both
losses; the exit code is 1 if they differ by more than a tenth.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Iterable
from typing import Any

import octofold
import torch
from torch import Tensor
from torch.nn import Parameter, functional

MICRO_BATCHES = 4


class MainGradOptimizer:
    """A torch optimizer of FP32 masters: of each parameter that has a main_grad the gradient is
    that, of any other its grad.

    parameters: of the model, in any dtype.
    optimizer: the class of the optimizer, or a function that makes one of a list of parameters.
    options: the optimizer's.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        optimizer: Callable[..., torch.optim.Optimizer],
        **options: Any,
    ) -> None:
        self._parameters = list(parameters)
        self._masters = [Parameter(p.detach().float().clone()) for p in self._parameters]
        self._optimizer = optimizer(self._masters, **options)

    @torch.no_grad()
    def step(self) -> None:
        """Update the masters, and the parameters from them."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            main_grad: Tensor | None = getattr(parameter, "main_grad", None)
            if main_grad is not None:
                master.grad = main_grad
            else:
                master.grad = None if parameter.grad is None else parameter.grad.float()
        self._optimizer.step()
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            parameter.copy_(master)

    def zero_grad(self) -> None:
        """Begin a step: main_grad keeps its memory."""
        for parameter in self._parameters:
            parameter.grad = None
            if hasattr(parameter, "main_grad"):
                parameter.main_grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The masters, which hold more than the model's weights, and the optimizer's state."""
        return {"masters": self._masters, "optimizer": self._optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that state_dict() gave."""
        for master, saved in zip(self._masters, state["masters"], strict=True):
            master.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])


def new_model(device: str) -> torch.nn.Module:
    sizes = (128, 256), (256, 256), (256, 128)
    layers = [torch.nn.Linear(*size, device=device) for size in sizes]
    return torch.nn.Sequential(layers[0], torch.nn.GELU(), layers[1], torch.nn.GELU(), layers[2])


def losses_of(model: torch.nn.Module, optimizer: Any, steps: int, device: str) -> list[float]:
    """Trains the model, and returns the loss of each step."""
    generator = torch.Generator(device).manual_seed(1)
    target = torch.randn(128, 128, generator=generator, device=device) / 11
    dtype = next(model.parameters()).dtype
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        # The weights stay as they are for all micro-batches, so that one cast of each will do.
        with octofold.nn.keep_casts(model):
            for _ in range(MICRO_BATCHES):
                x = torch.randn(128, 128, generator=generator, device=device)
                error = functional.mse_loss(model(x.to(dtype)).float(), (x @ target).tanh())
                (error / MICRO_BATCHES).backward()
                loss += error.detach() / MICRO_BATCHES
        optimizer.step()
        losses.append(loss)
    return torch.stack(losses).tolist()


def draw(curves: dict[str, list[float]], file: str) -> None:
    """Writes a chart, the second curve dashed upon the first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.plot(range(1, len(losses) + 1), losses, style, label=name)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig(file, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--png", help="where a chart of the losses goes (needs matplotlib)")
    options = parser.parse_args()
    torch.manual_seed(0)
    plain = new_model(options.device)
    model = copy.deepcopy(plain).bfloat16()
    octofold.nn.convert(model, main_grad=True, force_fp8=True)
    octofold.nn.convert(plain, force_fp8=True)
    run = options.steps, options.device
    optimizer = MainGradOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    curves = {
        "main_grad and BF16 weights": losses_of(model, optimizer, *run),
        "grad and FP32 weights": losses_of(
            plain, torch.optim.AdamW(plain.parameters(), lr=1e-3), *run
        ),
    }
    last = max(1, options.steps // 10)
    by_main_grad, by_grad = (sum(losses[-last:]) / last for losses in curves.values())
    for (name, losses), end in zip(curves.items(), (by_main_grad, by_grad), strict=True):
        print(f"{f'loss with {name}:':37} {losses[0]:.4f} -> {end:.4f}")
    if options.png:
        draw(curves, options.png)
    return 0 if abs(by_main_grad - by_grad) < 0.1 * by_grad else 1


if __name__ == "__main__":
    sys.exit(main())
