"""Modules whose experts are spread over ranks, and what they compute beside an exchange.

An exchange itself goes on a stream of its backend's (NCCL has one for each group), and the stream
that has asked for it waits where it needs what arrives. What another stream was given to compute
before goes on meanwhile.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn import Module, Parameter

from ..._core.errors import invalid_argument
from ..._ranks import Ranks, next_layer, require_agreement_now
from ...nn.autograd.experts_composed import Adapters
from ...nn.autograd.fitting import local_part
from ...nn.autograd.layer import Chain
from ...nn.layers.experts import Experts
from ...nn.layers.mixture import MixtureOfExperts
from ...nn.layers.patching import change_class
from .experts import require_fitting_ranks, run_experts
from .plan import NAME, Exchange, exchange_of

_NAME: Final = "octofold.distributed.parallelize_experts"

_is_compiling: Final = torch.compiler.is_compiling


class ParallelExperts(Experts):
    """octofold.nn.Experts of which each rank has a part: parallelize_experts() makes them. Their
    parameters, FP8 ones too, are DTensors of the global shape, sharded over the first dimension;
    names in state_dict() are the same.

    forward: as in octofold.nn.Experts, of this rank's tokens, and with ids of all experts. All
    ranks call it, those too that have no tokens.
    """

    exchange: Exchange
    number: int
    """Among the layers of the group."""
    dropped: Tensor | None
    """int64 [1]: rows that found no room, since it was last zeroed; None without a capacity. Not
    in state_dict()."""

    def forward(
        self, input: Tensor, topk_ids: Tensor, topk_weights: Tensor, adapters: Adapters = None
    ) -> Tensor:
        if adapters:
            raise invalid_argument(NAME, "adapters", "none over several ranks", [*adapters])
        first, second = self._operands()
        weights = (first, second, *(self._own(f"{name}_bias") for name in self.weight_names))
        routed = (input, topk_ids, topk_weights)
        recipe, exchange, dropped = self._recipe, self.exchange, self.dropped
        number = None if _is_compiling() else self.number  # compiled code serves several layers
        require_fitting_ranks(*routed, weights, self.activation, recipe, exchange, dropped, number)
        grad = torch.is_grad_enabled()
        of_first = self._layer(self.weight_names[0], first, grad and input.requires_grad)
        both = grad and (input.requires_grad or of_first.needs_gradient())
        of_second = self._layer(self.weight_names[1], second, both)
        chain = Chain(NAME, recipe, activation=self.activation)
        return run_experts(*routed, (of_first, of_second), chain, exchange, dropped)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.dropped is not None:
            self.dropped.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.exchange.ranks}"

    def _own(self, name: str) -> Any:
        return local_part(getattr(self, name))


def parallelize_experts(
    model: Module,
    group: Any = None,
    *,
    wire: str = "fp8",
    capacity: int | None = None,
    local_rows: int | None = None,
    combine_dtype: torch.dtype | None = None,
    halves: int = 1,
    module_filter_fn: Callable[[Module, str], bool] | None = None,
) -> Module:
    """Spread the experts of a model over the ranks of a group, in place: of each octofold.nn.
    Experts every rank keeps its part of the weights that it has, as DTensors, and what is not its
    own is freed. Nothing travels: ranks have to begin with the same weights, or load a checkpoint
    afterwards; modules on the "meta" device stay there.

    model: an octofold.nn.Experts, or anything that holds some (octofold.nn.convert_experts() makes
        them). Where an octofold.nn.MixtureOfExperts has a shared expert it is computed beside the
        exchange, on a GPU on a second stream.
    group: a DeviceMesh of one dimension (as fully_shard() over another dimension wants it), a
        torch.distributed.ProcessGroup, or None for all processes. Its size divides the experts.
    wire, capacity, local_rows, combine_dtype, halves: as in octofold.distributed.experts().
    module_filter_fn: (module, fully qualified name) → whether to spread it; None: all.

    Each rank has tokens of its own, as in data parallelism. Gradients by experts are sums over the
    tokens of all ranks: they are not reduced again over this group; those of all other parameters
    (the router, the shared expert) are, as of any other layer that ranks have alike.
    Call it before fully_shard(), torch.compile and the optimizer. Returns the model.
    Raises InvalidArgumentError, which names the argument or the module, before anything is changed.
    """
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    exchange = exchange_of(
        _NAME,
        group,
        wire=wire,
        capacity=capacity,
        local_rows=local_rows,
        combine_dtype=combine_dtype,
        halves=halves,
    )
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Experts)
        and (module_filter_fn is None or module_filter_fn(module, name))
    }
    if not found:
        expected = "a module that is or holds octofold.nn.Experts (that module_filter_fn picks)"
        raise invalid_argument(_NAME, "model", expected, type(model).__qualname__)
    for name, module in found.items():
        _require_spreadable(name, module, exchange.ranks)
    require_agreement_now(_NAME, exchange.ranks, experts=", ".join(found), **exchange.facts())
    for experts in found.values():
        _spread(experts, exchange, group)
    for block in model.modules():
        if isinstance(block, MixtureOfExperts) and isinstance(block.experts, ParallelExperts):
            block._beside = on_second_stream
    return model


class ExpertParallel(ParallelStyle):
    """The style for torch.distributed.tensor.parallel.parallelize_module() by which a module of
    octofold.nn.Experts, or all that a module holds, is spread over the mesh: parallelize_experts()
    with these options. As there, no weights travel, so that src_data_rank means nothing.

    >>> parallelize_module(model, mesh["ep"], {"layers.*.mlp": ExpertParallel()})
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def _apply(self, module: Module, device_mesh: DeviceMesh) -> Module:
        return parallelize_experts(module, device_mesh, **self.options)


