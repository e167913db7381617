"""The devices on which the layers of a model will run that a host loads with a device_map."""

from typing import Any

import torch


class Devices:
    """The device where a layer will run, by its name.

    device_map: as accelerate takes it: devices by names of modules; or one device for all; or a
        word by which the host spreads the model later; or None.

    What lies on the CPU or on disk runs on the GPU if there is one: such layers are offloaded, and
    a model that is loaded without a map is moved later.
    """

    def __init__(self, device_map: Any) -> None:
        self._map = device_map if isinstance(device_map, dict) else None
        self._all = None if isinstance(device_map, dict | str) else device_map

    def __call__(self, name: str) -> torch.device:
        device: Any = self._all
        while self._map is not None and device is None:
            device = self._map.get(name)
            if not name:
                break
            name = name.rpartition(".")[0]
        device = f"cuda:{device}" if isinstance(device, int) else device
        if device in (None, "cpu", "disk", torch.device("cpu")):
            if not torch.cuda.is_available():
                return torch.device("cpu")
            device = "cuda"
        found = torch.device(device)
        if found.type == "cuda" and found.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        return found
