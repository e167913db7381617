"""The model and the GPU that a plan is for."""

import hashlib
from dataclasses import dataclass

import torch
from torch.nn import Module

from ...._core.errors import invalid_argument


@dataclass(frozen=True)
class Machine:
    """The device that a plan was measured on."""

    device: str
    """The GPU's name, or "cpu"."""
    capability: str | None
    """The compute capability of the GPU: "9.0"."""

    def __str__(self) -> str:
        return self.device if self.capability is None else f"{self.device} ({self.capability})"


def machine_of(device: torch.device) -> Machine:
    """The name and the capability of this device."""
    if device.type != "cuda":
        return Machine("cpu", None)
    major, minor = torch.cuda.get_device_capability(device)
    return Machine(torch.cuda.get_device_name(device), f"{major}.{minor}")


def fingerprint(model: Module) -> str:
    """The hash of names, shapes and dtypes of all parameters and buffers: same for models that a
    plan fits alike, whatever their values."""
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    lines = sorted(f"{name} {list(value.shape)} {value.dtype}" for name, value in tensors)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def device_of(operation: str, model: Module) -> torch.device:
    """The one device that a model lies on: a GPU that Octofold drives, or the CPU."""
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if any(device.type == "meta" for device in devices):
        expected = "a model with its weights in memory"
        raise invalid_argument(operation, "model", expected, "weights on the meta device")
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise invalid_argument(operation, "model", "a model on one device", names)
    device = devices.pop() if devices else torch.device("cpu")
    if device.type not in ("cpu", "cuda"):
        expected = "a model on the CPU or on a CUDA GPU"
        raise invalid_argument(operation, "model", expected, device)
    return device


def model_bytes(model: Module) -> int:
    """The bytes of all parameters and buffers, those that are shared counted once."""
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
