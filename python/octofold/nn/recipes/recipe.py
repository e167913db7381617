"""Recipes as values: the parts that they are made of, and the named ones."""

from dataclasses import dataclass, fields
from typing import Any, Final

from ..._core.dtypes import FP8
from ..._core.errors import InvalidArgumentError, invalid_argument

_GRANULARITIES: Final = ("tensor", "channel", "1x128", "128x128")
TWO_LEVEL: Final = "two-level"
_CONSTANT_ALONG_K: Final = ("tensor", "channel")
PROFILES: Final = (
    "deepgemm",
    "vllm",
    "vllm-per-token",
    "te",
    "torchao",
    "torchao-tensor",
    "deepseek",
    "compressed-tensors",
    "compressed-tensors-0.12",
)


@dataclass(frozen=True)
class Product:
    """How one product a · bᵀ is made in FP8: what shares a scale in each operand, as in quantize(),
    and in gemm() the accumulation. "channel" is a scale for each row of the operand as the product
    reads it, so one that is constant along the dimension that is summed. "two-level", for x in the
    weight gradient only: a factor for each of x's features, from the largest magnitudes of the step
    before, and 128x128 scales of x divided by them.
    """

    a: str
    b: str
    fast_accumulation: bool = False
    """Sum all of K in the tensor core; for "tensor" and "channel" scales only."""


@dataclass(frozen=True)
class Delayed:
    """Scales from the largest magnitudes of the steps before, instead of those of the data."""

    history: int = 1024
    """Steps that are looked back on."""
    margin: int = 0
    """Powers of two that are left free above the largest magnitude of the history."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a linear layer computes its three products. None: in high precision, in the dtype of the
    layer's result.

    For x [tokens, in], weight [out, in] and dY, the gradient of the result [tokens, out]:

    | field         | product       | operand a        | operand b              | sums over |
    |---------------|---------------|------------------|------------------------|-----------|
    | `output`      | x · weightᵀ   | x [tokens, in]   | weight [out, in]       | in        |
    | `grad_input`  | dY · weight   | dY [tokens, out] | weightᵀ [in, out]      | out       |
    | `grad_weight` | dYᵀ · x       | dYᵀ [out, tokens]| xᵀ [in, tokens]        | tokens    |

    Raises InvalidArgumentError that names the field.
    """

    output: Product | None
    grad_input: Product | None
    grad_weight: Product | None
    input_dtype: str = "e4m3"
    weight_dtype: str = "e4m3"
    gradient_dtype: str = "e4m3"
    power_of_two: bool = False
    """Scales rounded to powers of two, by the rule of the profile."""
    profile: str = "torchao"
    """Whose arithmetic the casts follow, as in quantize(). Gradients are small: "deepgemm" would
    give units below 1e-4 the scale of 1e-4. "te" lets infinities saturate, and "deepseek" makes NaN
    of zeros."""
    delayed: Delayed | None = None
    """For products of "tensor" scales, `output` among them; None: scales are those of the data."""

    def __post_init__(self) -> None:
        for name in ("output", "grad_input", "grad_weight"):
            _require_product(name, getattr(self, name), self.delayed is not None)
        for name in ("input_dtype", "weight_dtype", "gradient_dtype"):
            _require_one_of(name, getattr(self, name), FP8)
        _require_one_of("profile", self.profile, PROFILES)
        _require_type("power_of_two", self.power_of_two, bool, "True or False")
        if self.delayed is None:
            return
        _require_type("delayed", self.delayed, Delayed, "a Delayed or None")
        if self.output is None:
            raise _wrong("output", "a Product, as scales are delayed", None)
        _require_at_least("delayed.history", self.delayed.history, 1)
        _require_at_least("delayed.margin", self.delayed.margin, 0)
        if self.power_of_two:
            expected = "False, as delayed scales are not rounded"
            raise _wrong("power_of_two", expected, self.power_of_two)

    @property
    def two_level(self) -> bool:
        """Whether x has two-level scales in the weight gradient."""
        return self.grad_weight is not None and self.grad_weight.b == TWO_LEVEL

    @property
    def keeps_state(self) -> bool:
        """Whether scales come from the steps before, so that it takes a layer to keep them."""
        return self.delayed is not None or self.two_level

    @property
    def name(self) -> str:
        """Of the named recipe that is equal to this one, else "custom"."""
        for name, recipe in NAMED.items():
            if recipe == self:
                return name
        return "custom"

    def __str__(self) -> str:
        if self.name != "custom":
            return self.name
        texts = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return f"Recipe({', '.join(texts)})"


