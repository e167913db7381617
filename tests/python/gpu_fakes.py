"""A GPU that is not there: layers choose as they would on it, and the CPU computes."""

import dataclasses
import functools

import octofold
from octofold._info import Component, Gpu

GPUS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
NATIVE = ("8.9", "9.0", "12.0")
"""The GPUs with products of FP8 with FP8, of groups too."""


@functools.cache
def matrix():
    return octofold.capabilities()


def operations_of(name):
    """The operations that info() would report of a GPU of this compute capability."""
    found = {}
    for row in matrix().rows:
        support = row.support[name]
        if support.how == "none":
            continue
        before = found.get(row.kind)
        works = support.how in ("native", "kernels")
        if before is None or (works and not before.available):
            found[row.kind] = Component(works, support.why_not)
    return found


def pretend(monkeypatch, name):
    """From now on the CPU passes for a GPU of this compute capability where layers ask what it
    has kernels for."""
    from octofold.nn.recipes import kernels

    operations = operations_of(name)
    major, minor = map(int, name.split("."))
    backend = Component(True, "a fake")
    gpu = Gpu(0, "a fake", major, minor, 100, 2**34, backend, operations)
    here = dataclasses.replace(octofold.info(), gpus=(gpu,))
    targets = tuple(
        dataclasses.replace(target, gpus=(0,) if target.name == name else ())
        for target in matrix().targets
    )
    monkeypatch.setattr(kernels, "info", lambda: here)
    monkeypatch.setattr(
        kernels, "capabilities", lambda: dataclasses.replace(matrix(), targets=targets)
    )
    monkeypatch.setattr(kernels, "_gpu_of", lambda device: 0)
    forget()
    return gpu


def forget():
    """Clears what is remembered of GPUs."""
    from octofold.nn.recipes import kernels

    for cached in vars(kernels).values():
        if hasattr(cached, "cache_clear") and cached.__module__ == kernels.__name__:
            cached.cache_clear()
