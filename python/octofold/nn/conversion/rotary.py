"""Rotary embeddings of transformers' attention by one kernel each way."""

import ast
import functools
import inspect
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..autograd.functions import in_transform
from ..autograd.normed import rotated
from ..layers.patching import source_of, with_names
from ..recipes.kernels import has_kernels
from .picking import Conversion, ModuleFilter, convert_parts

_NAME: Final = "octofold.nn.convert_rotary"
_ONES: Final = (Tensor, Parameter)
_WIDE: Final = (torch.float32, torch.float16, torch.bfloat16)
_FUNCTION: Final = "apply_rotary_pos_emb"

_ROTARY: Final = """
def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed
"""
_HALVES: Final = """
def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)
"""
"""Functions that compute nothing else, as Llama's and most others are written."""


def convert_rotary(model: Module, module_filter_fn: ModuleFilter | None = None) -> Conversion:
    """Let the attention of a transformers model rotate queries and keys by octofold.ops.rotary(),
    forward and backward, in place: torch takes ten kernels for each way.

    model: changed in place. It may also be one module of attention.
    module_filter_fn: (module, fully qualified name) → whether to convert it, asked for each module
        of attention whose apply_rotary_pos_emb() computes what Llama's does; None: all.

    Modules stay, with their parameters, names and code: what they call apply_rotary_pos_emb is
    another function. Results are rounded to the dtype of queries once, where transformers rounds
    both products too. cos and sin get no gradient. Where they have another dtype than queries, or
    need one, for other tensors than torch's own, inside torch.func's transforms, and under
    torch.compile, which makes one kernel of it anyway, the model's own function runs. Convert
    before torch.compile; before or after fully_shard().

    Returns a report that holds the model and says what became of each attention.
    Raises InvalidArgumentError, which names the argument: for a model without such attention, or a
    filter that picks none. The model is then as it was.
    """
    return convert_parts(
        _NAME,
        model,
        module_filter_fn,
        patch="rotary",
        front=FusedRotary,
        is_one=_rotates,
        is_plain=_is_plain,
    )


class FusedRotary(Module):
    """The forward of such attention with another function for its rotary embedding, in front of its
    own class."""

    _forward: Any
    """Its own class's."""
    _own_function: Any
    """The function that _forward called apply_rotary_pos_emb when it was converted."""

    def __init_subclass__(cls) -> None:
        cls._forward = own = super().forward
        cls._own_function = inspect.unwrap(own).__globals__[_FUNCTION]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = type(self)._forward
        names = inspect.unwrap(own).__globals__
        if torch.compiler.is_compiling() or names.get(_FUNCTION) is not type(self)._own_function:
            return super().forward(*args, **kwargs)
        # Names as they are now: others may have been replaced since.
        names = {**names, _FUNCTION: functools.partial(_rotate, names[_FUNCTION])}
        return with_names(own, names)(self, *args, **kwargs)


def _rotate(
    own: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb(): q and k [batch, heads, tokens, head_dim], or with unsqueeze_dim=2
    [batch, tokens, heads, head_dim]; cos and sin [batch or 1, tokens, head_dim]."""
    heads = unsqueeze_dim
    if in_transform() or not all(_fits(x, cos, sin, heads) for x in (q, k)):
        result: tuple[Tensor, Tensor] = own(q, k, cos, sin, unsqueeze_dim)
        return result
    if heads == 2:
        return rotated(q, cos, sin), rotated(k, cos, sin)
    return tuple(rotated(x.transpose(1, 2), cos, sin).transpose(1, 2) for x in (q, k))  # type: ignore[return-value]


def _fits(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> bool:
    """True if there is a kernel that rotates x by cos and sin."""
    if not all(type(each) in _ONES and each.dtype == x.dtype for each in (x, cos, sin)):
        return False
    if heads not in (1, 2) or x.dim() != 4 or cos.dim() != 3 or cos.shape != sin.shape:
        return False
    tokens = x.shape[3 - heads]
    return (
        x.dtype in _WIDE
        and cos.shape[0] in (1, x.shape[0])
        and cos.shape[1:] == (tokens, x.shape[3])
        and x.shape[3] % 2 == 0
        and not cos.requires_grad
        and not sin.requires_grad
        and has_kernels("rotary embeddings", x.device)
    )


def _rotates(module: Any) -> bool:
    """True if the module's forward calls apply_rotary_pos_emb()."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and _FUNCTION in code.co_names


def _is_plain(module: Any) -> bool:
    kind: Any = type(module)
    # One that is wrapped does something else besides.
    return inspect.isfunction(kind.forward) and _calls_what_is_known(kind.forward)


def _calls_what_is_known(forward: Any) -> bool:
    while hasattr(forward, "__wrapped__"):
        if forward.__globals__["__name__"] != "transformers.utils.deprecation":  # of old keywords
            return False
        forward = forward.__wrapped__
    function = forward.__globals__.get(_FUNCTION)
    names = getattr(inspect.unwrap(function), "__globals__", {}) if callable(function) else {}
    return _is_written(function, _ROTARY) and _is_written(names.get("rotate_half"), _HALVES)


@functools.cache
def _is_written(function: Any, expected: str) -> bool:
    """True if a function is this one, but for annotations, docstring and comments."""
    return _meaning(source_of("rotary", function)) == _meaning(expected)


def _meaning(source: str) -> list[str] | None:
    """The parameters, defaults and statements of a function; None: it is something else."""
    definition = next(iter(ast.parse(source).body), None)
    if not isinstance(definition, ast.FunctionDef):
        return None
    arguments = definition.args
    parameters = [each.arg for each in arguments.posonlyargs + arguments.args]
    others = [arguments.vararg, arguments.kwarg, *arguments.kwonlyargs]
    statements = definition.body[ast.get_docstring(definition) is not None :]
    return [
        *parameters,
        *(each.arg for each in others if each is not None),
        *map(ast.dump, [*arguments.defaults, *statements]),
    ]
