"""The conversion of models to FP8 layers, or to layers whose weights alone are FP8, and back."""

from typing import Any, Final

import torch
from torch.nn import Module

from ..._core.errors import invalid_argument, require_type
from ..._core.formats import Format, FormatLike, format_of
from ..._core.recipe import Recipe, recipe_of
from ..._info import LINEAR, TRAINED
from ..._ops.quantize import quantize
from ..layers.conv1d import Conv1D, conv1ds, is_conv1d
from ..layers.fp8_parameters import inference_linear, weight_of, weight_only_linear, with_weight
from ..layers.linear import Linear
from ..layers.mlp import MLP
from ..layers.norm_linear import NormLinear
from ..recipes.kernels import layer_products
from .fp8_layers import frozen_weight, words_of
from .picking import Conversion, ModuleFilter, pick

_NAME: Final = "octofold.nn.convert"
_WEIGHT_ONLY: Final = "octofold.nn.convert_weight_only"
_ACTIVATIONS: Final = ("exact", "auto")
CONV1D: Final = (
    "its weight is stored as [in, out] (transformers' Conv1D), and no FP8 layer stores it so"
)


def convert(
    model: Module,
    recipe: Recipe | str = "blockwise",
    module_filter_fn: ModuleFilter | None = None,
    *,
    main_grad: bool = False,
    force_fp8: bool = False,
) -> Conversion:
    """Make each torch.nn.Linear of a model an octofold.nn.Linear with the same parameters, and each
    Conv1D of transformers (GPT-2) an octofold.nn.Conv1D, where the GPU multiplies FP8.

    No GPU makes this an error. On one without FP8 products, by the device where the weight is, a
    layer that is trained is left as it is. One that is frozen (no parameter of it requires a
    gradient) becomes what octofold.nn.inference_linear() makes, with an FP8 weight and 16-bit
    activations there; what the cast rounds away is gone. A layer that comes to another GPU later
    asks again: octofold.nn.Linear computes as torch.nn.Linear does where there are no FP8 products,
    and one with an FP8 weight multiplies FP8 with FP8 where there are some.

    model: changed in place; a torch.nn.Linear itself is left as it is.
    recipe, main_grad, force_fp8: as in octofold.nn.Linear.
    module_filter_fn: (module, fully qualified name) → whether to convert it, as in torchao: asked
        for each layer that can be converted. None: all except output heads (also those that are
        tied to embeddings) and adapters of PEFT.

    Layers that would compute something else are left alone, whatever the filter says: subclasses of
    torch.nn.Linear, parametrized layers, layers of octofold.nn.MLP and NormLinear, layers whose
    forward was replaced, and layers whose weight other modules read, as torch's
    TransformerEncoderLayer does in evaluation. For a layer that stands in several places the filter
    is asked once, with the first of its names, and it stays one layer. Convert before fully_shard()
    and torch.compile. The optimizer may be made before or after: it sees the same parameters.
    restore() is the way back, except from FP8 weights.

    Returns a report that holds the model (for a torch.nn.Linear, the new layer) and says what
    became of each layer, which way it computes and why.
    Raises InvalidArgumentError, which names the argument: if no layer is to be converted, and for
    picked layers that are octofold.nn.Linear already. The model is then as it was.
    """
    recipe = recipe_of(_NAME, recipe)
    alone = {
        id(part): f"it is a part of octofold.nn.{type(module).__name__}"
        for module in (model.modules() if isinstance(model, Module) else ())
        if isinstance(module, MLP | NormLinear)
        for part in module.modules()
        if isinstance(part, Linear)
    }
    if main_grad:
        alone |= conv1ds(model, "octofold.nn.Conv1D has no main_grad")
    picked = pick(_NAME, model, module_filter_fn, (Linear,), alone)
    new: dict[int, Module] = {}
    converted: dict[str, str] = {}
    frozen: dict[str, Any] = {}
    for name, layer in picked.layers.items():
        fp8: Linear | Conv1D
        products = layer_products(LINEAR, TRAINED, layer.weight.device)
        is_frozen = not any(parameter.requires_grad for parameter in layer.parameters())
        if products.why_not and is_frozen and not is_conv1d(layer):
            frozen[name] = layer
            continue
        if products.why_not:
            picked.left_alone[name] = f"its products stay in high precision: {products.why_not}"
            continue
        if is_conv1d(layer):
            fp8 = Conv1D.from_conv1d(layer, recipe, force_fp8=force_fp8)
        else:
            fp8 = Linear.from_linear(layer, recipe, main_grad=main_grad, force_fp8=force_fp8)
        new[id(layer)] = fp8
        converted[name] = f"octofold.nn.{type(fp8).__name__}, recipe={recipe}"
    model = replaced(model, new)
    return _with_fp8_weights(Conversion(model, converted, picked.left_alone), frozen, recipe)


