"""RMSNorms of transformers' models by one kernel, and one or two for their gradients."""

import functools
import re
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..autograd.functions import in_transform
from ..autograd.normed import rms_norm
from ..layers.patching import source_of
from ..recipes.kernels import has_kernels
from .picking import Conversion, ModuleFilter, convert_parts

_NAME: Final = "octofold.nn.convert_norms"
_ONES: Final = (Tensor, Parameter)

_BODY: Final = re.compile(
    r"input_dtype = X\.dtype "
    r"X = X\.to\(torch\.float32\) "
    r"variance = X\.pow\(2\)\.mean\(-1, keepdim=True\) "
    r"X = X \* torch\.rsqrt\(variance \+ self\.variance_epsilon\) "
    r"return (self\.weight \* X\.to\(input_dtype\)|\(self\.weight \* X\)\.to\(input_dtype\))"
)
"""A forward that computes nothing else, as the source of Llama's and of most others has it."""


def convert_norms(model: Module, module_filter_fn: ModuleFilter | None = None) -> Conversion:
    """Let the RMSNorms of a transformers model compute by octofold.ops.norm(), and their gradients
    by octofold.ops.norm_gradient(), in place: torch takes some seven kernels for the one and twice
    as many for the other, by way of FP32 tensors.

    model: changed in place. It may also be one norm.
    module_filter_fn: (module, fully qualified name) → whether to convert it, asked for each RMSNorm
        that computes what Llama's does; None: all.

    Modules stay, with their parameters and names. y is rounded to the dtype of x once, after the
    weight, where Llama's forward rounds before it too. Backward keeps x and four bytes a row. Where
    x and weight are of two dtypes, for other tensors than torch's own, inside torch.func's
    transforms, and under torch.compile, which makes one kernel of a norm and of what is around it,
    the module's own forward runs. Convert before torch.compile; before or after fully_shard().

    Returns a report that holds the model and says what became of each norm.
    Raises InvalidArgumentError, which names the argument: for a model without such norms, or a
    filter that picks none. The model is then as it was.
    """
    return convert_parts(
        _NAME,
        model,
        module_filter_fn,
        patch="norms",
        front=FusedNorm,
        is_one=lambda module: "norm" in type(module).__name__.lower(),
        is_plain=_is_plain,
    )


class FusedNorm(Module):
    """The forward of such a norm, in front of its own class."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        x, weight = hidden_states, self.weight
        if (
            torch.compiler.is_compiling()
            or x.dtype != weight.dtype
            or type(x) not in _ONES
            or type(weight) not in _ONES
            or x.dim() < 2
            or in_transform()
            or not has_kernels("norms", x.device)
        ):
            y: Tensor = super().forward(x)
            return y
        return rms_norm(x, weight, float(self.variance_epsilon))


def _is_plain(module: Any) -> bool:
    kind: Any = type(module)
    return (
        isinstance(module._parameters.get("weight"), Tensor)
        and isinstance(getattr(module, "variance_epsilon", None), float)
        and len(module._parameters) == 1
        and _has_plain_forward(kind)
    )


@functools.cache
def _has_plain_forward(kind: Any) -> bool:
    head, _, body = source_of("norms", kind.forward).partition("\n")
    parameter = re.search(r"def forward\(self, (\w+)", head)
    if parameter is None:
        return False
    lines = (line.partition("#")[0].strip() for line in body.splitlines())
    text = re.sub(rf"\b{parameter[1]}\b", "X", " ".join(line for line in lines if line))
    return _BODY.fullmatch(text) is not None
