"""Rotary position embeddings of queries and keys."""

from typing import Final

from .._core.calls import Op
from .._core.formats import WIDE, dtype_name
from .._core.frameworks import Array, Framework, StreamLike
from .._core.library import library
from .._core.ops import Arrays, Options


def rotary(
    x: Array, cos: Array, sin: Array, *, inverse: bool = False, stream: StreamLike | None = None
) -> Array:
    """Rotate queries or keys by their positions, in one kernel: pairs of elements that lie half a
    head apart, as Llama's and transformers' rotate_half() pair them (neighbours, as in GPT-J, are
    another convention): x · cos + (-x[h:], x[:h]) · sin, with h = head_dim / 2.

    x: [tokens, heads, head_dim] or [batch, tokens, heads, head_dim], float32, float16 or bfloat16;
        head_dim is even. Only the last dimension has to be contiguous, so that any order of tokens
        and heads in memory will do.
    cos, sin: [tokens, head_dim] for all batches, or [batch, tokens, head_dim], where batch may be
        1: as transformers makes them, of x's dtype. Their halves are taken as they are.
    inverse: the transpose of the rotation. Of the gradient by the result it makes that by x. Where
        cos² + sin² = 1, and halves are equal, it is the inverse.
    stream: as in gemm().

    Arithmetic is FP32, rounded to x's dtype once; the CPU has the same bits. There is no gradient,
    as in gemm().

    Returns an array of x's shape and dtype, contiguous.
    Raises InvalidArgumentError, which names the argument.
    """
    return _ROTARY((x, cos, sin), (inverse,), "", None, stream)[0]


def _like_x(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x = inputs[0]
    return (framework.empty(x.shape, dtype_name("rotary", "x", x.dtype, WIDE)),)


_ROTARY: Final = Op(
    "rotary",
    rotary.__annotations__,
    results=("y",),
    allocate=_like_x,
    function=lambda: library.rotary,
)
