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
from ...nn.casting.weight_layouts import Stacks
from ...nn.layers.experts import Experts
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
        requires_grad = None if before is None else before.requires_grad
        return {"kind": PARAMETER, **_options_of(parameter), "requires_grad": requires_grad}
    return record_of_experts(module) if type(module) is Experts else None


def _options_of(weight: Fp8Weight) -> Record:
    """The arguments of _parameter() beside codes and scales."""
    wide = weight.compute_dtype
    return {
        "granularity": weight.granularity,
        "weight_dtype": NAMES[weight.codes.dtype],
        "dtype": NAMES[weight.dtype],
        "compute": weight.compute,
        "compute_dtype": None if wide is None else NAMES[wide],
        "rule": weight.rule,
        "power_of_two": weight.power_of_two,
        "recipe": None if weight.recipe is None else asdict(weight.recipe),
        "few_tokens": weight.few_tokens,
        "batch_invariant": weight.batch_invariant,
    }


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
        require_experts(record)
    elif kind == PARAMETER:
        _require_weight(record)
        bool(record["requires_grad"])
    else:
        raise ValueError(f"kind {kind!r}")


def _require_weight(record: Record) -> None:
    meta = torch.empty(1, 1, dtype=DTYPES[_format(record).dtype], device="meta")
    _parameter(record, meta, meta)


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


def record_of_experts(module: Experts) -> Record | None:
    """None: its parameters are those of the model's own class, which takes them. `router` is yet to
    be said: whether the block's router chooses by octofold.ops.top_k()."""
    coded = [weight for name in module.weight_names if (weight := held(module, name)) is not None]
    if not coded and module.in_files == Stacks():
        return None
    return {
        "kind": EXPERTS,
        "activation": module.activation,
        "recipe": asdict(module.recipe),
        "weight": _options_of(coded[0]) if coded else None,
        "main_grad": module.main_grad,
        "in_files": list(module.in_files),
        "router": False,
    }


def router_beside(model: Module, name: str) -> Any:
    """The router of the block whose experts have this name; None: it has none."""
    block = model.get_submodule(name.rpartition(".")[0]) if "." in name else model
    return block._modules.get("gate")


def require_experts(record: Record) -> None:
    """Checks that this is such a record. Raises as require_record()."""
    recipe = expert_recipe_of(_NAME, recipe_of_record(record))
    if record["weight"] is not None:
        require_compute(_NAME, record["weight"]["compute"])
        _require_weight(record["weight"])
    Experts(1, 1, 1, activation=record["activation"], device="meta", recipe=recipe)
    Stacks(*map(bool, record["in_files"]))
    bool(record["main_grad"])
    bool(record["router"])


def why_no_experts(record: Record, module: Any, tensors: Mapping[str, Tensor]) -> str:
    """Why a module cannot become experts of these tensors; "" where it can."""
    own, down = getattr(module, "down_proj", None), tensors.get("down_proj")
    if not isinstance(own, Tensor) or own.dim() != 3 or down is None:
        return type(module).__qualname__
    shape = tuple(Stacks(*record["in_files"]).to_files("down_proj", down).shape)
    return "" if tuple(own.shape) == shape else f"one of {list(own.shape)} for {list(shape)}"


def experts_of(
    record: Record, tensors: Mapping[str, Tensor], training: bool, device: torch.device
) -> Experts:
    """tensors: by their names in the module."""
    first = next(name for name in _WEIGHTS if name in tensors)
    weights = [_weight(record, tensors, name) for name in (first, "down_proj")]
    biases = [tensors.get(f"{name}_bias") for name in (first, "down_proj")]
    experts = Experts.from_weights(
        *(*weights, *biases, record["activation"], recipe_of_record(record)),
        main_grad=record["main_grad"],
    )
    experts.in_files = Stacks(*record["in_files"])
    return experts.train(training).to(device)


def _weight(record: Record, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    scale = tensors.get(f"{name}_scale_inv", tensors.get(f"{name}_scale"))
    return tensors[name] if scale is None else _parameter(record["weight"], tensors[name], scale)
