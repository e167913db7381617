"""Loading the weights of a checkpoint into a model, in FP8 where the checkpoint has them so: the
places where modules keep what it has names for."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from .._core.errors import InvalidArgumentError, invalid_argument, listed, require_type
from .._core.scaled_tensor import ScaledTensor
from .._core.torch import NAMES, same_bytes
from .._load_checkpoint import OF_SERVERS, Checkpoint, load_checkpoint
from ..nn.casting.fp8_weight import Fp8Weight
from ..nn.conversion.fp8_layers import frozen_weight
from ..nn.conversion.weight_readers import weight_readers
from ..nn.layers.fp8_parameters import hold
from ..nn.recipes.choice import require_compute

_NAME: Final = "octofold.models.load_checkpoint_into"


@torch.no_grad()
def load_checkpoint_into(
    module: Module,
    checkpoint: Checkpoint | str | os.PathLike[str],
    *,
    compute: str = "auto",
    strict: bool = True,
) -> Module:
    """Load the weights of a checkpoint into a model. Linear layers compute in FP8 where the
    checkpoint's weights are FP8.

    module: changed in place. It may be on several devices.
        It may be on "meta" as a whole or in part; such tensors go to the checkpoint's device, in
        the dtype that they have there.
    checkpoint: a checkpoint of load_checkpoint(framework="torch"), or a path. Its names are the
        module's.
    compute: how a torch.nn.Linear computes whose weight becomes an octofold.nn.Fp8Weight.
        "native": as octofold.nn.inference_linear() has it, with the recipe of the weight's scales
        (inputs are cast by scales of their own; static ones of the checkpoint are not used).
        "weight-only": as weight_only_linear() has it. "auto": "native" with few tokens multiplied
        as they are, but "weight-only" for layers that the checkpoint wants multiplied in high
        precision.
    strict: whether names that only one of the two has are an error.

    FP8 weights of other layers (embeddings, classes derived from torch.nn.Linear, fused experts,
    heads tied to embeddings, layers whose weight other modules read, such as T5's `wo`) are
    dequantized into their parameters. Layers that already hold FP8 weights take weights of the same
    scales. All other parameters and buffers are loaded in place. Tied weights stay tied. Everything
    is read before the first parameter changes, so that errors leave the module as it was.

    Returns the module.
    Raises InvalidArgumentError, which names the argument, and the errors of reading.
    """
    require_type(_NAME, "module", module, Module, "a torch.nn.Module")
    require_compute(_NAME, compute)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = load_checkpoint(checkpoint)
    if checkpoint.framework != "torch":
        expected = "one of load_checkpoint(framework='torch')"
        raise invalid_argument(_NAME, "checkpoint", expected, checkpoint.framework)
    slots = slots_of(module)
    if strict:
        _require_same_names(module, slots, checkpoint)
    found = {slot: names for slot in slots if (names := _present(slot, checkpoint))}
    for slot, names in found.items():
        for name in names:
            _require_fitting(slot, name, checkpoint)
    values = {slot: _value(slot, names, checkpoint) for slot, names in found.items()}
    for slot, value in values.items():
        if not isinstance(value, ScaledTensor):
            slot.fill(value)
            continue
        own = slot.fp8
        if own is not None:
            made = own.like(value.data, value.scale)
        else:
            weight = checkpoint.weight(found[slot][0])
            hint = weight is not None and weight.full_precision
            how = "weight-only" if compute == "auto" and hint else compute
            made = frozen_weight(value, slot.tensor.dtype, how)
        parameter: Any = Fp8Weight(made)  # one for all places
        for place in slot.places:
            hold(place.owner, parameter, place.attribute)
    return module


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
    def fp8(self) -> Fp8Weight | None:
        """The tensor, if it is an FP8 weight already."""
        return self.tensor if isinstance(self.tensor, Fp8Weight) else None

    @property
    def is_weight_of_linears(self) -> bool:
        """And nothing else's: of each a torch.nn.Linear itself, as what is derived from it may
        compute something else, and read by nobody else."""
        return not self.is_read_by_others and all(
            type(place.owner) is torch.nn.Linear and place.attribute == "weight"
            for place in self.places
        )

    def fill(self, value: Tensor) -> None:
        """Give it a value of its shape: in place where it has memory of the same dtype, else in all
        its places."""
        own = self.tensor
        if not own.is_meta and own.dtype == value.dtype:
            own.copy_(value)
            return
        value = value if own.is_meta else value.to(own.device)
        if isinstance(own, Parameter):
            value = Parameter(value, own.requires_grad)
        for place in self.places:
            place.put(value)


def slots_of(module: Module) -> list[Slot]:
    """All parameters and persistent buffers."""
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
            yield f"{prefix}.{name}" if prefix else name, Place(owner, name), tensor


def _present(slot: Slot, checkpoint: Checkpoint) -> list[str]:
    return [name for name in slot.names if name in checkpoint]


def _require_same_names(module: Module, slots: Sequence[Slot], checkpoint: Checkpoint) -> None:
    known = {name for slot in slots for name in slot.names}
    others = (name for name in checkpoint if name not in known)
    unexpected = [name for name in others if not re.search(OF_SERVERS, name)]
    missing = [slot.names[0] for slot in slots if not _present(slot, checkpoint)]
    if missing or unexpected:
        expected = "the names of the module's parameters and buffers (or strict=False)"
        got = [
            f"{kind} {listed(names)}"
            for kind, names in (("none named", missing), ("others named", unexpected))
            if names
        ]
        raise invalid_argument(_NAME, "checkpoint", expected, "; ".join(got))
    transient = transient_meta_buffers(module)
    if transient:
        expected = (
            "no buffers on meta outside of state_dict(), because no checkpoint has them "
            "(make the model with them in memory, or strict=False)"
        )
        raise invalid_argument(_NAME, "module", expected, listed(transient))


def _wrong(name: str, expected: str, got: object) -> InvalidArgumentError:
    return invalid_argument(_NAME, f"checkpoint['{name}']", expected, got)


def _require_fitting(slot: Slot, name: str, checkpoint: Checkpoint) -> None:
    tensor, weight = checkpoint.tensor(name), checkpoint.weight(name)
    if tensor.shape != tuple(slot.tensor.shape):
        raise _wrong(name, f"{list(slot.tensor.shape)}, as the module has it", list(tensor.shape))
    is_float = tensor.dtype.startswith(("F", "BF"))
    if is_float != slot.tensor.is_floating_point():
        raise _wrong(name, f"{slot.tensor.dtype}, as the module has it", tensor.dtype)
    own = slot.fp8
    if own is None:
        return
    expected = f"an FP8 weight with {own.granularity} scales, as the module's"
    if weight is None:
        raise _wrong(name, expected, tensor.dtype)
    if weight.granularity != own.granularity:
        raise _wrong(name, expected, weight.granularity)
    if NAMES[own.codes.dtype] != tensor.dtype.removeprefix("F8_").lower():
        raise _wrong(name, f"{own.codes.dtype}, as the module has it", tensor.dtype)


def _value(slot: Slot, names: Sequence[str], checkpoint: Checkpoint) -> Any:
    """The slot's value, where it goes: a ScaledTensor for layers in FP8, else a tensor."""
    value, *others = (checkpoint[name] for name in names)
    for name, other in zip(names[1:], others, strict=True):
        same = value.equals(other) if isinstance(value, ScaledTensor) else same_bytes(value, other)
        if not same:
            raise _wrong(name, f"the values of '{names[0]}', to which it is tied", "others")
    device = value.data.device if slot.tensor.is_meta and isinstance(value, ScaledTensor) else None
    device = device or (value.device if slot.tensor.is_meta else slot.tensor.device)
    if not isinstance(value, ScaledTensor):
        return value.to(device, slot.tensor.dtype)
    value = value.to(device)
    if slot.fp8 is not None or slot.is_weight_of_linears:
        return value
    return value.dequantize(slot.tensor.dtype)
