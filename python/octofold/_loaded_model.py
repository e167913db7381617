"""The modules that transformers makes of a checkpoint as it loads it, and their names."""

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ._core.errors import Error, invalid_argument
from ._core.files import read_text
from ._core.library import warn_once

_FAMILIES: Final = ("deepseek-v3", "finegrained-fp8", "compressed-tensors", "torchao")
"""The families that transformers loads."""


def loaded_model(
    operation: str, path: Path, family: str, names: Callable[[], Iterable[str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns, of a transformers folder in one of its families, linear layers and experts by the
    name in the file if theirs is another, or by their own if they have no weights there; and by
    their names the weights that it would read wrong, and why. Nothing where transformers is not
    installed, and for models that it does not know.

    names: of the checkpoint's tensors.
    Raises InvalidArgumentError for a model that it loads in no such family.
    """
    modules: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    made = None
    if family in _FAMILIES and path.suffix != ".safetensors":
        made = _on_meta(path if path.is_dir() else path.parent)
    if made is None:
        return modules, unreadable
    try:
        tensors = [name for name in names() if name.endswith(".weight") or ".experts." in name]
    except Error:
        return modules, unreadable  # what is wrong with files is said by who reads them next
    model, loading, nn = made
    mapping: Any = import_module("transformers.conversion_mapping")
    transforms = mapping.get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, loading.WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, loading.WeightConverter)]
    if operation == "quantize_checkpoint":
        _require_loadable(operation, family, model, converters)
    found, state, taken = dict(model.named_modules()), model.state_dict(), set()
    for name in tensors:
        target, converted = loading.rename_source_key(
            name, renamings, converters, model.base_model_prefix, state
        )
        module = target.removesuffix(".weight")
        if ".experts." in name:
            taken.add(stacks := f"{target.rpartition('.experts.')[0]}.experts")
            if converted is not None:
                modules[name.removesuffix(".weight")] = stacks
        elif converted is not None:
            unreadable[name] = "transformers splits, joins or turns it as it loads it"
        if converted is not None or module not in found:
            continue  # what it stacks, or leaves unread
        taken.add(module)
        if target != name and isinstance(found[module], nn.Linear):
            modules[name.removesuffix(".weight")] = module
        parent = found[module.rpartition(".")[0]]
        if not _is_linear(nn, family, found[module], parent):
            where = f"a {type(found[module]).__name__} of {type(parent).__name__}"
            unreadable[name] = f"transformers has it in {where}, of which it makes no FP8 layer"
    layers = {n for n, m in found.items() if isinstance(m, nn.Linear) or n.endswith(".experts")}
    return modules | {name: name for name in layers - taken}, unreadable


def _on_meta(folder: Path) -> tuple[Any, Any, Any] | None:
    """The model of the class that a folder's config names, without memory, and the modules that
    know it: transformers.core_model_loading and torch.nn."""
    try:
        (architecture,) = json.loads(read_text(folder / "config.json"))["architectures"]
        loading = import_module("transformers.core_model_loading")
        torch: Any = import_module("torch")
        kind = getattr(import_module("transformers"), str(architecture), None)
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return None
    if kind is None:
        return None
    try:
        with torch.device("meta"):
            return kind(kind.config_class.from_pretrained(folder)), loading, torch.nn
    except Exception as error:  # the class is another library's, and may want what is not here
        warn_once(
            f"transformers makes no {architecture} of '{folder}' ({type(error).__name__}: {error}):"
            " its layers are taken for what their names in the files say"
        )
        return None


def _is_linear(nn: Any, family: str, module: Any, parent: Any) -> bool:
    """True if it becomes an FP8 layer whose weight nobody reads past its forward."""
    lists = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    if type(parent).__module__.startswith("torch.nn.") and not isinstance(parent, lists):
        return False
    grouped = "GroupedLinear" in type(module).__name__ and family != "torchao"
    any_subclass = grouped or family == "compressed-tensors"
    return type(module) is nn.Linear or (any_subclass and isinstance(module, nn.Linear))


def _require_loadable(operation: str, family: str, model: Any, converters: Any) -> None:
    """Raise where transformers' quantizers would fail, whatever is in FP8."""
    patched: Any = import_module("transformers.quantizers.base").MODULES_TO_PATCH_FOR_QUANTIZATION
    splits = [
        one._original_source_patterns
        for one in converters
        if len(one._original_target_patterns) > 1
        and all(source.endswith(".weight") for source in one._original_source_patterns)
        and not any(step.supports_many_to_many for step in one.operations)
    ]
    replaces = [
        name
        for name, module in model.named_modules()
        if family in patched.get(type(module).__name__, {}).get("quantization_methods", ())
    ]
    config = model.config.get_text_config()
    sizes = ("moe_intermediate_size", "intermediate_size")  # which its FP8 experts ask for
    unsized = [
        name
        for name, _ in model.named_modules()
        if name.endswith(".experts") and not any(hasattr(config, size) for size in sizes)
    ]
    for amiss, why in (
        (splits, "it fails to split"),
        (replaces, "it puts others in place of"),
        (unsized if family in _FAMILIES[:2] else (), "its config has no size for"),
    ):
        if amiss:
            expected = "one in which transformers loads this model"
            raise invalid_argument(operation, "family", expected, f"{family}, where {why} {amiss}")
