"""The inputs and outputs of a parallel layer, converted by hooks of its module."""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement
from torch.nn import Module

from ..._ranks.agreement import require_agreement
from ..._ranks.ranks import Ranks
from ..boundaries import Replicated, Split
from .layouts import FEATURES, given_back, local_of, require_split, require_tokens, tokens_of
from .sequence import own_tokens

_is_compiling: Final = torch.compiler.is_compiling


@dataclass(frozen=True)
class Border:
    """The outside of a parallel layer.

    operation: in whose name errors are.
    given: the layout of a plain tensor that comes in. taken: that in which the layer takes it.
    made: the layout of what the layer gives. wanted: that in which it goes out.
    use_local_output: whether as a plain tensor, and not as a DTensor.
    out_features: in all, of the result.
    facts: what else all ranks have to agree on.
    """

    operation: str
    mesh: DeviceMesh
    ranks: Ranks
    given: Placement
    taken: Placement
    made: Placement
    wanted: Placement
    use_local_output: bool
    out_features: int
    facts: str

    def install(self, module: Module) -> None:
        module.register_forward_pre_hook(self.before, with_kwargs=True, prepend=True)
        module.register_forward_hook(self.after)

    def before(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Each rank's own tensors of all arguments."""
        args = tuple(own_tokens(x) for x in args)
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if tensors and not _is_compiling():
            self._require_fitting(tensors, module)
        args = tuple(self._taken(x) for x in args)
        return args, {name: self._taken(x) for name, x in kwargs.items()}

    def after(self, module: Module, args: Any, output: Any) -> Any:
        """The result, and beside it what has the layout of the arguments."""
        if isinstance(output, tuple):
            y, *others = output
            out = self.taken, self.given, self.use_local_output
            return self._out(y), *(given_back(x, self.mesh, *out) for x in others)
        return self._out(output)

    def _taken(self, x: Any) -> Any:
        return local_of(self.operation, x, self.mesh, self.given, self.taken)

    def _out(self, y: Tensor) -> Any:
        layouts = self.made, self.wanted, self.use_local_output
        return given_back(y, self.mesh, *layouts, self.out_features)

    def _require_fitting(self, tensors: list[Tensor], module: Module) -> None:
        """Checks that all ranks agree, and that the tokens can be split as they are to be."""
        operation, x = self.operation, tensors[0]
        described = ", ".join(_words(tensor, self.given) for tensor in tensors)
        trained = ["x"] if any(tensor.requires_grad for tensor in tensors) else []
        trained += [name for name, weight in module.named_parameters() if weight.requires_grad]
        gradients = ", ".join(trained) if trained and torch.is_grad_enabled() else "none"
        require_agreement(operation, self.ranks, x=described, gradients=gradients, layer=self.facts)
        came, goes = (
            None if layout == FEATURES else tokens_of(operation, "layouts", layout)
            for layout in (self.taken, self.wanted)
        )
        require_split(operation, "x", x, came)
        require_split(operation, "x", x, goes)
        if came is not None and isinstance(x, DTensor):
            require_tokens(operation, x, came, self.ranks.size)
        if goes is not None and (came != goes or isinstance(x, DTensor)):
            require_tokens(operation, x, goes, self.ranks.size)


def boundary_of(
    operation: str, ranks: Ranks, layout: Placement, partial_dtype: torch.dtype | None
) -> Replicated | Split:
    """The boundary between tokens of this layout and a layer that computes with all of them."""
    dim = tokens_of(operation, "layouts", layout)
    if dim is None:
        return Replicated(operation, ranks, partial_dtype)
    return Split(operation, ranks, dim, partial_dtype)


def _words(x: Tensor, given: Placement) -> str:
    """Says what is the same on all ranks: not the features, where each may have others."""
    dtype = str(x.dtype).removeprefix("torch.")
    if isinstance(x, DTensor):
        return f"{dtype} {list(x.shape)} {x.placements}"
    if given == FEATURES:
        return f"{dtype} {list(x.shape[:-1])} × features"
    return f"{dtype} {list(x.shape)}"
