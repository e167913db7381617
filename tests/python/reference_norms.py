"""Norms in torch, of tensors on any device. Shares no code with the library."""

import itertools

import torch
from octofold import Format, Rule

from tests.python.casting import GRANULARITIES

OPERANDS = ("weight", "bias", "ada_scale", "ada_shift")

# Forms of a norm: name, kind, dtype of the operands (None: x's), which of them there are.
FORMS = {
    "rms": ("rms", None, ("weight",)),
    "rms-float32": ("rms", torch.float32, ("weight", "bias")),
    "plain-rms": ("rms", None, ()),
    "layer": ("layer", None, ("weight", "bias")),
    "adaptive": ("layer", None, ("ada_scale", "ada_shift")),
    "everything": ("layer", torch.float32, OPERANDS),
    "adaptive-rms": ("rms", None, ("weight", "ada_scale")),
}


def statistics(x, kind, epsilon):
    """mean and rstd [rows] of x [rows, cols] in FP64; a mean of 0 for RMSNorm."""
    x = x.double()
    mean = x.mean(-1) if kind == "layer" else torch.zeros_like(x[:, 0])
    return mean, ((x - mean[:, None]).square().mean(-1) + epsilon).rsqrt()


def of_rows(batches, rows):
    """[batch, cols] or None: a row for each of the rows."""
    return None if batches is None else batches.repeat_interleave(rows // len(batches), 0)


def apply(x, mean, rstd, operands):
    """y in the dtype of the statistics, each operation rounded to it."""
    y = x.to(rstd.dtype)
    if mean is not None:
        y = y - mean[:, None]
    y = y * rstd[:, None]
    wide = {name: value.to(rstd.dtype) for name, value in operands.items() if value is not None}
    if "weight" in wide:
        y = y * wide["weight"]
    if "bias" in wide:
        y = y + wide["bias"]
    if "ada_scale" in wide:
        y = y * (1 + of_rows(wide["ada_scale"], len(x)))
    if "ada_shift" in wide:
        y = y + of_rows(wide["ada_shift"], len(x))
    return y


def gradients(dy, x, kind, epsilon, operands, residual_gradient=None):
    """The gradients by torch's autograd in FP64: {"x": …, "weight": …, …}."""
    leaves = {"x": x, **{name: value for name, value in operands.items() if value is not None}}
    leaves = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    x = leaves["x"]
    mean = x.mean(-1) if kind == "layer" else torch.zeros_like(x[:, 0])
    rstd = ((x - mean[:, None]).square().mean(-1) + epsilon).rsqrt()
    y = apply(x, mean, rstd, {name: leaf for name, leaf in leaves.items() if name != "x"})
    found = torch.autograd.grad(y, list(leaves.values()), dy.double())
    result = dict(zip(leaves, found, strict=True))
    if residual_gradient is not None:
        result["x"] = result["x"] + residual_gradient.double()
    return result


def problem(normal, form, rows, cols, dtype, batches=1):
    """x and the operands of a form, from a function that draws normal numbers of a shape. Rows have
    magnitudes and means of their own."""
    kind, operand_dtype, names = FORMS[form]
    x = normal(rows, cols) * torch.exp2(normal(rows, 1)) + normal(rows, 1)
    operands = dict.fromkeys(OPERANDS)
    for name in names:
        shape = (cols,) if name in ("weight", "bias") else (batches, cols)
        operands[name] = (1 + normal(*shape) / 2).to(operand_dtype or dtype)
    return kind, x.to(dtype), operands


def options():
    """Formats, as text or with an option, with each target; dtypes and rules take turns."""
    turns = itertools.cycle(({}, {"dtype": "e5m2", "rule": Rule.VLLM}, {"power_of_two": True}))
    for granularity in GRANULARITIES:
        for targets in ("rows", "transposed", "both"):
            yield Format(granularity=granularity, **next(turns)), targets
