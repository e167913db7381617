"""Styles of torch's parallelize_module for octofold's layers."""

from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement
from torch.nn import Module

from ..._core.errors import InvalidArgumentError, invalid_argument
from ..._ranks import Ranks, next_layer, ranks_of
from ...nn.autograd.activated import is_gated
from ...nn.autograd.boundary import ONE_PROCESS, Boundary, Sides
from ...nn.autograd.fitting import is_dtensor
from ...nn.layers.fp8_parameters import held
from ...nn.layers.fused_components import common_recipe
from ...nn.layers.linear import Linear
from ...nn.layers.mlp import MLP
from ...nn.layers.norm_linear import NormLinear
from .boundary import LayoutHooks, Shared, boundary_of
from .chain import over_ranks
from .fp8_shards import cut
from .layouts import FEATURES, require_divisible, spread, tokens_of

_SUM_DTYPES: Final = (None, torch.float32)


class Style(ParallelStyle):
    """The base of the styles here, with what they have in common."""

    def __init__(
        self,
        input_layouts: Placement | None,
        output_layouts: Placement | None,
        use_local_output: bool,
        reduce_dtype: torch.dtype | None,
        defaults: tuple[Placement, Placement],
    ) -> None:
        super().__init__()
        self.name = f"octofold.distributed.{type(self).__name__}"
        self._defaults = defaults
        self.input_layouts = defaults[0] if input_layouts is None else input_layouts
        self.output_layouts = defaults[1] if output_layouts is None else output_layouts
        self.use_local_output = use_local_output
        self.reduce_dtype = reduce_dtype
        for argument in ("input_layouts", "output_layouts"):
            layout = getattr(self, argument)
            if not isinstance(layout, Placement):
                expected = "a Placement: Replicate(), or Shard(a dimension)"
                raise invalid_argument(self.name, argument, expected, repr(layout))
            if layout != FEATURES:
                tokens_of(self.name, argument, layout)
        if reduce_dtype not in _SUM_DTYPES:
            expected = "None (the dtype of the result) or torch.float32"
            raise invalid_argument(self.name, "reduce_dtype", expected, reduce_dtype)

    def __repr__(self) -> str:
        """With what is not the default."""
        options = [
            ("input_layouts", self.input_layouts, self._defaults[0]),
            ("output_layouts", self.output_layouts, self._defaults[1]),
            ("use_local_output", self.use_local_output, True),
            ("reduce_dtype", self.reduce_dtype, None),
        ]
        words = ", ".join(f"{name}={value}" for name, value, usual in options if value != usual)
        return f"{type(self).__name__}({words})"

    def boundary(self, operation: str, ranks: Ranks, layout: Placement) -> Boundary:
        return boundary_of(operation, ranks, layout, self.reduce_dtype)

    def install_hooks(
        self,
        module: Module,
        mesh: DeviceMesh,
        ranks: Ranks,
        desired_input: Placement,
        result: Placement,
        out_features: int,
        *facts: object,
    ) -> None:
        LayoutHooks(
            name_of(module),
            mesh,
            ranks,
            self.input_layouts,
            desired_input,
            result,
            self.output_layouts,
            self.use_local_output,
            out_features,
            f"{next_layer(ranks)} of the group, {' '.join(map(str, (self, *facts)))}",
        ).install(module)

    def refusal(self, module: Module, words: str) -> InvalidArgumentError:
        kind = type(module)
        got = f"{kind.__module__}.{kind.__qualname__}"
        return invalid_argument(self.name, "module", words, got)


