"""Plans as files, checked field by field as they are read; and the model and GPU that they are
for."""

import hashlib
import json
import math
import types
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import torch
from torch.nn import Module

from ..._core.errors import BadFormatError, IoErrorWithErrno, invalid_argument
from ..._core.files import read_text, write_whole
from .record import WIDE
from .ways import OWN, WAYS

FORMAT: Final = 1
"""The number of the file's format. A file with another number is refused."""

_TARGETS: Final = ("time", "bytes", "error")


def plan_fields(text: str, plan_class: type, name: str) -> dict[str, Any]:
    """The fields of the Plan that this JSON is; `name` is the file's, for errors."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFormatError(f"{name}: expected a plan in JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadFormatError(f"{name}: expected a plan in JSON, got {type(content).__name__}")
    if content.get("format") != FORMAT:
        got = repr(content.get("format", "nothing"))
        raise BadFormatError(f"{name}: field 'format': expected {FORMAT}, got {got}")
    found = _fields(plan_class, content, name, "")
    _require_sense(found, name)
    return found


def _require_sense(found: dict[str, Any], name: str) -> None:
    """Check what the types of the fields do not say."""
    if found["target"] not in _TARGETS:
        raise _wrong(name, "target", f"one of {', '.join(_TARGETS)}", found["target"])
    seen: set[str] = set()
    for index, layer in enumerate(found["layers"]):
        where = f"layers[{index}]"
        if layer.name in seen:
            raise _wrong(name, f"{where}.name", "a name that no other layer has", layer.name)
        seen.add(layer.name)
        if layer.chosen != OWN and layer.chosen not in WAYS:
            ways = ", ".join([OWN, *WAYS])
            raise _wrong(name, f"{where}.chosen", f"a way that there is ({ways})", layer.chosen)
        option = layer.planned
        if layer.chosen != OWN and (option is None or option.why_not is not None):
            raise _wrong(name, f"{where}.chosen", "a way that was measured there", layer.chosen)
        for place, calls in enumerate(layer.calls):
            if calls.dtype not in WIDE:
                expected = f"one of {', '.join(WIDE)}"
                raise _wrong(name, f"{where}.calls[{place}].dtype", expected, calls.dtype)
        for field in ("in_features", "out_features"):
            if getattr(layer, field) < 0:
                raise _wrong(name, f"{where}.{field}", "at least 0", getattr(layer, field))


def _wrong(name: str, field: str, expected: str, got: object) -> BadFormatError:
    return BadFormatError(f"{name}: field '{field}': expected {expected}, got {got!r}")


def _fields(cls: type, content: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    hints = get_type_hints(cls)
    expected = [field.name for field in fields(cls)]
    for key in content:
        if key not in expected:
            raise _wrong(name, where + key, "no such field", "one")
    for key in expected:
        if key not in content:
            raise _wrong(name, where + key, "a value", "none")
    return {key: _value(hints[key], content[key], name, where + key) for key in expected}


def _value(kind: Any, content: Any, name: str, where: str) -> Any:
    """The content as a value of this type."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):  # with None, as all of ours
        if content is None:
            return None
        (inner,) = (part for part in get_args(kind) if part is not type(None))
        return _value(inner, content, name, where)
    if origin is tuple:
        if not isinstance(content, list):
            raise _wrong(name, where, "a list", content)
        inner = get_args(kind)[0]
        return tuple(_value(inner, item, name, f"{where}[{i}]") for i, item in enumerate(content))
    if is_dataclass(kind):
        if not isinstance(content, dict):
            raise _wrong(name, where, "an object", content)
        assert isinstance(kind, type)
        return kind(**_fields(kind, content, name, f"{where}."))
    if kind is float and isinstance(content, int) and not isinstance(content, bool):
        content = float(content)
    if not isinstance(content, kind) or (isinstance(content, bool) and kind is not bool):
        raise _wrong(name, where, {"str": "a string"}.get(kind.__name__, "a number"), content)
    if isinstance(content, float) and not math.isfinite(content):
        raise _wrong(name, where, "a finite number", content)
    return content


def read_plan(path: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        return read_text(path)
    except UnicodeDecodeError:
        raise BadFormatError(f"{path}: expected a plan in JSON, got no UTF-8") from None
    except OSError as error:
        raise _io_error(error, f"cannot open '{path}'") from None


def write_plan(path: Path, text: str) -> None:
    """Whole or not at all."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise _io_error(error, f"cannot write '{path}'") from None


def _io_error(error: OSError, what: str) -> Exception:
    made: Exception = IoErrorWithErrno(f"{error.errno or 5}:{what}: {error.strerror}")
    return made


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
    kinds = [(name, value, getattr(value, "codes", value).dtype) for name, value in tensors]
    lines = sorted(f"{name} {list(value.shape)} {dtype}" for name, value, dtype in kinds)
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
    return sum(tensor.nbytes for tensor in tensors.values())
