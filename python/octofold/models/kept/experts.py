"""The record of an octofold.nn.Experts, which a file keeps, and the experts of a record."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from torch import Tensor
from torch.nn import Module

from ..._core.formats import Format
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ...nn.autograd.experts import expert_recipe_of
from ...nn.layers.experts import Experts, Stacks
from ...nn.recipes.choice import require_compute

KIND: Final = "Experts"
_NAME: Final = "octofold.models.load"
_WEIGHTS: Final = ("gate_up_proj", "up_proj", "down_proj")
NAMES: Final = tuple(
    f"{weight}{part}" for weight in _WEIGHTS for part in ("", "_bias", "_scale_inv", "_scale")
)
"""The names of its tensors."""


def record_of_experts(module: Experts) -> dict[str, Any] | None:
    """None: its parameters are those of the model's own class, which takes them. `router` is yet to
    be said: whether the block's router chooses by octofold.ops.top_k()."""
    is_fp8 = isinstance(module.weight(module.weight_names[1]), ScaledTensor)
    if not is_fp8 and module.in_files == Stacks():
        return None
    return {
        "kind": KIND,
        "activation": module.activation,
        "recipe": asdict(module.recipe),
        "compute": module.compute,
        "main_grad": module.main_grad,
        "in_files": list(module.in_files),
        "router": False,
    }


def router_beside(model: Module, name: str) -> Any:
    """The router of the block whose experts have this name; None: it has none."""
    block = model.get_submodule(name.rpartition(".")[0]) if "." in name else model
    return block._modules.get("gate")


def require_experts(record: Mapping[str, Any], recipe: Recipe) -> None:
    """Checks that this is such a record. Raises as require_record()."""
    require_compute(_NAME, record["compute"])
    expert_recipe_of(_NAME, recipe)
    Experts(1, 1, 1, activation=record["activation"], device="meta", recipe=recipe)
    Stacks(*map(bool, record["in_files"]))
    bool(record["main_grad"])
    bool(record["router"])


def why_no_experts(record: Mapping[str, Any], module: Any, tensors: Mapping[str, Tensor]) -> str:
    """Why a module cannot become experts of these tensors; "" where it can."""
    own, down = getattr(module, "down_proj", None), tensors.get("down_proj")
    if not isinstance(own, Tensor) or own.dim() != 3 or down is None:
        return type(module).__qualname__
    shape = tuple(Stacks(*record["in_files"]).second_to_files(down).shape)
    return "" if tuple(own.shape) == shape else f"one of {list(own.shape)} for {list(shape)}"


def experts_of(
    record: Mapping[str, Any], recipe: Recipe, tensors: Mapping[str, Tensor], training: bool
) -> Experts:
    """tensors: by their names in the module."""
    assert recipe.output is not None
    first = next(name for name in _WEIGHTS if name in tensors)
    weights = [_weight(tensors, name, recipe.output.b) for name in (first, "down_proj")]
    biases = [tensors.get(f"{name}_bias") for name in (first, "down_proj")]
    experts = Experts.from_weights(
        *(weights[0], weights[1], biases[0], biases[1], record["activation"], recipe),
        main_grad=record["main_grad"],
        compute=record["compute"],
    )
    experts.in_files = Stacks(*record["in_files"])
    return experts.train(training)


def _weight(tensors: Mapping[str, Tensor], name: str, format: Format) -> Tensor | ScaledTensor:
    scale = tensors.get(f"{name}_scale_inv", tensors.get(f"{name}_scale"))
    if scale is None:
        return tensors[name]
    return ScaledTensor(tensors[name], scale, format.granularity)