def _require_spreadable(name: str, module: Experts, ranks: Ranks) -> None:
    where = f"model.{name}" if name else "model"
    count = getattr(module, module.weight_names[1]).shape[0]
    if isinstance(module, ParallelExperts):
        raise invalid_argument(_NAME, where, "experts that are not spread yet", "spread ones")
    if type(module) is not Experts:
        got = type(module).__qualname__
        raise invalid_argument(_NAME, where, "octofold.nn.Experts, not made into another", got)
    if count % ranks.size != 0:
        expected = f"a number of experts that {ranks.size} ranks divide"
        raise invalid_argument(_NAME, where, expected, f"{count} (this is {ranks})")
    if module.main_grad:
        raise invalid_argument(_NAME, where, "main_grad=False: gradients are DTensors", "True")
    if any(isinstance(tensor, DTensor) for tensor in module.parameters()):
        raise invalid_argument(_NAME, where, "whole weights, before fully_shard()", "DTensors")


def _spread(module: Experts, exchange: Exchange, group: Any) -> None:
    """Experts become ParallelExperts, the same object."""
    device = getattr(module, module.weight_names[1]).device
    mesh = group
    if not isinstance(group, DeviceMesh):
        kind = "cuda" if device.type == "meta" and torch.cuda.is_available() else device.type
        kind = "cpu" if kind == "meta" else kind
        mesh = DeviceMesh.from_group(exchange.ranks.group, kind)
    for name, parameter in list(module.named_parameters()):
        part = _part(parameter.detach(), mesh, exchange.ranks)
        module.register_parameter(name, Parameter(part, parameter.requires_grad))
    change_class("spread", module, ParallelExperts)
    assert isinstance(module, ParallelExperts)
    module.exchange, module.number = exchange, next_layer(exchange.ranks)
    counter = None
    if exchange.capacity is not None:
        counter = torch.zeros(1, dtype=torch.int64, device=device)
    module.register_buffer("dropped", counter, persistent=False)


def _part(whole: Tensor, mesh: DeviceMesh, ranks: Ranks) -> Tensor:
    """This rank's part of a tensor of experts."""
    own = whole.chunk(ranks.size)[ranks.rank].clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(own, mesh, [Shard(0)], run_check=False)


_STREAMS: Final[dict[torch.device, torch.cuda.Stream]] = {}


def on_second_stream(function: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    """Begins function(x) on a stream beside the current one, and gives what waits for the result.
    Backward goes there too, as torch runs it on the streams of forward. On the CPU, and while
    torch.compile traces, the function runs at once. A CUDA graph may hold both streams."""
    if not x.is_cuda or torch.compiler.is_compiling():
        result = function(x)
        return lambda: result
    current, beside = torch.cuda.current_stream(x.device), _stream(x.device)
    beside.wait_stream(current)
    with torch.cuda.stream(beside):
        y = function(x)
    x.record_stream(beside)  # in backward too, when the memory may go to the other stream

    def waited() -> Tensor:
        now = torch.cuda.current_stream(y.device)
        now.wait_stream(beside)
        y.record_stream(now)
        return y

    return waited


def _stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _STREAMS[device]
