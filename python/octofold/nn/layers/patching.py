"""All that Octofold changes in classes of other libraries, and what it reads in their source.

Each row of PATCHES is a change, made by a function below. Classes that a new version has written in
another way are left as they are, or refused, by a sentence with the row and the version.
"""

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, Final

from torch.nn import Module

from ..._core.errors import UnavailableError

WRITES: Final = "save_pretrained() runs in octofold.nn.wide_state_dict()"
PATCHES: Final = {  # by the name of the change: the library, which of its classes, what they become
    # Modules that take another class, which computes by other kernels.
    "norms": ("transformers", "an RMSNorm that computes what Llama's does", "octofold.ops.norm()"),
    "rotary": ("transformers", "attention that rotates as Llama's does", "octofold.ops.rotary()"),
    "gated MLPs": ("transformers", "an MLP that computes what Llama's does", "ops.gated_gemm()"),
    "routers": ("transformers", "a router that expert_blocks.py names", "ops.top_k()"),
    "experts": ("transformers", "experts with a gate of their own", "grouped products in FP8"),
    "tuners": ("peft", "tuners of part of a model", "what would train nothing is refused"),
    "whole": ("torch", "modules beside parallel layers", "forward sees the rank's parameters"),
    "parts": ("torch", "nn.Linear with an octofold.nn.Fp8Weight", "a rank's part of it"),
    "spread": ("octofold", "nn.Experts", "ParallelExperts"),
    # Classes that have another method.
    "transformers": ("transformers", "transformers.modeling_utils.PreTrainedModel", WRITES),
    "diffusers": ("diffusers", "diffusers.models.modeling_utils.ModelMixin", WRITES),
    "peft": ("peft", "peft.peft_model.PeftModel", WRITES),
    "hub": ("huggingface_hub", "huggingface_hub.hub_mixin.ModelHubMixin", WRITES),
    # Classes whose source is read, and that stay.
    "readers": ("torch", "modules whose forward reads a layer's weight", "the layer is left alone"),
    "stand-ins": ("transformers", "attention that reads its input's shape alone", "its input"),
}


def change_class(patch: str, module: Module, kind: type) -> None:
    """The module becomes one of this class, the same object."""
    assert patch in PATCHES
    module.__class__ = kind


def put_in_front(patch: str, module: Module, front: Any) -> None:
    """The module takes the methods of a class before its own."""
    kind: Any = type(module)
    change_class(patch, module, in_front_of(front, kind))


def source_of(patch: str, function: Any) -> str:
    """The source of a function, from its own margin; "" if it was compiled or made at run time."""
    assert patch in PATCHES
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def wrap_method(patch: str, method: str, wrapped: Callable[[str, Any], Any]) -> bool:
    """Put wrapped(patch, method) in a method's place, if the row's class has been imported. Returns
    whether it was."""
    name, _, kind = PATCHES[patch][1].rpartition(".")
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        return False
    own = getattr(getattr(module, kind, None), "__dict__", {}).get(method)
    if not callable(own):
        raise UnavailableError(misfit(patch, f"{name}.{kind} has no {method}() of its own"))
    setattr(getattr(module, kind), method, wrapped(patch, own))
    return True


def misfit(patch: str, what: str) -> str:
    """A sentence that says what a class has in place of that which a row expects."""
    library, classes, change = PATCHES[patch]
    version = getattr(sys.modules.get(library), "__version__", "of unknown version")
    return f"{what}, in {library} {version} (expected {classes}: {change})"


def with_names(function: Any, names: dict[str, Any]) -> Any:
    """The function with these globals, behind what renames its old keywords."""
    inner, closure = getattr(function, "__wrapped__", None), function.__closure__
    if inner is not None:
        new = with_names(inner, names)
        closure = tuple(CellType(new) if c.cell_contents is inner else c for c in closure)
        names = function.__globals__
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


@functools.cache
def in_front_of(front: Any, kind: Any) -> Any:
    """A class, always the same, with `front` before `kind`. What looks for the class that it was
    finds it. pickle, which finds classes by their names, gets both, and so torch.save() and
    processes that are spawned can have the module."""
    members = {"__module__": kind.__module__, "_made_of": (front, kind), "__reduce_ex__": _reduce}
    return type(kind.__name__, (front, kind), members)


def _reduce(module: Any, protocol: Any) -> tuple[Any, ...]:
    reduced: Any = object.__reduce_ex__(module, max(int(protocol), 2))
    fronts, kind = [], type(module)
    while "_made_of" in kind.__dict__:
        front, kind = kind.__dict__["_made_of"]
        fronts.append(front)
    return _blank, (kind, *reversed(fronts)), *reduced[2:]


def _blank(kind: Any, *fronts: Any) -> Any:
    """For copies and files, which fill it."""
    for front in fronts:
        kind = in_front_of(front, kind)
    return kind.__new__(kind)
