"""The passes of a layer (layer_passes.py) as two ops, for compilers, modes and policies: they
return their results and change no argument.

A layer is a linear one (which may activate its input), a norm and one, an MLP, or experts; what of
the arguments it does not have is None.
"""

from functools import lru_cache
from typing import Any, Final, NamedTuple

from .._core.calls import Op
from .._core.frameworks import Array, Framework
from .._core.ops import Arrays, Options, ceil_divide, row_count
from .._core.recipe import Recipe
from .cast_sources import GATED
from .layer_passes import Beside, Passes, make_passes, products_of


class LayerOptions(NamedTuple):
    """A layer as the ops are told of it, and as compilers take it: texts, numbers, truth values."""

    recipe: str
    norm: str | None
    epsilon: float
    activation: str | None
    keep_fp8: bool
    has_up_bias: bool
    has_down_bias: bool
    """It counts for experts alone, as the next does."""
    weight_only: str | None
    are_cast: bool
    """True if weights come as their casts."""
    wanted: str
    """A digit, 0 or 1, for each of Passes.wanted."""
    x_dtype: str
    y_dtype: str
    """Empty: y is in high precision, and not made here."""


_OPTIONS: Final[dict[str, Any]] = LayerOptions.__annotations__


def text_of(recipe: Recipe) -> str:
    """products_of() for LayerOptions."""
    return ";".join(["|".join([_text(part) for part in each]) for each in products_of(recipe)])


def _text(part: Any) -> str:
    return " ".join([f"{word}" for word in part]) if isinstance(part, tuple) else f"{part}"


_VALUES: Final = {"None": None, "True": True, "False": False}


def _product_in(text: str) -> tuple[Any, ...]:
    a, b, *how = text.split("|")
    words = (tuple(_VALUES.get(word, word) for word in side.split()) for side in (a, b))
    return *words, *(_VALUES[word] for word in how)


class _Sizes(NamedTuple):
    in_features: int
    hidden: int
    """0: there is no second layer."""
    out_features: int
    experts: int
    """0: the layer is no experts'."""
    slots: int


@lru_cache(maxsize=4096)
def _passes(tokens: int, sizes: _Sizes, options: LayerOptions, device: Any) -> Passes:
    products = [_product_in(text) for text in options.recipe.split(";")]
    wanted = tuple(digit == "1" for digit in options.wanted)
    beside = None
    if sizes.hidden or options.norm is not None:
        of_sizes = sizes.hidden, sizes.experts, sizes.slots
        steps = options.norm, options.epsilon, options.activation
        types = options.x_dtype, options.y_dtype, options.weight_only
        flags = options.keep_fp8, options.has_up_bias, options.has_down_bias
        beside = Beside(*of_sizes, *steps, *types, *flags)
    features = sizes.in_features, sizes.out_features
    return make_passes((tokens, *features), products, wanted, options.are_cast, device, beside)


def _bytes(framework: Framework, tokens: int, field: str, *layer: Any) -> Array | None:
    """The memory of a pass, for torch's symbolic numbers of tokens too: that of no tokens, and of
    256 as often as they are begun, which is at least what they take: parts are multiples of 256
    bytes."""
    device = framework.device  # type: ignore[attr-defined]
    fixed, of_block = (getattr(_passes(count, *layer, device), field) for count in (0, 256))
    if of_block == 0:
        return None
    words = (fixed + ceil_divide(tokens, 256) * (of_block - fixed)) // 4
    return framework.empty((words,), "int32")


def _forward_sizes(inputs: Arrays) -> _Sizes:
    ids, up, down = inputs[4], inputs[6], inputs[9]
    last = up if down is None else down
    hidden = 0 if down is None else int(down.shape[-1])
    routed = (0, 0) if ids is None else (int(up.shape[0]), int(ids.shape[-1]))
    return _Sizes(int(up.shape[-1]), hidden, int(last.shape[-2]), *routed)


def _allocate_forward(framework: Framework, inputs: Arrays, given: Options, dtype: str) -> Arrays:
    x, residual = inputs[:2]
    sizes, options = _forward_sizes(inputs), LayerOptions(*given)
    tokens, y = row_count(x.shape), None
    if options.y_dtype:
        y = framework.empty((*x.shape[:-1], sizes.out_features), options.y_dtype)
    return (
        y,
        None if residual is None else framework.empty(x.shape, options.x_dtype),
        _bytes(framework, tokens, "kept", sizes, options),
        _bytes(framework, tokens, "forward_workspace", sizes, options),
    )


