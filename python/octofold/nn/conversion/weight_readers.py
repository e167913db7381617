"""Layers whose weight other modules read: such a module computes without calling the layer, or asks
the weight for its dtype, so that a layer with another weight would be passed by or break it.

What a class reads is found in its source: `self.<layer>.weight` and `self.<module>.parameters()` in
its forward and in the methods that forward calls. So do torch's TransformerEncoderLayer and
MultiheadAttention (their fast paths), T5's feed-forward layers (`self.wo.weight.dtype`), Mamba's
mixers (kernels that take all weights at once), Wan's embedding of time, DeBERTa's relative
positions, and classes of users. Models say a part of it themselves, by the modules that they keep
in FP32.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.nn import Module

from ..layers.patching import source_of

_WEIGHTS: Final = ("weight", "in_proj_weight")
_KEPT_WIDE: Final = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")


def weight_readers(model: Module) -> dict[int, str]:
    """Finds modules of a model whose weight others read: by identity, the reason to leave them."""
    reasons: dict[int, str] = {}
    paths: dict[type[Module], set[str]] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in paths:
            paths[kind] = _paths_read_by(kind)
        for path in () if _is_off(module) else paths[kind]:
            layer = _at(module, path)
            for part in () if layer is None else layer.modules():
                reasons.setdefault(id(part), f"{kind.__qualname__} reads its weight itself")
        for pattern in wide_patterns(module):
            for below, layer in module.named_modules():
                if re.search(pattern, below):
                    what = f"{kind.__qualname__} keeps it in FP32"
                    reasons.setdefault(id(layer), what)
    return reasons


def wide_patterns(model: Module) -> tuple[str, ...]:
    """Regular expressions for the names of modules that a model of transformers or Diffusers says
    that it keeps in FP32: it lists components of names."""
    names = (name for attribute in _KEPT_WIDE for name in names_of(model, attribute))
    return tuple(rf"(^|\.){re.escape(name)}($|\.)" for name in names)


def names_of(module: Module, attribute: str) -> tuple[str, ...]:
    """An attribute of the module's class that holds names."""
    names = getattr(type(module), attribute, None)
    return tuple(names) if isinstance(names, tuple | list | set | frozenset) else ()


def _is_off(module: Module) -> bool:
    """True if torch's encoder layer has been told to call its layers in evaluation too
    (torch.backends.mha.set_fastpath_enabled(False))."""
    is_encoder = isinstance(module, torch.nn.TransformerEncoderLayer)
    return is_encoder and not torch.backends.mha.get_fastpath_enabled()


def _at(module: Module, path: str) -> Module | None:
    """The module at a dotted path, if there is one."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, "_modules", {}).get(name)
    return found if isinstance(found, Module) else None


def _paths_read_by(kind: type[Module]) -> set[str]:
    """Dotted paths from a module of this class to layers whose weight its forward reads."""
    found: set[str] = set()
    waiting, seen = ["forward"], {"forward"}
    while waiting:
        for function in _definitions(kind, waiting.pop()):
            paths, methods = _reads_and_calls(function)
            found |= paths
            waiting += sorted(methods - seen)
            seen |= methods
    return found


def _definitions(kind: type[Module], name: str) -> Iterator[Any]:
    """A method as this class and those that it is derived from define it: any may call the next."""
    for base in kind.__mro__:
        if base is Module:
            return
        function = base.__dict__.get(name)
        if callable(function):
            yield function


def _reads_and_calls(function: Any) -> tuple[set[str], set[str]]:
    """Returns the paths whose weight a method reads, and the methods of self that it calls."""
    try:
        tree = ast.parse(source_of("readers", function))
    except SyntaxError:
        return set(), set()
    paths: set[str] = set()
    methods: set[str] = set()
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        asks = isinstance(called, ast.Attribute) and called.attr == "parameters"
        reads = isinstance(node, ast.Attribute) and node.attr in _WEIGHTS
        read: Any = called if asks else node
        if (asks or reads) and (path := _path_from_self(read.value)):
            paths.add(path)
        if isinstance(called, ast.Attribute) and _path_from_self(called.value) == "":
            methods.add(called.attr)
    return paths, methods


def _path_from_self(node: ast.expr) -> str | None:
    """ "a.0.b" of `self.a[0].b`, "" of `self`, None of what begins elsewhere."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            names.append(str(node.slice.value))
        else:
            return None
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "self":
        return None
    return ".".join(reversed(names))