class ColumnParallel(Style):
    """Each rank has an equal part of the weight's rows, which are the features of the result.

    For octofold.nn.Linear, NormLinear, and a torch.nn.Linear with an octofold.nn.Fp8Weight.

    input_layouts: of tokens that come in as plain tensors (DTensors say it themselves, and are
        redistributed if theirs differs): Replicate() (None): all ranks have all; Shard(dim): each
        has an equal part of this dimension of tokens. These are cast where they are, and the codes
        and scales are gathered.
    output_layouts: Shard(-1) (None): each rank has its features; others cost a redistribution in
        the dtype of the result.
    use_local_output: whether the result is a plain tensor, and not a DTensor.
    reduce_dtype: in which the gradient by x is summed over ranks: None (its own) or torch.float32.
    packed: how many matrices stand one below the other in the weight (2: gate and up); each rank
        has its part of each.

    Parameters become DTensors, Shard(0); of a norm Replicate(). FP8 is used for any number of
    tokens, as ranks could not agree on another product alone.
    Raises InvalidArgumentError, which names the argument.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        reduce_dtype: torch.dtype | None = None,
        packed: int = 1,
    ) -> None:
        defaults = Replicate(), FEATURES
        super().__init__(input_layouts, output_layouts, use_local_output, reduce_dtype, defaults)
        tokens_of(self.name, "input_layouts", self.input_layouts)
        self.packed = packed
        if packed != 1 and self.output_layouts != FEATURES:
            expected = "Shard(-1) of what is packed"
            raise invalid_argument(self.name, "output_layouts", expected, self.output_layouts)

    def _apply(self, module: Module, device_mesh: DeviceMesh) -> Module:
        ranks = ranks_of(self.name, "device_mesh", device_mesh)
        operation = name_of(module)
        entry = self.boundary(operation, ranks, self.input_layouts)
        layer: Any = module
        if isinstance(module, NormLinear):
            layer = module.linear
            for name in ("weight", "bias"):
                spread(operation, module.norm, name, device_mesh, None, self.src_data_rank)
        else:
            entry = Shared(entry)
        self._take(module, layer, device_mesh, ranks, Sides(entry, ONE_PROCESS, over_ranks))
        layouts = self.input_layouts, FEATURES
        facts = layer.in_features, layer.out_features, _recipe_of(layer)
        self.install_hooks(module, device_mesh, ranks, *layouts, layer.out_features, *facts)
        return module

    def _take(
        self, module: Module, layer: Any, mesh: DeviceMesh, ranks: Ranks, sides: Sides
    ) -> None:
        if isinstance(layer, Linear):
            take_linear(self, layer, mesh, sides, 0, self.packed)
        elif held(layer) is not None:
            cut(name_of(module), layer, ranks, -2, mesh, sides, self.packed)
        else:
            raise self.refusal(module, _EXPECTED.format("ColwiseParallel"))


class RowParallel(Style):
    """Each rank has an equal part of the weight's columns, which are the features of x.

    For octofold.nn.Linear, and a torch.nn.Linear with an octofold.nn.Fp8Weight.

    input_layouts: Shard(-1) (None): each rank has its features; others cost a redistribution.
    output_layouts: Replicate() (None): the sum over ranks on all of them; Shard(dim): on each an
        equal part of this dimension of tokens. The gradient of the result is cast where it is, and
        its codes and scales are gathered.
    use_local_output: as of ColumnParallel.
    reduce_dtype: in which the result is summed over ranks: None (its own) or torch.float32.

    The weight becomes a DTensor, Shard(1); the bias Replicate(), and is added once.
    Raises InvalidArgumentError, which names the argument.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = FEATURES, Replicate()
        super().__init__(input_layouts, output_layouts, use_local_output, reduce_dtype, defaults)
        tokens_of(self.name, "output_layouts", self.output_layouts)

    def _apply(self, module: Module, device_mesh: DeviceMesh) -> Module:
        ranks = ranks_of(self.name, "device_mesh", device_mesh)
        operation = name_of(module)
        exit = self.boundary(operation, ranks, self.output_layouts)
        sides = Sides(ONE_PROCESS, exit, over_ranks)
        layer: Any = module
        if isinstance(module, Linear):
            take_linear(self, module, device_mesh, sides, 1)
        elif held(module) is not None:
            cut(operation, layer, ranks, -1, device_mesh, sides)
        else:
            raise self.refusal(module, _EXPECTED.format("RowwiseParallel"))
        layouts = FEATURES, self.output_layouts
        facts = layer.in_features, layer.out_features, _recipe_of(layer)
        self.install_hooks(module, device_mesh, ranks, *layouts, layer.out_features, *facts)
        return module