def _with_fp8_weights(report: Conversion, linears: dict[str, Any], recipe: Recipe) -> Conversion:
    """Give these FP8 weights: one after another, so that memory never holds two of each."""
    model, converted, left_alone = report.model, {**report.converted}, {**report.left_alone}
    while linears:
        name, linear = linears.popitem()
        if recipe.output is None:
            left_alone[name] = f"the recipe {recipe} has x · weightᵀ in high precision"
            continue
        layer = inference_linear(linear, recipe)
        converted[name] = words_of(weight_of(layer))
        model = replaced(model, {id(linear): layer})
    return Conversion(model, converted, left_alone)


def restore(model: Module) -> Module:
    """Undo convert(), in place: each octofold.nn.Linear becomes a torch.nn.Linear with the same
    parameters, and each octofold.nn.Conv1D a Conv1D of transformers. Returns the model; for a
    layer, the new one. A model that has none is returned as it is.
    Raises InvalidArgumentError for a layer that torch has parametrized since, with nothing changed.
    """
    require_type("octofold.nn.restore", "model", model, Module, "a torch.nn.Module")
    new: dict[int, Module] = {}
    for module in model.modules():
        if isinstance(module, Linear):
            new[id(module)] = module.to_linear()
        elif isinstance(module, Conv1D):
            new[id(module)] = module.to_conv1d()
    return replaced(model, new)


def replaced(model: Module, new: dict[int, Module]) -> Module:
    """The model with some modules, by their identities, replaced wherever they stand."""
    for parent in list(model.modules()):
        # Not named_children(), which names a module that stands there twice only once.
        for name, child in list(parent._modules.items()):
            if id(child) in new:
                setattr(parent, name, new[id(child)])
    return new.get(id(model), model)


@torch.no_grad()
def convert_weight_only(
    model: Module,
    format: FormatLike = "128x128",
    module_filter_fn: ModuleFilter | None = None,
    *,
    activations: str = "exact",
    batch_invariant: bool = False,
) -> Conversion:
    """Make each torch.nn.Linear of a model one with an FP8 weight, by weight_only_linear().

    model: changed in place; a torch.nn.Linear itself is left as it is. Everything that is not
        linear stays as it is: have the model in float16 or bfloat16, or use autocast.
    format: how weights are cast, an octofold.Format or its words.
    module_filter_fn: as in octofold.nn.convert().
    activations: "exact" leaves them as they are. With "auto" each layer casts the activations of
        more than a few tokens on a device that multiplies FP8 with FP8 (a GPU with FP8 units, the
        CPU): of normal numbers a result then loses 2.6 to 2.7 % in the norm (e4m3, all
        granularities). On others they stay exact.
    batch_invariant: as of weight_only_linear(); False with "auto", where the number of tokens
        decides.

    Whatever the filter says, the layers that convert() always leaves alone are left alone here too:
    above all layers whose weight other modules read, which FP8 would break. A layer that stands in
    several places stays one. There is no way back, because what the cast rounds away is gone.
    Returns a report that holds the model (for a torch.nn.Linear, the new layer) and says what
    became of each layer.
    Raises InvalidArgumentError, which names the argument; the model is then as it was.
    """
    format = format_of(_WEIGHT_ONLY, format)
    if activations not in _ACTIVATIONS:
        expected = " or ".join(f"'{word}'" for word in _ACTIVATIONS)
        raise invalid_argument(_WEIGHT_ONLY, "activations", expected, activations)
    if batch_invariant and activations == "auto":
        expected = "False with activations='auto', where the number of tokens decides"
        raise invalid_argument(_WEIGHT_ONLY, "batch_invariant", expected, repr(batch_invariant))
    picked = pick(_WEIGHT_ONLY, model, module_filter_fn, but=conv1ds(model, CONV1D))
    converted = dict.fromkeys(picked.layers, "")
    while picked.layers:  # one after another, so that memory never holds two of each
        name, linear = picked.layers.popitem()
        layer = _layer_of(linear, format, activations, batch_invariant)
        converted[name] = words_of(weight_of(layer))
        model = replaced(model, {id(linear): layer})
    return Conversion(model, converted, picked.left_alone)


def _layer_of(
    linear: torch.nn.Linear, format: Format, activations: str, batch_invariant: bool
) -> torch.nn.Linear:
    if activations == "exact":
        return weight_only_linear(linear, format, batch_invariant=batch_invariant)
    weight = linear.weight.detach()
    frozen = frozen_weight(quantize(weight, format), weight.dtype, format=format)
    return with_weight(linear, frozen)
