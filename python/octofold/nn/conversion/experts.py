"""The conversion of the expert blocks of transformers' models, in place."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._info import EXPERTS, FP8, LINEAR, TRAINED, WEIGHT_ONLY
from ..autograd.experts import expert_recipe_of
from ..casting.fp8_weight import Fp8Weight
from ..casting.weight_layouts import Stacks
from ..layers.experts import Experts
from ..layers.fp8_parameters import held
from ..layers.linear import Linear
from ..layers.mlp import MLP
from ..recipes.choice import require_compute
from ..recipes.kernels import has_bfloat16, layer_products
from .expert_blocks import (
    GATES,
    convert_router,
    gate_of,
    holds_experts,
    refusals,
    stacks_of,
)
from .linear import replaced
from .picking import Conversion, ModuleFilter, grouped, is_of_transformers, require_model

_NAME: Final = "octofold.nn.convert_experts"
_WEIGHTS: Final = ("own", "fp8")


@torch.no_grad()
def convert_experts(
    model: Module,
    recipe: Recipe | str = "blockwise",
    module_filter_fn: ModuleFilter | None = None,
    *,
    main_grad: bool = False,
    weights: str = "own",
    compute: str = "auto",
) -> Conversion:
    """Make the expert blocks of a transformers model (5.x) compute in FP8 with octofold's
    operations (docs/experts.md has the families that were tried).

    model: changed in place. It may also be one block, or the module of the experts, which is left
        as it is.
    recipe, main_grad: as in octofold.nn.Experts.
    module_filter_fn: (module, fully qualified name) → whether to convert it, asked for each module
        of experts; None: all.
    weights: "own": experts keep their parameters. "fp8": the weights are cast once, by the recipe's
        format, and are frozen: half of the memory of 16 bits, and no way back. Those of a
        checkpoint in FP8 (128x128) are used as they are, either way.
    compute: as in octofold.experts(), of FP8 weights.

    In each block

    - the experts become octofold.nn.Experts: any of transformers' modules that hold gate_up_proj
      and down_proj, as Mixtral's does or transposed, with a gate by SiLU, GELU or gpt-oss's. With
      the same parameters, if these have the layout of octofold.nn.Experts; others (gpt-oss) become
      new ones in that layout, under the same names;
    - the router of one of three models stays the module that it is, so that its outputs are
      recorded as before. It chooses by octofold.ops.top_k(), with the same logits; routing weights
      stay float32;
    - DeepSeek-V3's shared experts, if they are plain linear layers, become octofold.nn.MLP.

    No GPU makes this an error: where it has no grouped products of FP8, by the device where the
    weights are, trained experts are left as they are. Frozen ones (no parameter of them requires a
    gradient) get FP8 weights there, as by weights="fp8", and compute with 16-bit activations.

    The block keeps its forward, and the names in state_dict() are the same. octofold.nn.convert()
    converts the other linear layers, before or after. Convert before fully_shard() and
    torch.compile. Experts that transformers has spread over devices are not converted.

    Returns a report that holds the model (for a module of experts, the new one) and says what
    became of experts, routers and shared experts, which way experts compute and why.
    Raises InvalidArgumentError, which names the argument: for a model without such experts, or a
    filter that picks none, with the reason for each class of experts that computes something else
    (Llama-4). The model is then as it was.
    """
    require_model(_NAME, model, module_filter_fn)
    recipe = expert_recipe_of(_NAME, recipe)
    require_compute(_NAME, compute)
    if weights not in _WEIGHTS:
        expected = " or ".join(f"'{word}'" for word in _WEIGHTS)
        raise invalid_argument(_NAME, "weights", expected, repr(weights))
    picked, left_alone = _picked(model, recipe, module_filter_fn)
    converted: dict[str, str] = {}
    blocks: dict[int, Module] = {}
    while picked:  # one after another, so that memory never holds two of each
        name = next(iter(picked))
        module = picked.pop(name)
        products = layer_products(EXPERTS, TRAINED, module.down_proj.device)
        is_frozen = not any(parameter.requires_grad for parameter in module.parameters())
        to_fp8 = weights == "fp8" or (bool(products.why_not) and is_frozen)
        if products.why_not and not (to_fp8 or _is_fp8(module)):
            left_alone[name] = f"its products stay in high precision: {products.why_not}"
            continue
        new = _experts_of(module, recipe, main_grad, to_fp8, compute)
        converted[name] = _words_of(new)
        for block in model.modules():
            if any(child is module for child in block._modules.values()):
                blocks[id(block)] = block
        model = replaced(model, {id(module): new})
    shared = _convert_around(model, blocks, recipe, converted, left_alone)
    return Conversion(replaced(model, shared), converted, left_alone)


def _picked(
    model: Module, recipe: Recipe, module_filter_fn: ModuleFilter | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """By their names the modules of experts that can be converted, and why others cannot."""
    picked: dict[str, Any] = {}
    left_alone: dict[str, str] = {}
    for name, module in model.named_modules():
        if not holds_experts(module):
            continue
        if reasons := refusals(module):
            left_alone[name] = f"{type(module).__name__}: {', '.join(reasons)}"
        elif module_filter_fn is not None and not module_filter_fn(module, name):
            left_alone[name] = "module_filter_fn does not pick it"
        else:
            _require_squares(module, name)
            picked[name] = module
    if not picked:
        argument = "model" if module_filter_fn is None else "module_filter_fn"
        expected = "experts that hold gate_up_proj and down_proj, as transformers' Mixtral has them"
        expected = expected if module_filter_fn is None else f"to pick {expected}"
        got = f"{type(model).__qualname__} with {'; '.join(grouped(left_alone)) or 'none'}"
        raise invalid_argument(_NAME, argument, expected, got)
    return picked, left_alone


def _convert_around(
    model: Module,
    blocks: dict[int, Module],
    recipe: Recipe,
    converted: dict[str, str],
    left_alone: dict[str, str],
) -> dict[int, Module]:
    """Converts the routers of these blocks, which hold converted experts, in place, and returns the
    layers that take the place of shared experts. Enters both into the report."""
    new: dict[int, Module] = {}
    for path, block in model.named_modules():
        if id(block) not in blocks:
            continue
        below = f"{path}." if path else ""
        gate, shared = block._modules.get("gate"), block._modules.get("shared_experts")
        if gate is not None and convert_router(gate):
            converted[f"{below}gate"] = "a router by octofold.ops.top_k()"
        elif gate is not None:
            left_alone[f"{below}gate"] = "a router of its own"
        if shared is None or not _is_plain_mlp(shared):
            continue
        why_not = layer_products(LINEAR, TRAINED, shared.down_proj.weight.device).why_not
        if why_not:
            left_alone[f"{below}shared_experts"] = f"left to octofold.nn.convert(): {why_not}"
        else:
            new[id(shared)] = _mlp_of(shared, recipe)
            converted[f"{below}shared_experts"] = f"octofold.nn.MLP, recipe={recipe}"
    return new


def _words_of(experts: Experts) -> str:
    weight, words = held(experts, "down_proj"), f"octofold.nn.Experts, recipe={experts.recipe}"
    if weight is None:
        return words
    words += f", FP8 weights {weight.granularity}"
    products = layer_products(EXPERTS, FP8, weight.device)
    if weight.compute == WEIGHT_ONLY:
        return f"{words}, {WEIGHT_ONLY}"
    if not products.why_not:
        return words
    of_float16 = " for float16 alone" if not has_bfloat16(weight.device) else ""
    return f"{words}, {products.how} here{of_float16} ({products.why_not})"


def _experts_of(
    module: Any, recipe: Recipe, main_grad: bool, to_fp8: bool, compute: str
) -> Experts:
    gate = gate_of(module)
    assert gate is not None
    stacks = stacks_of(module)
    b13, b2 = (getattr(module, f"{name}_bias", None) for name in ("gate_up_proj", "down_proj"))
    if b13 is not None:
        b13 = _parameter(stacks.of_files("gate_up_proj_bias", b13), b13)
    casts_by = (recipe, compute) if to_fp8 else None
    experts = Experts.from_weights(
        _weight_of(module, "gate_up_proj", casts_by),
        _weight_of(module, "down_proj", casts_by),
        b13,
        b2,
        gate.activation,
        recipe,
        main_grad=main_grad,
        compute=compute,
    )
    experts.in_files = stacks
    return experts.train(module.training)


def _weight_of(module: Any, key: str, casts_by: tuple[Recipe, str] | None) -> Tensor | ScaledTensor:
    """casts_by: the recipe by which a weight is cast to FP8, and how it computes then."""
    weight: Tensor = getattr(module, key)
    scale = getattr(module, f"{key}_scale_inv", None)
    if scale is not None:
        return ScaledTensor(weight.detach(), scale.detach().float(), "128x128")
    laid_out = stacks_of(module).of_files(key, weight)
    if casts_by is None:
        return _parameter(laid_out, weight)
    recipe, compute = casts_by
    assert recipe.output is not None
    return Fp8Weight.cast(laid_out, recipe.output.b, weight.shape[0], compute=compute)


def _parameter(tensor: Tensor, like: Tensor) -> Tensor:
    """Itself, where that is the parameter; else a new one that is trained as it is."""
    return tensor if tensor is like else Parameter(tensor.contiguous(), like.requires_grad)


def _is_fp8(module: Any) -> bool:
    """True if a checkpoint has brought the module's weights in FP8."""
    return hasattr(module, "gate_up_proj_scale_inv")


