"""Tensors and DTensors at the boundaries of a parallel layer, and parameters as DTensors."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.nn import Module, Parameter

from ..._core.errors import invalid_argument
from ..._core.ops import ceil_divide

FEATURES: Final = Shard(-1)
"""The layout of tokens [..., cols] of which each rank has some columns."""


def tokens_of(operation: str, argument: str, layout: Placement) -> int | None:
    """The dimension of tokens that a layout splits; None where all ranks have all. Raises
    InvalidArgumentError for other layouts."""
    if isinstance(layout, Replicate):
        return None
    if type(layout) is Shard and layout.dim >= 0:
        return layout.dim
    expected = "Replicate() or Shard(a dimension of tokens)"
    raise invalid_argument(operation, argument, expected, layout)


def local_of(operation: str, x: Any, mesh: DeviceMesh, given: Placement, desired: Placement) -> Any:
    """This rank's tensor of a DTensor, or of a tensor that is laid out as `given`, laid out as
    `desired`. What is no tensor stays as it is."""
    if not isinstance(x, Tensor):
        return x
    if not isinstance(x, DTensor):
        if given == desired:
            return x
        x = as_dtensor(x, mesh, given)
    if x.device_mesh != mesh:
        expected = f"a DTensor on the layer's mesh {mesh}"
        raise invalid_argument(operation, "x", expected, f"one on {x.device_mesh}")
    desired = _from_the_front(desired, x.dim())
    if tuple(x.placements) != (desired,):
        x = x.redistribute(placements=[desired])
    return x.to_local()


def to_output_layout(
    y: Tensor,
    mesh: DeviceMesh,
    result: Placement,
    output: Placement,
    use_local: bool,
    features: int | None = None,
) -> Any:
    """A layer's result, which is laid out as `result`, laid out as `output`. features: how many
    there are in all, where they are split."""
    if use_local and _from_the_front(result, y.dim()) == _from_the_front(output, y.dim()):
        return y
    x = as_dtensor(y, mesh, result, features)
    output = _from_the_front(output, x.dim())
    if tuple(x.placements) != (output,):
        x = x.redistribute(placements=[output])
    return x.to_local() if use_local else x


def as_dtensor(
    x: Tensor, mesh: DeviceMesh, layout: Placement, features: int | None = None
) -> DTensor:
    """A DTensor of what this rank has. features: where they are split, perhaps unequally."""
    shape = None
    if features is not None and layout == FEATURES:
        shape = torch.Size((*x.shape[:-1], features))
    stride = None if shape is None else torch.empty(shape, device="meta").stride()
    return DTensor.from_local(x, mesh, [layout], run_check=False, shape=shape, stride=stride)


def spread(
    operation: str,
    module: Module,
    name: str,
    mesh: DeviceMesh,
    dim: int | None,
    src_data_rank: int | None,
    packed: int = 1,
) -> None:
    """Make a parameter of a module a DTensor, of which each rank has an equal part of `dim`; None:
    all of it. What is one already stays as it is.

    packed: so many matrices are one behind the other in `dim`; each rank has its part of each.
    Raises InvalidArgumentError where a rank would have nothing.
    """
    parameter = module._parameters.get(name)
    if parameter is None or isinstance(parameter, DTensor):
        return
    layout: Placement = Replicate()
    if dim is not None:
        require_divisible(operation, name, parameter.shape[dim] // packed, mesh.size(), packed > 1)
        layout = Shard(dim) if packed == 1 else _StridedShard(dim, split_factor=packed)
    dtensor = distribute_tensor(parameter.detach(), mesh, [layout], src_data_rank=src_data_rank)
    # Not by setattr, which layers take for FSDP's.
    module.register_parameter(name, Parameter(dtensor, requires_grad=parameter.requires_grad))


def require_divisible(
    operation: str, argument: str, features: int, size: int, equally: bool = False
) -> None:
    """Checks that each rank gets some of these features, as torch.chunk() gives them; and as many
    as the others if `equally`."""
    most = ceil_divide(features, size)
    if most * (size - 1) >= features:
        expected = f"features of which each of {size} ranks gets some, {most} at most"
        raise invalid_argument(operation, argument, expected, features)
    if equally and features % size != 0:
        expected = f"a multiple of {size} features, the number of ranks"
        raise invalid_argument(operation, argument, expected, features)


def require_split(operation: str, argument: str, x: Tensor, dim: int | None) -> None:
    """Checks that `dim` is a dimension of tokens of x [..., cols]."""
    if dim is not None and dim >= x.dim() - 1:
        raise invalid_argument(
            operation, argument, f"tokens with a dimension {dim}, which is split", list(x.shape)
        )


def require_tokens(operation: str, x: Tensor, dim: int, size: int) -> None:
    """Checks that so many ranks can have an equal part of the tokens in a dimension."""
    if x.shape[dim] % size != 0:
        expected = f"a multiple of {size} tokens in dimension {dim}, the number of ranks"
        raise invalid_argument(operation, "x", expected, list(x.shape))


def _from_the_front(layout: Placement, dims: int) -> Placement:
    """A layout whose dimension is counted from the front."""
    if type(layout) is Shard and layout.dim < 0:
        return Shard(layout.dim + dims)
    return layout
