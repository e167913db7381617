"""Folders that models are kept in: what is in them beside others' files, and how they appear."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from ..._core.errors import BadFormatError, UnavailableError, invalid_argument, io_error
from ..._core.files import open_regular, path_argument, read_text
from .records import Record, require_record

RECORDS: Final = "octofold.json"
WEIGHTS: Final = "octofold.safetensors"
"""The file of weights of models that no family can keep. By this name from_pretrained() finds no
weights, where it would take codes for numbers."""
_FORMAT: Final = 1


@dataclass(frozen=True)
class Records:
    """The content of RECORDS."""

    family: str | None
    """Family whose conventions weight files follow; None: names and buffers are the model's."""
    layers: Mapping[str, Record]
    """By their names, those with a weight in FP8."""
    same: Mapping[str, str]
    """Names of tensors that are others, by whose names they are found."""


def require_new(operation: str, folder: object) -> Path:
    """The path, where nothing is or an empty folder."""
    path = path_argument(operation, "folder", folder).absolute()
    if path.is_symlink() or path.exists():
        if not path.is_dir():
            raise invalid_argument(operation, "folder", "a new or empty folder", f"a file, {path}")
        if any(path.iterdir()):
            got = f"{path}, which has files"
            raise invalid_argument(operation, "folder", "a new or empty folder", got)
    return path


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A folder to write to that is this one when the block has ended, and nowhere if it fails."""
    _safetensors()
    from safetensors import SafetensorError

    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise io_error(error, f"cannot write '{path}'") from error
    except SafetensorError as error:  # which has what the system said in its text alone
        said = re.search(r"os error (\d+)", str(error))
        number = int(said[1]) if said else 5
        raise io_error(OSError(number, str(error)), f"cannot write '{path}'") from error


def write_records(folder: Path, records: Records) -> None:
    """Writes records as read_records() takes them."""
    content = {
        "format": _FORMAT,
        "family": records.family,
        "layers": dict(records.layers),
        "same": dict(records.same),
    }
    (folder / RECORDS).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_records(operation: str, folder: object) -> tuple[Path, Records]:
    """The folder's path, and what save() has recorded there."""
    path = path_argument(operation, "folder", folder)
    file = path / RECORDS
    try:
        content = json.loads(read_text(file))
    except OSError as error:
        what = f"{operation}: argument 'folder': expected what octofold.models.save() wrote"
        raise io_error(error, f"{what}: cannot open '{file}'") from None
    except (ValueError, RecursionError) as error:
        raise BadFormatError(f"{file}: expected JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        got = repr(content.get("format", "nothing")) if isinstance(content, dict) else "no object"
        raise BadFormatError(f"{file}: field 'format': expected {_FORMAT}, got {got}")
    for field in ("layers", "same"):
        if not isinstance(content.get(field), dict):
            got = repr(content.get(field))
            raise BadFormatError(f"{file}: field '{field}': expected an object, got {got}")
    for name, record in content["layers"].items():
        try:
            require_record(record)
        except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
            where = f"{file}: field 'layers', layer {name!r}"
            got = f"{record!r} ({error})"
            raise BadFormatError(f"{where}: expected a layer of Octofold, got {got}") from None
    return path, Records(content.get("family"), content["layers"], content["same"])


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of all files of weights, on the CPU."""
    load_file = _safetensors().load_file
    from safetensors import SafetensorError

    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            open_regular(file).close()
            tensors.update(load_file(file))
        except SafetensorError as error:
            raise BadFormatError(f"{file}: expected a safetensors file: {error}") from None
        except OSError as error:
            raise io_error(error, f"cannot read '{file}'") from None
    return tensors


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as safetensors has them, which knows no parts of one memory."""
    whole: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        memory = value.untyped_storage().data_ptr()
        whole[name] = value.clone() if memory in seen else value
        seen.add(memory)
    _safetensors().save_file(whole, file, {"format": "pt"})


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        text = "octofold.models.save and load: expected the package safetensors (pip install it)"
        raise UnavailableError(text) from error
    return safetensors.torch
