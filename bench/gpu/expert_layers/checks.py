"""Results of an expert layer against FP64: of some tokens, and of one expert's weights."""

import torch
from common.operands import relative_error
from torch import Tensor
from torch.nn import functional

from .cases import Inputs

TOKENS = 24  # are compared


class Expected:
    """y, dx and dweights of some tokens; dw13 and dw2 of an expert with about as many tokens as
    most."""

    def __init__(self, inputs: Inputs, trains: bool) -> None:
        device = inputs.x.device
        self.tokens = torch.randperm(len(inputs.x), device=device)[:TOKENS]
        with torch.enable_grad():
            self._of_tokens(inputs)
            if trains:
                self._of_expert(inputs)

    def _of_tokens(self, inputs: Inputs) -> None:
        x = inputs.x.detach()[self.tokens].double().requires_grad_()
        weights = inputs.weights.detach()[self.tokens].double().requires_grad_()
        ids = inputs.ids[self.tokens]
        y = torch.zeros_like(x)
        for expert in ids.unique().tolist():
            rows, slots = torch.where(ids == expert)
            part = one_expert(x[rows], inputs, expert) * weights[rows, slots, None]
            y = y.index_add(0, rows, part)
        dy = inputs.dy[self.tokens].double()
        self.dx, self.dweights = torch.autograd.grad(y, (x, weights), dy)
        self.y = y.detach()

    def _of_expert(self, inputs: Inputs) -> None:
        counts = torch.bincount(inputs.ids.flatten(), minlength=len(inputs.w13))
        self.expert = int(counts.argsort()[len(counts) // 2])
        rows, slots = torch.where(inputs.ids == self.expert)
        w13, w2 = (
            w.detach()[self.expert].double().requires_grad_() for w in (inputs.w13, inputs.w2)
        )
        y = gated(inputs.x.detach()[rows].double(), w13) @ w2.T
        dy = inputs.dy[rows].double() * inputs.weights.detach()[rows, slots, None]
        self.dw13, self.dw2 = torch.autograd.grad(y, (w13, w2), dy)

    def error_of_output(self, y: Tensor) -> float:
        if not torch.isfinite(y).all():
            return float("nan")
        return relative_error(y.detach()[self.tokens], self.y)

    def errors(self, y: Tensor, gradients: tuple[Tensor, ...]) -> dict[str, float]:
        """gradients: of x, weights, w13 and w2."""
        dx, dweights, dw13, dw2 = gradients
        return {
            "y": self.error_of_output(y),
            "dx": relative_error(dx[self.tokens], self.dx),
            "dweights": relative_error(dweights[self.tokens], self.dweights),
            "dw13": relative_error(dw13[self.expert], self.dw13),
            "dw2": relative_error(dw2[self.expert], self.dw2),
        }


def gated(x: Tensor, w13: Tensor) -> Tensor:
    gate, up = functional.linear(x, w13).chunk(2, dim=-1)
    return functional.silu(gate) * up


def one_expert(x: Tensor, inputs: Inputs, expert: int) -> Tensor:
    return gated(x, inputs.w13.detach()[expert].double()) @ inputs.w2.detach()[expert].double().T
