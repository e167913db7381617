"""The record of an Fp8Weight, or of an octofold.nn.Experts, which a file keeps, and what is made of
a record."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..._core.formats import Format
from ..._core.recipe import Product, Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import DTYPES, NAMES
from ...nn.autograd.experts import expert_recipe_of
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.layers.experts import Experts, Stacks
from ...nn.layers.fp8_parameters import held, hold
from ...nn.recipes.choice import require_compute
from ..layerwise.casting import Before
from ..layerwise.selection import BEFORE

Record = dict[str, Any]
"""kind: a name below; granularity, weight_dtype: of its scales and codes; and what its kind takes
beside them."""

PARAMETER: Final = "Fp8Weight"


def record_of(module: Module) -> Record | None:
    """None: it has no FP8 weight of Octofold's."""
    parameter = held(module)
    if parameter is not None:
        before = module.__dict__.get(BEFORE)
        wide = parameter.compute_dtype
        return {
            "kind": PARAMETER,
            "granularity": parameter.granularity,
            "weight_dtype": NAMES[parameter.codes.dtype],
            "dtype": NAMES[parameter.dtype],
            "compute": parameter.compute,
            "compute_dtype": None if wide is None else NAMES[wide],
            "rule": parameter.rule,
            "power_of_two": parameter.power_of_two,
            "recipe": None if parameter.recipe is None else asdict(parameter.recipe),
            "few_tokens": parameter.few_tokens,
            "batch_invariant": parameter.batch_invariant,
            "requires_grad": None if before is None else before.requires_grad,
        }
    return record_of_experts(module) if type(module) is Experts else None


def why_not(record: Record, module: Module) -> str | None:
    """Why a module cannot become a layer of this record; None where it can."""
    fits = module._parameters.get("weight") is not None and held(module) is None
    return None if fits else type(module).__qualname__


def weight_of(record: Record, weight: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes and scales of what a file has for a weight. Without scales it has the numbers that they
    stand for, of which the cast makes the same codes again."""
    if scale is not None:
        return weight, scale
    cast = Fp8Weight.cast(weight, _format(record))
    return cast.codes, cast.scale


def layer_of(
    record: Record,
    module: Module,
    codes: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    device: torch.device,
) -> Module:
    """The module itself, with the weight of a record, and a bias."""
    if bias is not None:
        module._parameters["bias"] = Parameter(bias)
    hold(module, _parameter(record, codes, scale))
    if record["requires_grad"] is not None:
        module.before_casting = Before(record["requires_grad"])  # type: ignore[assignment]
    return module.to(device)


def _parameter(record: Record, codes: Tensor, scale: Tensor) -> Fp8Weight:
    wide, options = record["compute_dtype"], {name: record[name] for name in Fp8Weight.OPTIONS}
    options["compute_dtype"] = None if wide is None else DTYPES[wide]
    options["recipe"] = None if record["recipe"] is None else recipe_of_record(record)
    scaled = ScaledTensor(codes, scale, record["granularity"])
    return Fp8Weight.of(scaled, DTYPES[record["dtype"]], **options)


def require_record(record: Any) -> None:
    """Checks that this is a record. Raises ValueError, KeyError, TypeError or AttributeError, as
    does making what it says."""
    kind = record["kind"]
    if kind == EXPERTS:
        require_experts(record, recipe_of_record(record))
    elif kind == PARAMETER:
        format = _format(record)
        meta = torch.empty(1, 1, dtype=DTYPES[format.dtype], device="meta")
        _parameter(record, meta, meta)
        bool(record["requires_grad"])
    else:
        raise ValueError(f"kind {kind!r}")


def _format(record: Record) -> Format:
    how = {name: record[name] for name in ("rule", "power_of_two")}
    return Format(record["weight_dtype"], record["granularity"], **how)


def recipe_of_record(record: Record) -> Recipe:
    """The recipe in a record of a kind that has one."""
    products = {field.name: record["recipe"][field.name] for field in fields(Recipe)}
    return Recipe(
        **{name: None if each is None else _product(each) for name, each in products.items()}
    )


def _product(values: dict[str, Any]) -> Product:
    operands = {name: Format(**values[name]) for name in ("a", "b")}
    return Product(**{**values, **operands})


EXPERTS: Final = "Experts"
_NAME: Final = "octofold.models.load"
_WEIGHTS: Final = ("gate_up_proj", "up_proj", "down_proj")
EXPERT_NAMES: Final = tuple(
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
        "kind": EXPERTS,
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
    record: Mapping[str, Any],
    recipe: Recipe,
    tensors: Mapping[str, Tensor],
    training: bool,
    device: torch.device,
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
    return experts.train(training).to(device)


def _weight(tensors: Mapping[str, Tensor], name: str, format: Format) -> Tensor | ScaledTensor:
    scale = tensors.get(f"{name}_scale_inv", tensors.get(f"{name}_scale"))
    if scale is None:
        return tensors[name]
    return ScaledTensor(tensors[name], scale, format.granularity)
