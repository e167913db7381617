"""The conversion of models to FP8 layers, and back."""

from typing import Final

from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe, recipe_of
from ..layers.conv1d import Conv1D, conv1ds, is_conv1d
from ..layers.linear import Linear
from ..layers.mlp import MLP
from ..layers.norm_linear import NormLinear
from .picking import ModuleFilter, pick
from .report import Conversion

_NAME: Final = "octofold.nn.convert"


def convert(
    model: Module,
    recipe: Recipe | str = "blockwise",
    module_filter_fn: ModuleFilter | None = None,
    *,
    main_grad: bool = False,
    force_fp8: bool = False,
    fsdp_fp8: bool = False,
) -> Conversion:
    """Make each torch.nn.Linear of a model an octofold.nn.Linear with the same parameters, and each
    Conv1D of transformers (GPT-2) an octofold.nn.Conv1D.

    model: changed in place; a torch.nn.Linear itself is left as it is.
    recipe, main_grad, force_fp8: as in octofold.nn.Linear.
    module_filter_fn: (module, fully qualified name) → whether to convert it, as in torchao: asked
        for each layer that can be converted. None: all except output heads (also those that are
        tied to embeddings) and adapters of PEFT.
    fsdp_fp8: whether FSDP2 is to gather the weights in FP8, as octofold.distributed.gather_in_fp8()
        says. The optimizer is then to be made after fully_shard().

    Layers that would compute something else are left alone, whatever the filter says: subclasses of
    torch.nn.Linear, parametrized layers, layers of octofold.nn.MLP and NormLinear, layers whose
    forward was replaced, and layers whose weight other modules read, as torch's
    TransformerEncoderLayer does in evaluation. For a layer that stands in several places the filter
    is asked once, with the first of its names, and it stays one layer. Convert before fully_shard()
    and torch.compile. The optimizer may be made before or after: it sees the same parameters.
    restore() is the way back.

    Returns a report that holds the model (for a torch.nn.Linear, the new layer) and says what
    became of each layer.
    Raises InvalidArgumentError, which names the argument: if no layer is to be converted, and for
    picked layers that are octofold.nn.Linear already. The model is then as it was.
    """
    recipe = recipe_of(_NAME, recipe)
    if fsdp_fp8:
        # Imports torch.distributed, which takes longer than all of torch.nn.
        from ..fsdp.sharding import gather_in_fp8, require_travels

        require_travels(_NAME, recipe)
    alone = {
        id(part): f"it is a part of octofold.nn.{type(module).__name__}"
        for module in (model.modules() if isinstance(model, Module) else ())
        if isinstance(module, MLP | NormLinear)
        for part in module.modules()
        if isinstance(part, Linear)
    }
    if recipe.keeps_state or main_grad:
        alone |= conv1ds(
            model, "octofold.nn.Conv1D has no main_grad, and no recipe that keeps state"
        )
    picked = pick(_NAME, model, module_filter_fn, (Linear,), alone)
    new: dict[int, Module] = {}
    converted: dict[str, str] = {}
    for name, layer in picked.layers.items():
        fp8: Linear | Conv1D
        if is_conv1d(layer):
            fp8 = Conv1D.from_conv1d(layer, recipe, force_fp8=force_fp8)
        else:
            fp8 = Linear.from_linear(layer, recipe, main_grad=main_grad, force_fp8=force_fp8)
        new[id(layer)] = fp8
        converted[name] = f"octofold.nn.{type(fp8).__name__}, recipe={recipe}"
    model = replaced(model, new)
    if fsdp_fp8:
        gather_in_fp8(model, _NAME)
    return Conversion(model, converted, picked.left_alone)


def restore(model: Module) -> Module:
    """Undo convert(), in place: each octofold.nn.Linear becomes a torch.nn.Linear with the same
    parameters, and each octofold.nn.Conv1D a Conv1D of transformers. Returns the model; for a
    layer, the new one. A model that has none is returned as it is.
    Raises InvalidArgumentError for a layer that torch has parametrized since, with nothing changed.
    """
    if not isinstance(model, Module):
        got = type(model).__qualname__
        raise invalid_argument("octofold.nn.restore", "model", "a torch.nn.Module", got)
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
