"""Helpers of tests of expert layers: operands, results in FP64 and those from dense products."""

from contextlib import contextmanager

import octofold
import torch
from octofold import gemm, quantize
from octofold.ops import Activated, ActivationGradient

from tests.python.casting import cast_side
from tests.python.nn.fused_support import activation
from tests.python.nn.layer_support import random

HIDDEN, INNER, EXPERTS, SLOTS = 256, 192, 5, 3
# A linear layer's limit, twice: x and weights, then activation and weights, rounded to 3 bits.
LIMIT = 0.08


def operands(tokens=(70,), dtype=torch.float32, bias=False, gated=True, **sizes):
    """Arguments of octofold.experts() that have gradients, by name."""
    hidden, inner = sizes.get("hidden", HIDDEN), sizes.get("inner", INNER)
    experts, slots = sizes.get("experts", EXPERTS), sizes.get("slots", SLOTS)
    features = 2 * inner if gated else inner
    made = {
        "x": random(*tokens, hidden),
        "topk_weights": torch.rand(*tokens, slots) + 0.1,
        "w13": random(experts, features, hidden) * hidden**-0.5,
        "w2": random(experts, hidden, inner) * inner**-0.5,
    }
    if bias:
        made |= {"b13": random(experts, features), "b2": random(experts, hidden)}
    return {name: t if name == "topk_weights" else t.to(dtype) for name, t in made.items()}


def choices(tokens=(70,), experts=EXPERTS, slots=SLOTS, gone=0.1, empty=1):
    """Different experts for each token, int32, of which `empty` have none; some go nowhere."""
    scores = torch.rand(*tokens, experts)
    scores[..., :empty] = -1
    ids = scores.topk(slots, dim=-1)[1].int()
    return torch.where(torch.rand(ids.shape) < gone, -1, ids).int()


def truth(ids, name="swiglu"):
    """octofold.experts() of these ids as a function of operands, expert by expert."""

    def function(x, topk_weights, w13, w2, b13=None, b2=None):
        flat, ids_, weights = x.flatten(0, -2), ids.flatten(0, -2), topk_weights.flatten(0, -2)
        y = torch.zeros_like(flat)
        for e in range(w13.shape[0]):
            tokens, slots = torch.where(ids_ == e)
            h = flat[tokens] @ w13[e].t()
            h = activation(h if b13 is None else h + b13[e], name) @ w2[e].t()
            h = h if b2 is None else h + b2[e]
            y = y.index_add(0, tokens, h * weights[tokens, slots].unsqueeze(-1))
        return y.view(x.shape)

    return function


@contextmanager
def poisoned_memory():
    """In which operations get their results' memory full of NaN: what is not written stays that."""
    framework = octofold._core.torch.TorchFramework
    kinds = framework, octofold._core.torch.EagerTorchFramework
    own = [
        (kind, name, getattr(kind, name))
        for kind in kinds
        for name in ("empty", "empty_codes", "empty_scale")
    ]

    def poisoned(allocate):
        def empty(self, *arguments):
            tensor = allocate(self, *arguments)
            if tensor.dtype.itemsize == 1:
                tensor.view(torch.uint8).fill_(0x7F)
            elif tensor.is_floating_point():
                tensor.fill_(float("nan"))
            return tensor

        return empty

    try:
        for kind, name, allocate in own:
            setattr(kind, name, poisoned(allocate))
        yield
    finally:
        for kind, name, allocate in own:
            setattr(kind, name, allocate)


def rows_of(ids, experts):
    """For each expert the tokens and slots that go to it, in order."""
    return [torch.where(ids == e) for e in range(experts)]


def by_dense_products(ids, x, topk_weights, w13, w2, dy, recipe):
    """y and the gradients of a SwiGLU layer of bfloat16, from casts and products of each expert."""
    experts = w13.shape[0]
    y = torch.zeros(x.shape)
    dx = torch.zeros(x.shape)
    of_weights = torch.zeros(topk_weights.shape)
    d13, d2 = torch.zeros_like(w13), torch.zeros_like(w2)
    results, of_rows = {}, {}
    output, grad_input, grad_weight = recipe.output, recipe.grad_input, recipe.grad_weight

    def product(a, b, p):
        return gemm(a, b, fast_accumulation=p.fast_accumulation)

    for e, (tokens, slots) in enumerate(rows_of(ids, experts)):
        if not len(tokens):
            continue
        rows = x[tokens]
        gate_up = product(quantize(rows, output.a), quantize(w13[e], output.b), output)
        h, h_columns = (
            cast_side(Activated(gate_up), format, transpose)
            for format, transpose in ((output.a, False), (grad_weight.b, True))
        )
        results[e] = product(h, quantize(w2[e], output.b), output)
        factors = topk_weights[tokens, slots].unsqueeze(-1)
        weighted, weighted_dy = ((t[tokens].float() * factors).to(t.dtype) for t in (x, dy))
        d2[e] = product(cast_side(weighted_dy, grad_weight.a, True), h_columns, grad_weight)
        back = cast_side(w2[e], grad_input.b, True)
        dh = product(quantize(dy[tokens], grad_input.a), back, grad_input)
        dots = (dh.double() * activation(gate_up.double(), "swiglu")).sum(-1)
        of_weights[tokens, slots] = dots.float()
        d, d_columns = (
            cast_side(ActivationGradient(dh, gate_up), format, transpose)
            for format, transpose in ((grad_input.a, False), (grad_weight.a, True))
        )
        d13[e] = product(d_columns, cast_side(weighted, grad_weight.b, True), grad_weight)
        of_rows[e] = product(d, cast_side(w13[e], grad_input.b, True), grad_input)
    for slot in range(ids.shape[1]):  # the order of combine()
        for e, (tokens, slots) in enumerate(rows_of(ids, experts)):
            chosen = slots == slot
            at = tokens[chosen]
            if len(at):
                y[at] += results[e][chosen].float() * topk_weights[at, slot].unsqueeze(-1)
                dx[at] += of_rows[e][chosen].float() * topk_weights[at, slot].unsqueeze(-1)
    return [y.to(x.dtype)], {"x": dx.to(x.dtype), "topk_weights": of_weights, "w13": d13, "w2": d2}
