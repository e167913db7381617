"""Implementations of a model's linear layers: BF16, torchao's recipes, Octofold's."""

import copy
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import octofold.nn
import torch
from torch import Tensor, nn

RECIPES = (
    "blockwise",
    "blockwise_two_level",
    "rowwise",
    "tensorwise",
    "rowwise_with_gw_hp",
    "delayed",
)
TORCHAO = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
BFLOAT16, BFLOAT16_COMPILED = "BF16", "BF16 compiled"


@dataclass(frozen=True)
class Variant:
    name: str
    convert: Callable[[nn.Module], None]  # in place
    compiled: bool
    recipe: str | None = None  # of Octofold

    @property
    def is_fp8(self) -> bool:
        return self.name not in (BFLOAT16, BFLOAT16_COMPILED)

    @property
    def is_ours(self) -> bool:
        return self.recipe is not None

    def build(self, model: nn.Module) -> nn.Module:
        """A copy of the model, converted. Raises what torchao raises for what it cannot do."""
        built = copy.deepcopy(model)
        self.convert(built)
        return torch.compile(built, dynamic=False) if self.compiled else built


def leave(model: nn.Module) -> None:
    """BF16 as it is."""


def by_torchao(recipe: str) -> Callable[[nn.Module], None]:
    def convert(model: nn.Module) -> None:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(recipe)
        convert_to_float8_training(model, config=config)

    return convert


def by_octofold(recipe: str) -> Callable[[nn.Module], None]:
    """FP8 whatever the layer would choose: its choice rests on these measurements."""
    return lambda model: octofold.nn.convert(model, recipe=recipe, force_fp8=True)


def variants(recipes: Sequence[str], torchao: bool, eager: bool, compiled: bool) -> list[Variant]:
    """BF16 first, then the peers, then Octofold, as far as wanted and there. BF16 and torchao are
    always there, the latter only as it is meant to be used: compiled."""
    chosen = [Variant(BFLOAT16, leave, False)]
    if compiled:
        chosen.append(Variant(BFLOAT16_COMPILED, leave, True))
    if torchao and importlib.util.find_spec("torchao"):
        chosen += [Variant(f"torchao {name} compiled", by_torchao(name), True) for name in TORCHAO]
    for recipe in recipes:
        if eager:
            chosen.append(Variant(f"octofold {recipe}", by_octofold(recipe), False, recipe))
        if compiled:
            chosen.append(Variant(f"octofold {recipe} compiled", by_octofold(recipe), True, recipe))
    return chosen


def new_linear(out_features: int, in_features: int, device: torch.device) -> nn.Module:
    """A model of one layer, as convert() swaps children only. Weights normal, of deviation 0.02."""
    layer = nn.Linear(in_features, out_features, False, device, torch.bfloat16)
    nn.init.normal_(layer.weight, std=0.02)
    return nn.Sequential(layer)


def trained(model: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A step's forward and backward: output and gradients of x and of the parameters, which are new
    memory each, as after zero_grad()."""
    y = model(x)
    return y, torch.autograd.grad(y, (x, *model.parameters()), dy)
