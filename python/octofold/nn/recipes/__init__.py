"""Recipes: what a linear layer casts to FP8, and how.

docs/recipes.md says what each costs and loses.

Named ones are the values `blockwise`, `rowwise`, `tensorwise` and `rowwise_with_gw_hp` of this
module; where a recipe is expected its name will do.
Others are made of parts:

>>> from octofold.nn.recipes import Product, Recipe
>>> square = Product("128x128", "128x128")
>>> Recipe(output=square, grad_input=square, grad_weight=None)
"""

from ..._core.recipe import (
    NAMED,
    Product,
    Recipe,
    batch_invariant,
    blockwise,
    recipe_of,
    rowwise,
    rowwise_with_gw_hp,
    tensorwise,
)

__all__ = [
    "NAMED",
    "Product",
    "Recipe",
    "batch_invariant",
    "blockwise",
    "recipe_of",
    "rowwise",
    "rowwise_with_gw_hp",
    "tensorwise",
]
