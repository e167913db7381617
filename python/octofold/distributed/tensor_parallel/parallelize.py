"""A model converted, and split over ranks, by one call."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn import Module

from ..._core.errors import UnsupportedError, invalid_argument
from ..._core.recipe import Recipe, recipe_of
from ..._ranks import Ranks, ranks_of, require_agreement_now
from ...nn.autograd.fitting import is_dtensor
from ...nn.conversion.expert_blocks import holds_experts
from ...nn.conversion.experts import convert_experts
from ...nn.conversion.linear import convert
from ...nn.conversion.picking import Conversion, ModuleFilter
from ...nn.layers.experts import Experts
from ...nn.layers.linear import Linear
from ...nn.layers.mlp import MLP
from .plans import NAME, Options, entries, plan_of, require_parts, style_of
from .replicated import SharedInput, Whole
from .sequence import StandIn, TokensSplit
from .styles import ColumnParallel

_SEQUENCE: Final = 1
"""The dimension of a sequence in what goes from layer to layer."""

_WHOLE: Final = "all ranks have it: the plan does not name it"


def parallelize(
    model: Module,
    mesh: DeviceMesh,
    plan: Mapping[str, str] | None = None,
    *,
    recipe: Recipe | str | None = "blockwise",
    module_filter_fn: ModuleFilter | None = None,
    sequence_parallel: bool = False,
    reduce_dtype: torch.dtype | None = None,
    src_data_rank: int | None = 0,
) -> Conversion:
    """Convert a model of transformers (5.x), and split it over the ranks of a group by its plan.

    model: changed in place; the same on all ranks. Linear layers become octofold.nn.Linear and
        experts octofold.nn.Experts, as octofold.nn.convert() and convert_experts() make them. Then
        all parameters become DTensors on the mesh, with the same names in state_dict().
    mesh: one dimension of a DeviceMesh, such as mesh["tp"].
    plan: words by names of modules, as model.tp_plan (None) has them: "colwise", "rowwise",
        "colwise_gather_output", "rowwise_split_input", "packed_colwise", "embedding_rowwise",
        "embedding_colwise", "moe_tp_experts", "replicated_with_grad_allreduce", "replicate". What
        it does not name all ranks have, such as norms and routers.
    recipe: of what is converted here; None: nothing is, and layers are split as they are.
    module_filter_fn: as of octofold.nn.convert(), which layers are converted; None: all but output
        heads. Others are split by torch's own styles.
    sequence_parallel: whether each rank has a part of the tokens of each sequence between the
        layers, whose number the ranks divide (sequence.py says where what is). For training: all
        ranks still take, and give, all tokens.
    reduce_dtype: as of ColumnParallel and RowParallel.
    src_data_rank: the rank whose values all get; None: each rank takes its parts of its own.

    Layers of one module that take the same x cast it once (SharedInput). Call it before
    fully_shard() and torch.compile.

    Returns a report that holds the model and says what became of each layer.
    Raises InvalidArgumentError, which names the argument: also where a rank would get nothing of a
    layer or a part of an attention's head, and where ranks come with other models; UnsupportedError
    for words of a plan that there is no style for.
    """
    ranks = ranks_of(NAME, "mesh", mesh)
    if not isinstance(model, Module):
        raise invalid_argument(NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    if not isinstance(mesh, DeviceMesh):
        expected = "a DeviceMesh of one dimension, such as mesh['tp']"
        raise invalid_argument(NAME, "mesh", expected, type(mesh).__qualname__)
    if any(is_dtensor(parameter) for parameter in model.parameters()):
        expected = "whole weights: parallelize() comes before fully_shard(), and once"
        raise invalid_argument(NAME, "model", expected, "DTensors")
    recipe = None if recipe is None else recipe_of(NAME, recipe)
    plan = plan_of(model, plan)
    _require_the_same(ranks, model, recipe, plan)
    for name, module, word in entries(model, plan):
        parent = model.get_submodule(name.rpartition(".")[0])
        require_parts(name, module, parent, word, ranks.size)
    converted: dict[str, str] = {}
    left_alone: dict[str, str] = {}
    if recipe is not None:
        model = _converted(model, recipe, module_filter_fn, converted, left_alone)
    tied = _tied(model)
    tokens = _SEQUENCE if sequence_parallel else None
    layers = _layers(model, plan) if sequence_parallel else {}
    styles = _styles(model, plan, Options(reduce_dtype, tokens), layers)
    if sequence_parallel:
        _split_tokens(model, layers, styles, mesh, ranks)
    for name, style in styles.items():
        parallelize_module(model.get_submodule(name), mesh, style, src_data_rank=src_data_rank)
        reason = left_alone.pop(name, None)
        words = converted.get(name) or _kind(model, name) + (f" ({reason})" if reason else "")
        converted[name] = f"{words}, {_words(style)}"
    _share_inputs(model, styles, mesh)
    _make_whole(model, layers, styles, mesh, src_data_rank, left_alone)
    for places in tied:
        _tie(places)
    return Conversion(model, converted, left_alone)


def _require_the_same(
    ranks: Ranks, model: Module, recipe: Recipe | None, plan: Mapping[str, str]
) -> None:
    shapes = {name: (list(p.shape), str(p.dtype)) for name, p in model.named_parameters()}
    require_agreement_now(
        NAME,
        ranks,
        model=type(model).__qualname__,
        parameters=sum(p.numel() for p in model.parameters()),
        shapes=_hash(str(shapes)),
        recipe=recipe,
        plan=_hash(str(sorted(plan.items()))),
    )


def _hash(text: str) -> str:
    """The same on all ranks, which Python's own is not."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _converted(
    model: Module,
    recipe: Recipe,
    module_filter_fn: ModuleFilter | None,
    converted: dict[str, str],
    left_alone: dict[str, str],
) -> Module:
    reports = []
    if any(holds_experts(module) for module in model.modules()):
        reports.append(convert_experts(model, recipe))
    reports.append(convert(model, recipe, module_filter_fn))
    for report in reports:
        converted.update(report.converted)
        left_alone.update(report.left_alone)
    return reports[-1].model