def _wrong(field: str, expected: str, got: object) -> InvalidArgumentError:
    return invalid_argument("Recipe", field, expected, repr(got))


def _require_type(field: str, value: object, kind: type, words: str) -> None:
    if not isinstance(value, kind):
        raise _wrong(field, words, value)


def _require_one_of(field: str, value: object, among: tuple[str, ...]) -> None:
    if value not in among:
        raise _wrong(field, f"one of {', '.join(among)}", value)


def _require_at_least(field: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _wrong(field, f"a whole number of at least {least}", value)


def _require_product(field: str, product: object, delayed: bool) -> None:
    if product is None:
        return
    if not isinstance(product, Product):
        raise _wrong(field, "a Product, or None for high precision", product)
    for operand, granularity in (("a", product.a), ("b", product.b)):
        may_be_two_level = (field, operand) == ("grad_weight", "b")
        among = (*_GRANULARITIES, TWO_LEVEL) if may_be_two_level else _GRANULARITIES
        _require_one_of(f"{field}.{operand}", granularity, among)
        if delayed and granularity != "tensor":
            raise _wrong(f"{field}.{operand}", "tensor, as scales are delayed", granularity)
    _require_type(f"{field}.fast_accumulation", product.fast_accumulation, bool, "True or False")
    varying = [scales for scales in (product.a, product.b) if scales not in _CONSTANT_ALONG_K]
    if product.fast_accumulation and varying:
        expected = f"False, as {varying[0]} scales vary along K"
        raise _wrong(f"{field}.fast_accumulation", expected, True)


blockwise: Final = Recipe(
    output=Product("1x128", "128x128"),
    grad_input=Product("1x128", "128x128"),
    grad_weight=Product("1x128", "channel"),
)
"""DeepSeek-V3's: fine scales, which outliers hardly harm. For the weight gradient each input
feature has one scale over all tokens: as accurate as 1x128 on both sides, and a factor less to
apply for each 128 tokens."""

blockwise_two_level: Final = Recipe(
    output=Product("1x128", "128x128"),
    grad_input=Product("1x128", "128x128"),
    grad_weight=Product("1x128", TWO_LEVEL),
)
"""`blockwise` whose x is read once, not twice: for the weight gradient the factor of each input
feature is its largest magnitude in the step before, and 128x128 scales are of the data as it is."""

rowwise: Final = Recipe(
    output=Product("channel", "channel", fast_accumulation=True),
    grad_input=Product("channel", "channel"),
    grad_weight=Product("channel", "channel"),
    power_of_two=True,
)
"""torchao's: a scale for each row of every operand."""

rowwise_with_gw_hp: Final = Recipe(
    output=Product("channel", "channel", fast_accumulation=True),
    grad_input=Product("channel", "tensor"),
    grad_weight=None,
    power_of_two=True,
)
"""torchao's: the weight gradient in high precision, for which x itself is kept."""

tensorwise: Final = Recipe(
    output=Product("tensor", "tensor", fast_accumulation=True),
    grad_input=Product("tensor", "tensor"),
    grad_weight=Product("tensor", "tensor"),
    gradient_dtype="e5m2",
)
"""torchao's default: one scale for each tensor, gradients in e5m2."""

delayed: Final = Recipe(
    output=Product("tensor", "tensor", fast_accumulation=True),
    grad_input=Product("tensor", "tensor"),
    grad_weight=Product("tensor", "tensor"),
    gradient_dtype="e5m2",
    profile="te",
    delayed=Delayed(),
)
"""Transformer Engine's DelayedScaling: one scale for each tensor, from the steps before."""

NAMED: Final[dict[str, Recipe]] = {
    "blockwise": blockwise,
    "blockwise_two_level": blockwise_two_level,
    "rowwise": rowwise,
    "rowwise_with_gw_hp": rowwise_with_gw_hp,
    "tensorwise": tensorwise,
    "delayed": delayed,
}


def recipe_of(operation: str, recipe: Any) -> Recipe:
    """A Recipe as it is, a name as what it stands for; anything else is the operation's error."""
    if isinstance(recipe, Recipe):
        return recipe
    named = NAMED.get(recipe) if isinstance(recipe, str) else None
    if named is None:
        expected = f"a Recipe or one of {', '.join(NAMED)}"
        raise invalid_argument(operation, "recipe", expected, repr(recipe))
    return named
