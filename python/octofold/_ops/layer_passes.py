"""The two passes of a layer, each in one call of the library: norms, casts, activations and
products together.

What is between the calls of a layer made of several is a good part of the host's time: allocations
of casts that nobody sees, and torch, which need not know of them. Where it has to know of the
layer, the passes are two ops (layer_ops.py).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .._core.formats import Format
from .._core.library import library
from .._core.recipe import Product, Recipe

if TYPE_CHECKING:
    import torch

Wanted: TypeAlias = tuple[bool, ...]
"""Truth values: if backward is to give the gradients of x, of experts' routing weights, and of each
layer's weight and bias."""


class Passes(NamedTuple):
    """The passes for a layer's sizes, recipe and device. Memory is given in bytes, as uint8
    (octofold/linear.h says what is in it); None stands for what there is none of. The arguments are
    those of bindings/linear.cpp, mlp.cpp and experts.cpp."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    kept: int
    """Bytes that forward keeps for backward."""
    forward_workspace: int
    backward_workspace: int
    wanted: Wanted


class NormLike(NamedTuple):
    """A norm in front of a layer, and the name of the dtype that it norms."""

    kind: str
    epsilon: float
    dtype: str


class MlpLike(NamedTuple):
    """An MLP but for its sizes, and the names of the dtypes of x and y."""

    hidden: int
    activation: str
    norm: NormLike | None
    x: str
    y: str
    keep_fp8: bool
    has_up_bias: bool


class ExpertsLike(NamedTuple):
    """Experts but for the other sizes of both layers, and the name of the dtype of y."""

    experts: int
    slots: int
    hidden: int
    activation: str
    y: str
    weight_only: str | None
    """The dtype of rows, if the weights alone are FP8."""
    has_up_bias: bool
    has_down_bias: bool


Beside: TypeAlias = NormLike | MlpLike | ExpertsLike | None
"""A layer beside its first and last sizes; None: a linear one."""


def passes_of(
    tokens: int,
    in_features: int,
    out_features: int,
    recipe: Recipe,
    wanted: Wanted,
    weights_are_cast: bool,
    device: "torch.device",
    beside: Beside = None,
) -> Passes | None:
    """The passes of a linear layer, of a norm and one, of an MLP or of experts. None: of a recipe
    that is not all FP8, as far as it is wanted."""
    # By the recipe itself: the hash of its fields takes longer than the library's call.
    key = tokens, in_features, out_features, id(recipe), wanted, weights_are_cast, device, beside
    found = _FOUND.get(key)
    if found is None:
        if len(_FOUND) >= _MOST:
            _FOUND.clear()
        from .._core.torch import LIBRARY_TAKES_TENSORS

        passes = None
        if LIBRARY_TAKES_TENSORS and fits(recipe, wanted):
            sizes = tokens, in_features, out_features
            made = make_passes(sizes, products_of(recipe), wanted, weights_are_cast, device, beside)
            passes = Passes._make((*made, wanted))
        found = _FOUND[key] = recipe, passes
    return found[1]


_FOUND: Final[dict[tuple[Any, ...], tuple[Recipe, Passes | None]]] = {}
"""With the recipes, whose ids are theirs as long as they are held."""
_MOST: Final = 4096


def make_passes(
    sizes: tuple[int, int, int],
    products: list[tuple[Any, ...]],
    wanted: Wanted,
    are_cast: bool,
    device: "torch.device",
    beside: Beside,
) -> Sequence[Any]:
    """The fields of Passes, but for what is wanted. products: as products_of() has them."""
    gpu = (device.index or 0) if device.type == "cuda" else None
    made: Sequence[Any]
    if beside is None:
        made = library.linear(*sizes, products, wanted, are_cast, gpu)
    elif isinstance(beside, NormLike):
        kind, epsilon, dtype = beside
        made = library.norm_linear(sizes, products, kind, epsilon, dtype, wanted, are_cast, gpu)
    elif isinstance(beside, ExpertsLike):
        tokens, in_features, out_features = sizes
        experts, slots, hidden, *types, up_bias, down_bias = beside
        layer = tokens, slots, experts, in_features, hidden, out_features
        flags = up_bias, down_bias, are_cast
        made = library.experts(layer, products, *types, wanted, flags, gpu)
    else:
        tokens, in_features, out_features = sizes
        norm = beside.norm
        of_norm = (None, 0.0) if norm is None else norm[:2]
        made = library.mlp(
            (tokens, in_features, beside.hidden, out_features),
            products,
            beside.activation,
            *of_norm,
            (beside.x, beside.y),
            wanted,
            (beside.keep_fp8, beside.has_up_bias, are_cast),
            gpu,
        )
    return made


def fits(recipe: Recipe, wanted: Wanted) -> bool:
    """True if all products that are wanted are in FP8. What goes back through a second layer takes
    its input's gradient."""
    of_x, of_weight, of_bias, *of_second = wanted
    goes_back = of_x or (bool(of_second) and (of_weight or of_bias))
    weights = of_weight or any(of_second[:1])
    return (
        recipe.output is not None
        and (recipe.grad_input is not None or not goes_back)
        and (recipe.grad_weight is not None or not weights)
    )


def products_of(recipe: Recipe) -> list[tuple[Any, ...]]:
    """The products of a recipe whose output is in FP8, in words."""
    output = recipe.output
    assert output is not None
    # The library does not look at products that are not wanted.
    return [_words(each or output) for each in (output, recipe.grad_input, recipe.grad_weight)]


def _words(product: Product) -> tuple[Any, ...]:
    how = product.fast_accumulation, product.batch_invariant
    return _words_of_format(product.a), _words_of_format(product.b), *how


def _words_of_format(format: Format) -> tuple[Any, ...]:
    return format.dtype, format.granularity, *format.options