def _require_squares(module: Any, name: str) -> None:
    """Requires that FP8 weights are such as octofold.nn.Experts takes, in its layout."""
    if not _is_fp8(module):
        return
    if tuple(module.block_size or ()) != (128, 128):
        expected = f"scales of 128x128 in {name!r}"
        raise invalid_argument(_NAME, "model", expected, f"block_size={module.block_size}")
    if stacks_of(module) != Stacks():
        expected = f"FP8 weights [experts, out, in], gates first, in {name!r}"
        raise invalid_argument(_NAME, "model", expected, "transposed or interleaved ones")


def _is_plain_mlp(module: Module) -> bool:
    parts = [module._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    return (
        is_of_transformers(module)
        and type(module).__name__ == "DeepseekV3MLP"
        and all(type(part) is torch.nn.Linear or isinstance(part, Linear) for part in parts)
        and type(getattr(module, "act_fn", None)).__name__ in GATES
    )


def _mlp_of(module: Any, recipe: Recipe) -> MLP:
    linears = module.gate_proj, module.up_proj, module.down_proj
    own = None if any(isinstance(layer, Linear) for layer in linears) else recipe
    activation = GATES[type(module.act_fn).__name__]
    return MLP.from_linears(*linears, activation=activation, recipe=own).train(module.training)