def _run_forward(*arguments: Any) -> None:
    given, results = arguments[:12], arguments[12:16]
    options, stream = LayerOptions(*arguments[16:-1]), arguments[-1]
    x = given[0]
    passes = _passes(row_count(x.shape), _forward_sizes(given), options, x.device)
    passes.run_forward(given, results, options.activation, stream)


layer_forward: Final = Op(
    "layer_forward",
    {
        "x": Array,
        "residual": Array | None,
        "norm_weight": Array | None,
        "norm_bias": Array | None,
        "topk_ids": Array | None,
        "topk_weights": Array | None,
        "up_weight": Array,
        "up_scale": Array | None,
        "up_bias": Array | None,
        "down_weight": Array | None,
        "down_scale": Array | None,
        "down_bias": Array | None,
        **_OPTIONS,
    },
    results=("y?", "total?", "kept?", "workspace?"),
    allocate=_allocate_forward,
    function=lambda: _run_forward,
)
"""(y, x + residual, what backward reads), of x [..., in], and weights as numbers, or as codes with
scales."""


class GradientOptions(NamedTuple):
    """The op that goes back is told of sizes and dtypes besides."""

    in_features: int
    hidden: int
    out_features: int
    experts: int
    dtypes: str
    """The dtypes of the gradients by norm_weight, norm_bias, topk_weights, and each layer's weight
    and bias, with commas between them; empty: none of it."""


def _gradient_layer(shares: Array | None, given: Options) -> tuple[_Sizes, LayerOptions, list[str]]:
    options, more = LayerOptions(*given[:-5]), GradientOptions(*given[-5:])
    slots = 0 if shares is None else int(shares.shape[-1])
    return _Sizes(*more[:4], slots), options, more.dtypes.split(",")


def _allocate_backward(framework: Framework, inputs: Arrays, given: Options, dtype: str) -> Arrays:
    dy, shares = inputs[0], inputs[6]
    sizes, options, dtypes = _gradient_layer(shares, given)
    features, hidden, out, experts, slots = sizes
    gated = options.activation is not None and options.activation in GATED
    up = hidden * (2 if gated else 1) if hidden else out
    each = (experts,) if experts else ()
    of_layers = (*each, up, features), (*each, up), (*each, out, hidden), (*each, out)
    shapes = (features,), (features,), (*dy.shape[:-1], slots), *of_layers
    dx = None
    if options.wanted[0] == "1":
        dx = framework.empty((*dy.shape[:-1], features), options.x_dtype)
    gradients = (
        framework.empty(shape, name) if name else None
        for shape, name in zip(shapes, dtypes, strict=True)
    )
    tokens = row_count(dy.shape)
    return dx, *gradients, _bytes(framework, tokens, "backward_workspace", sizes, options)


def _run_backward(*arguments: Any) -> None:
    given, results = arguments[:13], arguments[13:22]
    dy, shares = given[0], given[6]
    sizes, options, _ = _gradient_layer(shares, arguments[22:-1])
    passes = _passes(row_count(dy.shape), sizes, options, dy.device)
    passes.run_backward(given, results, (False, False), arguments[-1])


layer_backward: Final = Op(
    "layer_backward",
    {
        "dy": Array,
        "kept": Array | None,
        "x": Array | None,
        "norm_weight": Array | None,
        "norm_bias": Array | None,
        "sum_gradient": Array | None,
        "topk_weights": Array | None,
        "topk_ids": Array | None,
        "down_bias": Array | None,
        "up_transposed": Array | None,
        "up_scale": Array | None,
        "down_transposed": Array | None,
        "down_scale": Array | None,
        **_OPTIONS,
        **GradientOptions.__annotations__,
    },
    results=(
        "dx?",
        "dnorm_weight?",
        "dnorm_bias?",
        "dtopk_weights?",
        "dup?",
        "dup_bias?",
        "ddown?",
        "ddown_bias?",
        "workspace?",
    ),
    allocate=_allocate_backward,
    function=lambda: _run_backward,
)
"""The gradients that are wanted, of dY [..., out] and what layer_forward has kept; x is what was
normed, where dx goes through a norm."""
