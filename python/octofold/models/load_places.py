"""The places where a module keeps what a checkpoint has names for."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..nn.conversion.weight_readers import weight_readers
from ..nn.layers.fp8_weight import Fp8Weight


@dataclass(frozen=True)
class Place:
    """An attribute of a module."""

    owner: Module
    attribute: str

    def put(self, tensor: Tensor | None) -> None:
        tensors = self.owner._parameters if isinstance(tensor, Parameter) else self.owner._buffers
        tensors[self.attribute] = tensor  # type: ignore[assignment]


@dataclass(eq=False)
class Slot:
    """A parameter or buffer with all of its names and places: a tied one has several."""

    tensor: Tensor
    names: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    is_read_by_others: bool = False
    """True if modules read it past the layer that it is of."""

    @property
    def fp8_layers(self) -> list[Fp8Weight]:
        """The layers whose FP8 weight it is."""
        owners = (place.owner for place in self.places if place.attribute == "weight")
        return [owner for owner in owners if isinstance(owner, Fp8Weight)]

    @property
    def is_weight_of_linears(self) -> bool:
        """And nothing else's: of each a torch.nn.Linear itself, as what is derived from it may
        compute something else, and read by nobody else."""
        return not self.is_read_by_others and all(
            type(place.owner) is torch.nn.Linear and place.attribute == "weight"
            for place in self.places
        )

    def fill(self, value: Tensor) -> None:
        """Give it a value of its shape: in place, or in all its places if it has no memory."""
        if not self.tensor.is_meta:
            self.tensor.copy_(value)
            return
        if isinstance(self.tensor, Parameter):
            value = Parameter(value, self.tensor.requires_grad)
        for place in self.places:
            place.put(value)


def slots_of(module: Module) -> list[Slot]:
    """All parameters and persistent buffers; the scales of FP8 layers come with their weights."""
    slots: dict[int, Slot] = {}
    readers = weight_readers(module)
    for name, place, tensor in _places(module):
        slot = slots.setdefault(id(tensor), Slot(tensor))
        slot.names.append(name)
        if place not in slot.places:
            slot.places.append(place)
        slot.is_read_by_others |= id(place.owner) in readers
    return list(slots.values())


def transient_meta_buffers(module: Module) -> list[str]:
    """Buffers without memory that no checkpoint holds."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, owner in module.named_modules()
        for name in owner._non_persistent_buffers_set
        if (buffer := owner._buffers.get(name)) is not None and buffer.is_meta
    ]


def _places(module: Module) -> Iterator[tuple[str, Place, Tensor]]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is None or name in owner._non_persistent_buffers_set:
                continue
            if isinstance(owner, Fp8Weight) and name == owner.scale_name:
                continue
            yield f"{prefix}.{name}" if prefix else name, Place(owner, name), tensor
