"""compressed-tensors: the family whose config says of each layer by its name what it is, so that a
model whose layers differ goes into one checkpoint that servers and transformers read."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from .records import EXPERTS, Record

NAME: Final = "compressed-tensors"
_BLOCK: Final = 128
_STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "tensor": {"strategy": "tensor"},
    "channel": {"strategy": "channel"},
    "128x128": {"strategy": "block", "block_structure": [_BLOCK, _BLOCK]},
    "1x128": {"strategy": "group", "group_size": _BLOCK},
}
_OF_INPUTS: Final[dict[str, dict[str, Any]]] = {
    "tensor": {"strategy": "tensor"},
    "channel": {"strategy": "token"},
    "1x128": {"strategy": "group", "group_size": _BLOCK},
}


def holds_codes(module: Module) -> bool:
    """True if the family has the layer's codes; else it has its numbers."""
    return type(module) is torch.nn.Linear


def why_not(record: Record, module: Module) -> str | None:
    """Why the family cannot keep this layer to the bit; None where it can."""
    if record["kind"] == EXPERTS:
        return "experts are kept as stacks"
    if not holds_codes(module):
        # Powers of two times codes: exact but for numbers below float16's.
        is_exact = record["power_of_two"] and record["dtype"] != "float16"
        return None if is_exact else f"its numbers need not be exact in {record['dtype']}"
    if record["weight_dtype"] != "e4m3":
        return f"its codes are {record['weight_dtype']}"
    if record["granularity"] not in _STRATEGIES:
        return f"its scales are {record['granularity']}"
    weight: Any = module.weight
    sizes = tuple(weight.shape)
    divided = {"128x128": sizes, "1x128": sizes[1:]}.get(record["granularity"], ())
    if any(size % _BLOCK for size in divided):
        return f"its sizes {list(sizes)} are no multiples of {_BLOCK}, which readers divide by"
    if record["recipe"] is not None:
        format = record["recipe"]["output"]["a"]
        inputs, dtype = format["granularity"], format["dtype"]
        if inputs not in _OF_INPUTS or dtype != "e4m3":
            return f"its inputs are cast {inputs} to {dtype}"
    return None


def scale_in_file(record: Record, scale: Tensor) -> Tensor:
    """In the family's shape."""
    return scale.reshape(-1, 1) if record["granularity"] == "channel" else scale


def config_of(layers: Mapping[str, Record]) -> dict[str, Any]:
    """`quantization_config` of a checkpoint with these layers in FP8, by their names."""
    targets: dict[tuple[str, str | None], list[str]] = {}
    for name, record in layers.items():
        targets.setdefault((record["granularity"], _inputs_of(record)), []).append(name)
    groups = {
        f"group_{index}": {
            "input_activations": None
            if inputs is None
            else _arguments(_OF_INPUTS[inputs], dynamic=True),
            "output_activations": None,
            "targets": names,
            "weights": _arguments(_STRATEGIES[granularity], dynamic=False),
        }
        for index, ((granularity, inputs), names) in enumerate(targets.items())
    }
    return {
        "config_groups": groups,
        "format": "float-quantized",
        "global_compression_ratio": None,
        "ignore": [],
        "kv_cache_scheme": None,
        "quant_method": NAME,
        "quantization_status": "compressed",
    }


def _inputs_of(record: Record) -> str | None:
    """How the layer casts x; None: it does not."""
    if record["recipe"] is not None:
        return str(record["recipe"]["output"]["a"]["granularity"])
    return "1x128" if record["compute"] in ("auto", "native") else None


def _arguments(strategy: Mapping[str, Any], dynamic: bool) -> dict[str, Any]:
    common = {"dynamic": dynamic, "num_bits": 8, "symmetric": True, "type": "float"}
    return {**common, "group_size": None, **strategy}
