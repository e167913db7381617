"""How a layer whose weight is stored in FP8 loads a state_dict()."""

from typing import Any

from torch import Tensor

from ..._core.log import note
from ..._core.torch import NAMES
from ...nn.autograd.fitting import is_fp8
from ...nn.casting.weight_tensors import is_wide
from .storage import Storage, cast_to_storage


def load_weight(
    own: Tensor, storage: Storage, state: dict[str, Any], prefix: str, error_messages: list[str]
) -> dict[str, Any]:
    """The state with the weight of a layer as codes and scales. A weight in high precision is cast
    as it was when casting was enabled. A weight in FP8 needs the dtype of the layer's `own` weight,
    and its scales."""
    key, scale_key = f"{prefix}weight", f"{prefix}{storage.scale_name}"
    weight, scale = state.get(key), state.get(scale_key)
    if not isinstance(weight, Tensor):
        return state
    if storage.original is not None:
        note(f"layerwise casting: {key} is loaded: its original is kept no longer")
        storage.original = None
    if is_fp8(weight):
        if weight.dtype != own.dtype or scale is None:
            error_messages.append(
                f"layerwise casting: '{key}': expected {own.dtype} with '{scale_key}', or a weight "
                f"in high precision, got {weight.dtype}{'' if scale is not None else ' without it'}"
            )
            return {name: value for name, value in state.items() if name not in (key, scale_key)}
        return state
    if not is_wide(weight) or weight.shape != own.shape:
        return state
    codes, scale = cast_to_storage(weight.to(own.device), NAMES[own.dtype], storage.granularity)
    return {**state, key: codes, scale_key: scale}