class BlockStyle(Style):
    """The style of a module that takes tokens and gives tokens: all features of them."""

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = Replicate(), Replicate()
        super().__init__(input_layouts, output_layouts, use_local_output, reduce_dtype, defaults)
        tokens_of(self.name, "input_layouts", self.input_layouts)
        tokens_of(self.name, "output_layouts", self.output_layouts)


class MLPParallel(BlockStyle):
    """An octofold.nn.MLP: gate and up are column-parallel, down is row-parallel. Tokens are cast,
    and gathered, once; what leaves is reduced once. A norm before it is that of the rank's tokens.

    input_layouts, output_layouts: Replicate() (None) or Shard(dim), as of ColumnParallel and
        RowParallel.
    use_local_output, reduce_dtype: as there; the latter for the result and the gradient by x.
    """

    def _apply(self, module: Module, device_mesh: DeviceMesh) -> Module:
        if not isinstance(module, MLP):
            raise self.refusal(module, "an octofold.nn.MLP")
        ranks = ranks_of(self.name, "device_mesh", device_mesh)
        operation = name_of(module)
        first, down = module.first_layers(), module.down_proj
        recipe = common_recipe((*first, down))
        if recipe is None:
            raise self.refusal(module, "one whose layers are octofold.nn.Linear of one recipe")
        entry = self.boundary(operation, ranks, self.input_layouts)
        exit = self.boundary(operation, ranks, self.output_layouts)
        packed = 2 if len(first) == 1 and is_gated(module.activation) else 1
        for layer in first:
            take_linear(self, layer, device_mesh, Sides(entry, ONE_PROCESS, over_ranks), 0, packed)
        take_linear(self, down, device_mesh, Sides(ONE_PROCESS, exit, over_ranks), 1)
        if module.norm is not None:
            for name in ("weight", "bias"):
                spread(operation, module.norm, name, device_mesh, None, self.src_data_rank)
        layouts = self.input_layouts, self.output_layouts
        facts = first[0].in_features, down.in_features, down.out_features, recipe
        self.install_hooks(module, device_mesh, ranks, *layouts, down.out_features, *facts)
        return module


def take_linear(
    style: Style, layer: Any, mesh: DeviceMesh, sides: Sides, dim: int, packed: int = 1
) -> None:
    """Spread the parameters of an octofold.nn.Linear, the weight along `dim`."""
    operation = name_of(layer)
    if not isinstance(layer, Linear):
        raise style.refusal(layer, "octofold.nn.Linear (octofold.nn.convert() makes it)")
    if is_dtensor(layer.weight):
        expected = "whole weights: tensor parallelism comes before fully_shard()"
        raise invalid_argument(style.name, "module", expected, "a DTensor")
    if layer.main_grad:
        raise invalid_argument(style.name, "main_grad", "False, as weights are DTensors", True)
    features = layer.weight.shape[dim] // packed
    require_divisible(operation, "weight", features, mesh.size(), packed > 1)
    spread(operation, layer, "weight", mesh, dim, style.src_data_rank, packed)
    spread(operation, layer, "bias", mesh, None if dim else 0, style.src_data_rank, packed)
    layer.sides = sides
    layer.force_fp8 = True


def name_of(module: Module) -> str:
    """In errors."""
    return f"octofold.nn.{type(module).__name__}"


def _recipe_of(layer: Any) -> object:
    weight = held(layer)
    return getattr(layer if weight is None else weight, "recipe", "")


_EXPECTED: Final = (
    "an octofold.nn.Linear or a torch.nn.Linear with an octofold.nn.Fp8Weight (torch's own {} is "
    "for other torch.nn.Linear and Embedding)"
)
