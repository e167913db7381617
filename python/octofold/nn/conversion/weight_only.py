"""The conversion of models to layers whose weights alone are FP8."""

from typing import Final

import torch
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._core.formats import Format, FormatLike, format_of
from ..._ops.quantize import quantize
from ..layers.conv1d import conv1ds
from ..layers.fp8_weight import Fp8Weight
from ..layers.weight_only import WeightOnlyLinear
from .frozen import frozen_layer, words_of
from .linear import replaced
from .picking import ModuleFilter, pick
from .report import Conversion

_NAME: Final = "octofold.nn.convert_weight_only"
_ACTIVATIONS: Final = ("exact", "auto")
CONV1D: Final = (
    "its weight is stored as [in, out] (transformers' Conv1D), and no FP8 layer stores it so"
)


@torch.no_grad()
def convert_weight_only(
    model: Module,
    format: FormatLike = "128x128",
    module_filter_fn: ModuleFilter | None = None,
    *,
    activations: str = "exact",
    batch_invariant: bool = False,
) -> Conversion:
    """Make each torch.nn.Linear of a model an octofold.nn.WeightOnlyLinear.

    model: changed in place; a torch.nn.Linear itself is left as it is. Everything that is not
        linear stays as it is: have the model in float16 or bfloat16, or use autocast.
    format: how weights are cast, an octofold.Format or its words.
    module_filter_fn: as in octofold.nn.convert().
    activations: "exact" leaves them as they are. With "auto" each layer is an
        octofold.nn.InferenceLinear, which casts the activations of more than a few tokens on a
        device that multiplies FP8 with FP8 (a GPU with FP8 units, the CPU): of normal numbers a
        result then loses 2.6 to 2.7 % in the norm (e4m3, all granularities). On others they stay
        exact.
    batch_invariant: that of the WeightOnlyLinear; False with "auto", where the number of tokens
        decides.

    Whatever the filter says, the layers that convert() always leaves alone are left alone here too:
    above all layers whose weight other modules read, which FP8 would break. A layer that stands in
    several places stays one. There is no way back, because what the cast rounds away is gone.
    Returns a report that holds the model (for a torch.nn.Linear, the new layer) and says what
    became of each layer.
    Raises InvalidArgumentError, which names the argument; the model is then as it was.
    """
    format = format_of(_NAME, format)
    if activations not in _ACTIVATIONS:
        expected = " or ".join(f"'{word}'" for word in _ACTIVATIONS)
        raise invalid_argument(_NAME, "activations", expected, activations)
    if batch_invariant and activations == "auto":
        expected = "False with activations='auto', where the number of tokens decides"
        raise invalid_argument(_NAME, "batch_invariant", expected, repr(batch_invariant))
    picked = pick(_NAME, model, module_filter_fn, but=conv1ds(model, CONV1D))
    converted = dict.fromkeys(picked.layers, "")
    while picked.layers:  # one after another, so that memory never holds two of each
        name, linear = picked.layers.popitem()
        layer = _layer_of(linear, format, activations, batch_invariant)
        converted[name] = words_of(layer)
        model = replaced(model, {id(linear): layer})
    return Conversion(model, converted, picked.left_alone)


def _layer_of(
    linear: torch.nn.Linear, format: Format, activations: str, batch_invariant: bool
) -> Fp8Weight:
    if activations == "exact":
        return WeightOnlyLinear.from_linear(linear, format, batch_invariant=batch_invariant)
    return frozen_layer(linear, quantize(linear.weight.detach(), format))
