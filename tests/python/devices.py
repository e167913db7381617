"""Operations on the device of the test: the CPU, by the arrays or tensors of the test, or a GPU, to
which they and the memory that they are views of go for the length of a call.

    from tests.python.devices import cast, quantize

    pytestmark = pytest.mark.usefixtures("each_device")  # each test once on each device

Tests of a module that has the mark and takes its operations from here run on the CPU, and on a GPU
where Octofold has kernels for the first one; these are marked `gpu`. With OCTOFOLD_TEST_DEVICE=cpu
the CPU takes the place of that GPU, by torch's tensors, to debug the tests.

`cpu_only` marks a test of NumPy's arrays themselves, and of errors that no device sees; `gpu_only`
a parameter that takes the CPU too long; `needs_hopper` a test of what no other GPU has kernels for.
On other GPUs a test that comes upon what these have no kernels for is skipped.
"""

import copy
import dataclasses
import functools
import importlib.util
import itertools
import os

import ml_dtypes
import numpy as np
import octofold
import pytest

cpu_only, gpu_only = pytest.mark.cpu_only, pytest.mark.gpu_only
needs_hopper = pytest.mark.needs_hopper


@functools.cache
def gpu():
    """The name of torch's device that stands for a GPU, or None."""
    if importlib.util.find_spec("torch") is None:
        return None
    if os.environ.get("OCTOFOLD_TEST_DEVICE") == "cpu":
        return "cpu"
    gpus = octofold.info().gpus
    if not gpus or not gpus[0].backend.available:
        return None
    import torch

    return "cuda" if torch.cuda.is_available() else None


class Current:
    """The device of the test that runs."""

    on_gpu = False


def on_gpu():
    return Current.on_gpu


def device():
    """The name of torch's device on which operations compute, for tensors that a test makes."""
    return gpu() if Current.on_gpu else "cpu"


def is_hopper():
    from tests.gpu import targets

    return targets.is_hopper()


def has_bfloat16():
    """True if the device multiplies bfloat16."""
    from tests.gpu import targets

    return not Current.on_gpu or gpu() == "cpu" or targets.has_bfloat16()


def on_gpus(*values):
    """Parameters that take the CPU too long."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=gpu_only)
        for each in values
    ]


def combinations(rng, *choices):
    """All combinations of choices. On a GPU, where each is a kernel to compile, each choice once,
    beside others in each test."""
    if not Current.on_gpu:
        return list(itertools.product(*choices))
    count = max(map(len, choices))
    turns = [[each[i] for i in rng.permutation(count) % len(each)] for each in choices]
    return list(zip(*turns, strict=True))


def __getattr__(name):
    """The operation of that name, of octofold or octofold.ops, or a method of a ScaledTensor."""
    for place in (octofold, octofold.ops, octofold.ScaledTensor):
        if hasattr(place, name):
            return functools.partial(call, getattr(place, name))
    raise AttributeError(name)


def call(operation, *arguments, **options):
    """operation(...) on the device, with its results where the arguments are."""
    if not Current.on_gpu:
        return operation(*arguments, **options)
    visit = Visit(gpu())
    return visit.back(operation(*visit.there(arguments), **visit.there(options)))


class Visit:
    """Arrays and tensors of one call, on another device."""

    def __init__(self, device):
        self._device = device
        self._memory = {}  # of each array or tensor that owns some: (it, its bytes here, and there)
        self._known = {}  # of what is there: (itself, what it is here)
        self._is_torch = False
        self._is_there = False  # tensors that the test has put on the GPU stay there

    def there(self, value):
        return self._map(value, self._to_device)

    def back(self, results):
        if self._is_there:
            return results
        for here, there in self._memory.values():
            here[...] = there.cpu().numpy()
        return self._map(results, self._from_device)

    def _map(self, value, move):
        """Tensors in tuples, lists, dicts and dataclasses."""
        if id(value) in self._known:
            return self._known[id(value)][1]
        if isinstance(value, np.ndarray) or type(value).__module__.startswith("torch"):
            return move(value)
        if isinstance(value, dict):
            return {name: self._map(part, move) for name, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._map(part, move) for part in value))
        if isinstance(value, tuple | list):
            return type(value)(self._map(part, move) for part in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            moved = copy.copy(value)
            for field in dataclasses.fields(value):
                part = self._map(getattr(value, field.name), move)
                object.__setattr__(moved, field.name, part)
            if move == self._to_device:
                self._known[id(moved)] = moved, value
            return moved
        return value

    def _to_device(self, value):
        import torch

        if isinstance(value, torch.Tensor) and value.is_cuda:
            self._is_there = True
            return value
        if isinstance(value, torch.Tensor):
            self._is_torch = True
            owner, itemsize = value.untyped_storage(), value.element_size()
            memory = torch.empty(0, dtype=torch.uint8).set_(owner).numpy()
            strides, offset = value.stride(), value.storage_offset() * itemsize
            dtype, key = value.dtype, owner.data_ptr()
        elif isinstance(value, np.ndarray):
            memory, offset, strides = owned_memory(value)
            itemsize, dtype = value.itemsize, getattr(torch, value.dtype.name)
            strides = [stride // itemsize for stride in strides]
            key = memory.ctypes.data
        else:
            return value
        if 0 in value.shape:
            moved = torch.empty(tuple(value.shape), dtype=dtype, device=self._device)
            self._known[id(moved)] = moved, value
            return moved
        if key not in self._memory:
            self._memory[key] = memory, torch.from_numpy(memory.copy()).to(self._device)
        there = self._memory[key][1]
        typed = there[: len(there) // itemsize * itemsize].view(dtype)
        moved = typed.as_strided(tuple(value.shape), tuple(strides), offset // itemsize)
        self._known[id(moved)] = moved, value
        return moved

    def _from_device(self, tensor):
        import torch

        if not isinstance(tensor, torch.Tensor):
            return tensor
        if self._is_torch:
            return tensor.cpu()
        name = str(tensor.dtype).removeprefix("torch.")
        # Strides of its own: contiguous() leaves those of a single row or column as they are.
        copied = tensor.cpu().clone(memory_format=torch.contiguous_format)
        values = copied.reshape(-1).view(torch.uint8).numpy()
        return values.view(np.dtype(getattr(ml_dtypes, name, name))).reshape(tensor.shape)


def owned_memory(array):
    """The bytes of the array that owns this one's memory, how far in this one begins, and its
    strides. Those of a copy of an array that lies backwards, or of memory that is not to write."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not (owner.flags.forc and owner.flags.writeable) or min(array.strides, default=0) < 0:
        array = owner = np.array(array)
    start = owner.__array_interface__["data"][0]
    memory = owner.reshape(-1, order="A").view(np.uint8)
    return memory, array.__array_interface__["data"][0] - start, array.strides
