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


class Beside(NamedTuple):
    """A layer with a norm or a second layer, beside its first and last sizes."""

    hidden: int
    """0: there is no second layer."""
    experts: int
    """0: the layer is no experts'."""
    slots: int
    norm: str | None
    epsilon: float
    activation: str | None
    x: str
    """The name of the dtype of x, as y has that of y."""
    y: str
    weight_only: str | None
    """The dtype of rows, if experts' weights alone are FP8."""
    keep_fp8: bool
    has_up_bias: bool
    has_down_bias: bool


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
    beside: Beside | None
    """None: the layer is a linear one."""
    out_features: int

    def run_forward(
        self, given: Sequence[Any], results: Sequence[Any], activation: str | None, stream: Any
    ) -> None:
        """given: the inputs of the op layer_forward; results: y, x + residual, the two memories.
        activation: of a linear layer that activates its input."""
        y, total, kept, workspace = results
        beside = self.beside
        if beside is None:
            operands = given[6:9]
            self.forward(given[0], activation, *operands, y, kept, workspace, stream)
        elif beside.experts:
            self.forward(given[0], *given[4:], y, kept, workspace, stream)
        else:
            operands = given[6:] if beside.hidden else given[6:9]
            self.forward(*given[:4], total, *operands, y, kept, workspace, stream)

    def run_backward(
        self,
        given: Sequence[Any],
        results: Sequence[Any],
        adds: tuple[bool, bool],
        stream: Any,
    ) -> None:
        """given: the inputs of the op layer_backward; results: its results and the workspace. adds:
        for each layer whether the weight's gradient is added to what its result holds."""
        dy, kept, x, norm_weight, norm_bias, of_sum, *routing = given[:9]
        transposed = given[9:]
        dx, *of_norm, d_shares, dup, dup_bias, ddown, ddown_bias, workspace = results
        beside = self.beside
        if beside is None:
            of_weight = dup, dup_bias, workspace, adds[0]
            self.backward(dy, *transposed[:2], kept, dx, *of_weight, stream)
            return
        of_up, of_down = (dup, dup_bias, adds[0]), (ddown, ddown_bias, adds[1])
        before = x, norm_weight, norm_bias, of_sum
        if beside.experts:
            of_both = *of_up, *of_down
            self.backward(
                dy, *routing, *transposed, kept, dx, d_shares, *of_both, workspace, stream
            )
        elif not beside.hidden:
            of_input = dx, *of_norm
            self.backward(dy, *before, *transposed[:2], kept, *of_input, *of_up, workspace, stream)
        else:
            of_all = dx, *of_norm, *of_up, *of_down
            self.backward(dy, *before, *transposed, kept, *of_all, workspace, stream)


def passes_of(
    tokens: int,
    in_features: int,
    out_features: int,
    recipe: Recipe,
    wanted: Wanted,
    weights_are_cast: bool,
    device: "torch.device",
    beside: Beside | None = None,
) -> Passes:
    """The passes of a linear layer, of a norm and one, of an MLP or of experts."""
    # By the recipe itself: the hash of its fields takes longer than the library's call.
    key = tokens, in_features, out_features, id(recipe), wanted, weights_are_cast, device, beside
    found = _FOUND.get(key)
    if found is None:
        if len(_FOUND) >= _MOST:
            _FOUND.clear()
        sizes = tokens, in_features, out_features
        how = wanted, weights_are_cast, device, beside
        found = _FOUND[key] = recipe, make_passes(sizes, products_of(recipe), *how)
    return found[1]


_FOUND: Final[dict[tuple[Any, ...], tuple[Recipe, Passes]]] = {}
"""With the recipes, whose ids are theirs as long as they are held."""
_MOST: Final = 4096


def make_passes(
    sizes: tuple[int, int, int],
    products: list[tuple[Any, ...]],
    wanted: Wanted,
    are_cast: bool,
    device: "torch.device",
    beside: Beside | None,
) -> Passes:
    """passes_of(), made anew. products: as products_of() has them."""
    gpu = (device.index or 0) if device.type == "cuda" else None
    made: Sequence[Any]
    if beside is None:
        made = library.linear(*sizes, products, wanted, are_cast, gpu)
        return Passes._make((*made, wanted, beside, sizes[2]))
    tokens, in_features, out_features = sizes
    hidden, experts, slots, norm, epsilon, activation, x, y, weight_only, *flags = beside
    keep_fp8, *biases = flags
    if experts:
        layer = tokens, slots, experts, in_features, hidden, out_features
        steps = activation, y, weight_only
        made = library.experts(layer, products, *steps, wanted, (*biases, are_cast), gpu)
    elif hidden:
        two, how = (tokens, in_features, hidden, out_features), (keep_fp8, biases[0], are_cast)
        of_norm = norm, epsilon
        made = library.mlp(two, products, activation, *of_norm, (x, y), wanted, how, gpu)
    else:
        made = library.norm_linear(sizes, products, norm, epsilon, x, wanted, are_cast, gpu)
    return Passes._make((*made, wanted, beside, sizes[2]))


def fits(recipe: Recipe, wanted: Wanted) -> bool:
    """True if all products that are wanted are in FP8, as the library has them. What goes back
    through a second layer takes its input's gradient."""
    if recipe.grad_input is not None and recipe.grad_weight is not None:  # most recipes
        return recipe.output is not None
    of_x, of_weight, of_bias, *of_second = wanted
    goes_back = of_x or (bool(of_second) and (of_weight or of_bias))
    weights = of_weight or any(of_second[:1])
    return (
        recipe.output is not None
        and (recipe.grad_input is not None or not goes_back)
        and (recipe.grad_weight is not None or not weights)
    )


def products_of(recipe: Recipe) -> list[tuple[Any, ...]]:
    """The products of a recipe that has one in FP8, in words."""
    products = recipe.output, recipe.grad_input, recipe.grad_weight
    some = next(each for each in products if each is not None)
    # The library does not look at products that are not wanted.
    return [_words(each or some) for each in products]


def _words(product: Product) -> tuple[Any, ...]:
    how = product.fast_accumulation, product.batch_invariant
    return _words_of_format(product.a), _words_of_format(product.b), *how


def _words_of_format(format: Format) -> tuple[Any, ...]:
    return format.dtype, format.granularity, *format.options