def _layers(model: Module, plan: Mapping[str, str]) -> dict[str, Module]:
    """The layers that a model has one after the other, by their names."""
    prefixes = {key.partition(".*")[0] for key in plan if ".*" in key}
    if len(prefixes) != 1:
        expected = "a plan of one stack of layers ('model.layers.*')"
        raise invalid_argument(NAME, "sequence_parallel", expected, sorted(prefixes))
    (prefix,) = prefixes
    stack = model.get_submodule(prefix)
    return {f"{prefix}.{name}": layer for name, layer in stack.named_children()}


def _split_tokens(
    model: Module,
    layers: Mapping[str, Module],
    styles: Mapping[str, ParallelStyle],
    mesh: DeviceMesh,
    ranks: Ranks,
) -> None:
    """Split the tokens before the first layer, and in front of each attention stand in for all."""
    *_, last = layers.values()
    TokensSplit(mesh, _SEQUENCE).install(next(iter(layers.values())), last)
    for name, module in model.named_modules():
        inside = f"{name}."
        if isinstance(getattr(module, "head_dim", None), int):
            parts = [key.removeprefix(inside) for key in styles if key.startswith(inside)]
            if parts:
                StandIn(ranks, _SEQUENCE).install(module, name, parts)


def _styles(
    model: Module, plan: Mapping[str, str], options: Options, layers: Mapping[str, Module]
) -> dict[str, ParallelStyle]:
    """By names of modules. What is in an octofold.nn.MLP or Experts goes with it. Outside of the
    layers all tokens are whole."""
    holders = {
        name: module for name, module in model.named_modules() if isinstance(module, MLP | Experts)
    }
    styles: dict[str, ParallelStyle] = {}
    outside = Options(options.reduce_dtype)
    for name, module, word in entries(model, plan):
        holder = next((h for h in holders if name.startswith(f"{h}.")), None)
        inside = any(name.startswith(f"{layer}.") for layer in layers)
        options_here = options if inside else outside
        if holder is not None:
            styles[holder] = style_of(holder, holders[holder], word, options_here) or Whole()
            continue
        style = style_of(name, module, word, options_here)
        if style is not None:
            styles[name] = style
    return styles


def _share_inputs(model: Module, styles: Mapping[str, ParallelStyle], mesh: DeviceMesh) -> None:
    parents = [
        name.rpartition(".")[0]
        for name, style in styles.items()
        if isinstance(style, ColumnParallel)
    ]
    for parent in dict.fromkeys(parents):
        if parents.count(parent) > 1:
            parallelize_module(model.get_submodule(parent), mesh, SharedInput())


def _make_whole(
    model: Module,
    layers: Mapping[str, Module],
    styles: Mapping[str, ParallelStyle],
    mesh: DeviceMesh,
    src_data_rank: int | None,
    left_alone: dict[str, str],
) -> None:
    """Takes the modules that no style has taken: their parameters become DTensors that all ranks
    have. In layers whose tokens are split gradients are summed."""
    whole, summed = Whole(), Whole("sum")
    whole.src_data_rank = summed.src_data_rank = src_data_rank
    for name, module in model.named_modules():
        own = [p for p in module._parameters.values() if p is not None]
        if own and name not in styles and not any(isinstance(p, DTensor) for p in own):
            inside = any(name.startswith(f"{layer}.") for layer in layers)
            (summed if inside else whole).apply_to_itself(module, mesh)
            if isinstance(module, Linear | torch.nn.Linear):
                left_alone.setdefault(name, _WHOLE)


def _words(style: ParallelStyle) -> str:
    kind = type(style)
    return repr(style) if kind.__module__.startswith("octofold") else f"torch's {kind.__name__}"


def _kind(model: Module, name: str) -> str:
    kind = type(model.get_submodule(name))
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


_Place = tuple[Module, str]


def _tied(model: Module) -> list[list[_Place]]:
    """The places of parameters that stand in several."""
    places: dict[int, list[_Place]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]


def _tie(places: list[_Place]) -> None:
    """Make what was one parameter one again."""
    (first, name), *others = places
    parameter: Any = first._parameters[name]
    for module, other in others:
        split: Any = module._parameters[other]
        if split.placements != parameter.placements:
            raise UnsupportedError(
                f"{NAME}: argument 'plan': expected one layout for a parameter of several layers, "
                f"got {parameter.placements} and {split.placements} for {name!r}"
            )
        module.register_parameter(other, parameter)
