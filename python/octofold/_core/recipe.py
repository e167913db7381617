"""Recipes as values: the parts that they are made of, and the named ones."""

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Final

from .errors import InvalidArgumentError, invalid_argument
from .formats import Format, FormatLike, Rule, format_of, require_alike

_CONSTANT_ALONG_K: Final = ("tensor", "channel")


@dataclass(frozen=True, init=False)
class Product:
    """How one product a · bᵀ is made in FP8: the formats to which its operands are cast, each a
    Format or its words, and how gemm() accumulates. "channel" is a scale for each row of the
    operand as the product reads it, so it is constant along the dimension that is summed.

    fast_accumulation: sum all of K in the tensor core; for "tensor" and "channel" scales only.
    batch_invariant: a row of the result depends on that row of `a` alone (gemm()).

    Raises InvalidArgumentError, which names the argument.
    """

    a: Format
    b: Format
    _: KW_ONLY
    fast_accumulation: bool = False
    batch_invariant: bool = False

    def __init__(
        self,
        a: FormatLike,
        b: FormatLike,
        *,
        fast_accumulation: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        object.__setattr__(self, "a", format_of("Product", a, "a"))
        object.__setattr__(self, "b", format_of("Product", b, "b"))
        object.__setattr__(self, "fast_accumulation", fast_accumulation)
        object.__setattr__(self, "batch_invariant", batch_invariant)
        for name in ("fast_accumulation", "batch_invariant"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise invalid_argument("Product", name, "True or False", repr(value))
        granularities = self.a.granularity, self.b.granularity
        varying = [scales for scales in granularities if scales not in _CONSTANT_ALONG_K]
        if fast_accumulation and varying:
            expected = f"False, as {varying[0]} scales vary along K"
            raise invalid_argument("Product", "fast_accumulation", expected, "True")


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

    An operand that stands in two products is cast for both at once: its two formats differ in
    granularity alone. Gradients are small: the rule "deepgemm" would give units below 1e-4 the
    scale of 1e-4. "te" lets infinities saturate, and "torchao-tensor" makes NaN of zeros.
    Raises InvalidArgumentError that names the field.
    """

    output: Product | None
    grad_input: Product | None
    grad_weight: Product | None

    def __post_init__(self) -> None:
        for name in ("output", "grad_input", "grad_weight"):
            _require_product(name, getattr(self, name))
        for name in ("output", "grad_input"):
            _require_rows_apart(name, getattr(self, name))
        for left, right in (
            ("output.a", "grad_weight.b"),
            ("output.b", "grad_input.b"),
            ("grad_input.a", "grad_weight.a"),
        ):
            a, b = self._format(left), self._format(right)
            if a is not None and b is not None:
                require_alike("Recipe", left, a, right, b)

    def _format(self, operand: str) -> Format | None:
        """The format of an operand, "output.a"; None if its product is not cast."""
        name, _, side = operand.partition(".")
        product: Product | None = getattr(self, name)
        if product is None:
            return None
        return product.a if side == "a" else product.b

    @property
    def batch_invariant(self) -> bool:
        """True if a token's result depends on that token alone."""
        return self.output is not None and self.output.batch_invariant

    @property
    def name(self) -> str:
        """The name of the named recipe that is equal to this one, else "custom"."""
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


def _require_product(field: str, product: object) -> None:
    if product is not None and not isinstance(product, Product):
        raise _wrong(field, "a Product, or None for high precision", product)


def _require_rows_apart(field: str, product: Product | None) -> None:
    if product is None or not product.batch_invariant:
        return
    if product.a.granularity not in ("1x128", "channel"):
        expected = "one of scales that rows have for themselves, as the product is batch_invariant"
        raise _wrong(f"{field}.a", expected, product.a.granularity)


blockwise: Final = Recipe(
    output=Product("1x128 torchao", "128x128 torchao"),
    grad_input=Product("1x128 torchao", "128x128 torchao"),
    grad_weight=Product("1x128 torchao", "channel torchao"),
)
"""DeepSeek-V3's: fine scales, which outliers hardly harm. For the weight gradient each input
feature has one scale over all tokens: as accurate as 1x128 on both sides, and a factor less to
apply for each 128 tokens."""

_ROWS: Final = Format(granularity="channel", rule=Rule.TORCHAO, power_of_two=True)

rowwise: Final = Recipe(
    output=Product(_ROWS, _ROWS, fast_accumulation=True),
    grad_input=Product(_ROWS, _ROWS),
    grad_weight=Product(_ROWS, _ROWS),
)
"""torchao's: a scale for each row of every operand."""

rowwise_with_gw_hp: Final = Recipe(
    output=Product(_ROWS, _ROWS, fast_accumulation=True),
    grad_input=Product(_ROWS, replace(_ROWS, granularity="tensor")),
    grad_weight=None,
)
"""torchao's: the weight gradient in high precision, for which x itself is kept."""

tensorwise: Final = Recipe(
    output=Product("tensor torchao", "tensor torchao", fast_accumulation=True),
    grad_input=Product("e5m2 tensor torchao", "tensor torchao"),
    grad_weight=Product("e5m2 tensor torchao", "tensor torchao"),
)
"""torchao's default: one scale for each tensor, gradients in e5m2."""

NAMED: Final[dict[str, Recipe]] = {
    "blockwise": blockwise,
    "rowwise": rowwise,
    "rowwise_with_gw_hp": rowwise_with_gw_hp,
    "tensorwise": tensorwise,
}


def batch_invariant(recipe: Recipe | str) -> Recipe:
    """The same recipe, with a result and a gradient of each token that depend on that token alone:
    not on how many there are, nor on which place it has. docs/batch-invariance.md tells what that
    costs.

    Example: octofold.nn.convert(model, recipe=octofold.nn.recipes.batch_invariant("blockwise"))
    Raises InvalidArgumentError for a recipe whose tokens share scales of their own ("tensorwise").
    """
    recipe = recipe_of("batch_invariant", recipe)
    products = {
        name: replace(getattr(recipe, name), batch_invariant=True)
        for name in ("output", "grad_input")
        if getattr(recipe, name) is not None
    }
    return replace(recipe, **products)


def recipe_of(operation: str, recipe: Any) -> Recipe:
    """A Recipe as it is, a name as what it stands for; anything else is the operation's error."""
    if isinstance(recipe, Recipe):
        return recipe
    named = NAMED.get(recipe) if isinstance(recipe, str) else None
    if named is None:
        expected = f"a Recipe or one of {', '.join(NAMED)}"
        raise invalid_argument(operation, "recipe", expected, repr(recipe))
    return named
