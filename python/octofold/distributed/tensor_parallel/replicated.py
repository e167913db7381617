"""Modules that every rank has whole, beside parallel layers."""

import functools
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._ranks import Ranks, ranks_of
from ..._ranks.wire import summed
from ...nn.autograd.fitting import local_part
from ...nn.autograd.functions import refuse_in_backward
from ...nn.layers.patching import change_class
from .boundary import close_shared_casts, open_shared_casts
from .layouts import spread

_SUM: Final = "_octofold_gradients_summed_over"
_RUNS: Final = "_octofold_forward_runs"
_GRADIENTS: Final = ("same", "sum")
_is_compiling: Final = torch.compiler.is_compiling


class Whole(ParallelStyle):
    """A module that each rank computes on plain tensors with all of its parameters: a norm, a
    router. The parameters become DTensors, Replicate(), so that gradients of a model are of one
    kind (clip_grad_norm_, optimizers), but the module sees its own tensors.

    gradients: "same": each rank computes them whole, as all have the same tokens; "sum": each has
        some of the tokens, or of the heads, and they are summed over ranks in backward.

    For norms of tokens that are DTensors there is torch's SequenceParallel.
    """

    def __init__(self, gradients: str = "same") -> None:
        super().__init__()
        if gradients not in _GRADIENTS:
            expected = f"one of {', '.join(_GRADIENTS)}"
            raise invalid_argument("octofold.distributed.Whole", "gradients", expected, gradients)
        self.gradients = gradients

    def __repr__(self) -> str:
        return f"Whole({self.gradients!r})"

    def _apply(self, module: Module, device_mesh: DeviceMesh) -> Module:
        for part in module.modules():
            self.apply_to_itself(part, device_mesh)
        return module

    def apply_to_itself(self, module: Module, device_mesh: DeviceMesh) -> None:
        """The same of a module's own parameters, and not those of modules in it."""
        operation = "octofold.distributed.Whole"
        ranks = ranks_of(operation, "device_mesh", device_mesh)
        names = [name for name, value in module._parameters.items() if value is not None]
        for name in names:
            spread(operation, module, name, device_mesh, None, self.src_data_rank)
        if names:
            module.__dict__[_SUM] = ranks if self.gradients == "sum" else None
            kind: Any = type(module)
            change_class("whole", module, _seeing_its_own(kind, tuple(names)))


class SharedInput(ParallelStyle):
    """A module that gives one tensor to several column-parallel layers (the projections q, k, v of
    an attention; gate and up): they cast it, and gather it, once. Backward gathers its transpose
    once. The casts are kept while the module's forward runs; in torch.inference_mode(), under
    torch.compile and in CUDA graphs each layer makes its own."""

    def __repr__(self) -> str:
        return "SharedInput()"

    def _apply(self, module: Module, device_mesh: DeviceMesh) -> Module:
        module.register_forward_pre_hook(_enter, prepend=True)
        module.register_forward_hook(_leave, always_call=True)
        return module


def _enter(module: Module, args: Any) -> None:
    if not _is_compiling():
        open_shared_casts()


def _leave(module: Module, args: Any, output: Any) -> None:
    if not _is_compiling():
        close_shared_casts()


@functools.cache
def _seeing_its_own(kind: type[Any], names: tuple[str, ...]) -> Any:
    """A class of modules whose parameters are this rank's tensors for who reads them as attributes
    in forward, and DTensors for parameters(), state_dict() and FSDP."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.__dict__[_RUNS] = True
        try:
            return kind.forward(self, *args, **kwargs)
        finally:
            self.__dict__[_RUNS] = False

    members: dict[str, Any] = {name: _property(name) for name in names}
    members["forward"] = forward
    members |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), members)


def _property(name: str) -> Any:
    def own(module: Module) -> Tensor | None:
        return _own(module, name)

    return property(own)


def _own(module: Any, name: str) -> Tensor | None:
    parameter = module._parameters[name]
    if not module.__dict__.get(_RUNS, False):
        return parameter  # type: ignore[no-any-return]
    parameter = local_part(parameter)
    ranks = module.__dict__[_SUM]
    if ranks is None or parameter is None or not parameter.requires_grad:
        return parameter  # type: ignore[no-any-return]
    summed_by_ranks: Tensor = _SummedGradient.apply(parameter, ranks)  # type: ignore
    return summed_by_ranks


class _SummedGradient(torch.autograd.Function):
    """A parameter that all ranks have, whose gradient is the sum of what each of them computes."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("distributed.Whole", gradient)
        return summed("octofold.distributed.Whole", gradient, ctx.ranks), None
