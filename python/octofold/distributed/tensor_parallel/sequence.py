"""Sequence parallelism of a model of transformers: between its layers each rank has a part of the
tokens of each sequence.

| where               | tokens [batch, sequence, features]                                         |
|---------------------|----------------------------------------------------------------------------|
| the first layer     | takes all, and goes on with the rank's                                     |
| norms, routers      | of the rank's; gradients of their parameters are summed                    |
| q, k, v; gate, up   | column-parallel: cast where they are, codes and scales are gathered        |
| attention           | of all tokens, and of the rank's heads                                     |
| o; down             | row-parallel: results are summed, and scattered                            |
| the last layer      | gives all                                                                  |

The forward of an attention reads how many tokens there are from its input. So it gets a stand-in,
which has the shape of all tokens, no memory, and NaN in each place. The projections find the rank's
own tokens by it. Attentions that do anything else with their input are refused.
"""

import re
from typing import Any, Final

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import Module

from ..._core.errors import UnsupportedError
from ..._ranks import Ranks
from ...nn.layers.patching import source_of
from .layouts import local_of, require_tokens

_NAME: Final = "octofold.distributed.parallelize"
_OWN: Final = "_octofold_own_tokens"
_INPUT: Final = "hidden_states"
_HARMLESS: Final = r"hidden_states(\.(shape|size|dtype|device|ndim|dim)\b|\s*:)"


class TokensSplit:
    """Hooks of the first and of the last of a model's layers."""

    def __init__(self, mesh: DeviceMesh, dim: int) -> None:
        self.mesh, self.dim = mesh, dim

    def install(self, first: Module, last: Module) -> None:
        first.register_forward_pre_hook(self.split, with_kwargs=True)
        last.register_forward_hook(self.joined)

    def split(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        def own(x: Tensor) -> Any:
            require_tokens(_NAME, x, self.dim, self.mesh.size())
            return local_of(_NAME, x, self.mesh, Replicate(), Shard(self.dim))

        return _with_input(args, kwargs, own)

    def joined(self, module: Module, args: Any, output: Any) -> Any:
        def whole(x: Tensor) -> Any:
            return local_of(_NAME, x, self.mesh, Shard(self.dim), Replicate())

        return (whole(output[0]), *output[1:]) if isinstance(output, tuple) else whole(output)


class StandIn:
    """A hook of an attention whose projections are column-parallel."""

    def __init__(self, ranks: Ranks, dim: int) -> None:
        self.ranks, self.dim = ranks, dim

    def install(self, attention: Module, name: str, projections: list[str]) -> None:
        _require_nothing_else(attention, name, projections)
        attention.register_forward_pre_hook(self.given, with_kwargs=True)

    def given(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        def stand_in(x: Tensor) -> Tensor:
            shape = list(x.shape)
            shape[self.dim] *= self.ranks.size
            made = x.new_full((1,), float("nan")).expand(shape)
            setattr(made, _OWN, x)
            return made

        return _with_input(args, kwargs, stand_in)


def local_tokens(x: Any) -> Any:
    """The tokens that a stand-in stands for; anything else as it is."""
    return getattr(x, _OWN, x)


def _with_input(args: tuple[Any, ...], kwargs: dict[str, Any], change: Any) -> tuple[Any, Any]:
    """Arguments of a forward, its input changed."""
    if _INPUT in kwargs:
        return args, {**kwargs, _INPUT: change(kwargs[_INPUT])}
    return (change(args[0]), *args[1:]), kwargs


def _require_nothing_else(attention: Module, name: str, projections: list[str]) -> None:
    """Checks that a forward takes its input's shape, gives it to the projections, and no more."""
    kind = type(attention)
    source = source_of("stand-ins", kind.forward) or _INPUT
    names = "|".join(projections)
    rest = re.sub(_HARMLESS, "", source)
    rest = re.sub(rf"self\.({names})\({_INPUT}\)", "", rest)
    if re.search(rf"\b{_INPUT}\b", rest):
        raise UnsupportedError(
            f"{_NAME}: argument 'sequence_parallel': expected attentions that give their input to "
            f"{', '.join(projections)} alone, got {kind.__module__}.{kind.__qualname__} at {name!r}"
        )
    others = [
        path
        for path, _ in attention.named_parameters()
        if not any(path.startswith(f"{projection}.") for projection in projections)
    ]
    if others:
        raise UnsupportedError(
            f"{_NAME}: argument 'sequence_parallel': expected attentions whose parameters are all "
            f"split by the plan, got {', '.join(others)} in {name!r}"
        )
