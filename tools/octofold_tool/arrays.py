"""Arrays that the demo's FP8 runs on: NumPy's, or torch's tensors on a GPU."""

from typing import Any, TypeAlias

import numpy as np

from .gpu.device import why_not
from .minilm import Float32Array


class NumPyArrays:
    """The CPU reference backend; nothing is copied."""

    description = "the CPU reference backend"
    """The backend or GPU that computes, for people."""

    def from_numpy(self, array: Float32Array) -> Any:
        """The same values where octofold is to compute."""
        return array

    def to_float16(self, array: Any) -> Any:
        return array.astype(np.float16)

    def to_numpy(self, array: Any) -> Float32Array:
        return np.asarray(array, np.float32)

    def synchronize(self) -> None:
        """Wait for what was called."""


class TorchArrays:
    """Tensors on the current GPU."""

    def __init__(self) -> None:
        import torch  # only where why_not() has found it

        self._torch = torch
        self.description = f"{torch.cuda.get_device_name()}, through torch {torch.__version__}"

    def from_numpy(self, array: Float32Array) -> Any:
        return self._torch.tensor(array, device="cuda")

    def to_float16(self, array: Any) -> Any:
        return array.half()

    def to_numpy(self, array: Any) -> Float32Array:
        result: Float32Array = array.cpu().float().numpy()
        return result

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()


Arrays: TypeAlias = NumPyArrays | TorchArrays


def choose_arrays() -> Arrays:
    """The GPU's, where there is one that octofold and torch can use."""
    return TorchArrays() if why_not() is None else NumPyArrays()
