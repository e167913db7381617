"""Layerwise casting: weights in FP8 between their uses, or in them too."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..._core.errors import invalid_argument, require_type
from ..._core.formats import FP8, WIDE, Format, Rule, dtype_name
from ..._core.library import note
from ..._core.torch import DTYPES
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.layers.fp8_parameters import hold, weight_of
from ...nn.recipes.choice import require_compute
from ...nn.recipes.kernels import has_bfloat16, has_native
from .selection import BEFORE, NAME, Patterns, Selection, select, tuple_of

_UNDO: Final = "octofold.models.disable_layerwise_casting"


@torch.no_grad()
def enable_layerwise_casting(
    module: Module,
    storage_dtype: Any = "e4m3",
    compute_dtype: Any = None,
    skip_modules_pattern: str | tuple[str, ...] | None = None,
    skip_modules_classes: tuple[type[Module], ...] | None = None,
    non_blocking: bool = False,
    *,
    compute: str = "auto",
    keep_originals: bool = False,
) -> Module:
    """Keep the weights of a model's linear, convolution and embedding layers in FP8, in place.

    module: a model of any library, or a layer. Its layers stay what they are: their weights become
        octofold.nn.Fp8Weights. Everything else stays as it is, biases too.
    storage_dtype: torch.float8_e4m3fn, torch.float8_e5m2, or their names.
    compute_dtype: the dtype to compute with; results have the dtype of the input, as before. None:
        the dtype of the model's weights if it has 16 bits, else bfloat16 (float16 on GPUs without
        bfloat16).
    skip_modules_pattern: regular expressions; a module in whose name one is found is left alone,
        with everything in it. None (and "auto"): Diffusers' own, for norms, embeddings of positions
        and patches, and the projections at both ends. (): none of these. In each case the model's
        own wishes count too (`_skip_layerwise_casting_patterns`, `_keep_in_fp32_modules`), except
        those of modules around the one that is given here.
    skip_modules_classes: modules of these classes are left alone, with everything in them.
    non_blocking: for the copies from the CPU by which originals come back.
    compute: "auto": a linear layer is computed in the fastest way for its tokens on its GPU: FP8
        times FP8 where there are FP8 units, weight-only kernels for few tokens and on older GPUs,
        else with a copy of its weight in compute_dtype, which is dropped at once. "native": always
        FP8 times FP8. "weight-only": never, so that activations are not rounded to FP8. "copy":
        always with a copy.
    keep_originals: keep the present weights on the CPU, for disable_layerwise_casting().

    Weights have scales, which are powers of two: one for each 128x128 of a linear layer's weight,
    one for each row of others'. The weights are
    frozen; biases and adapters are not, and gradients pass through. Adapters of peft are never
    cast, nor are weights that several modules share; the log names what was left alone, and why.

    Returns the module.
    Raises InvalidArgumentError, which names the argument: among others for patterns that are found
    nowhere or leave no layer, weights on `meta`, weights that are not finite, and casting that is
    enabled already. The module is then as it was. (If casting fails midway, for example because
    memory runs out, it is undone as disable_layerwise_casting() undoes it.)
    """
    require_type(NAME, "module", module, Module, "a torch.nn.Module")
    stored_as = dtype_name(NAME, "storage_dtype", storage_dtype, FP8)
    if compute_dtype is not None:
        compute_dtype = DTYPES[dtype_name(NAME, "compute_dtype", compute_dtype, WIDE)]
    for name, flag in (("non_blocking", non_blocking), ("keep_originals", keep_originals)):
        if not isinstance(flag, bool):
            raise invalid_argument(NAME, name, "True or False", repr(flag))
    require_compute(NAME, compute, Fp8Weight.COMPUTE)
    selection = select(module, Patterns(skip_modules_pattern), _classes(skip_modules_classes))
    _require_layers(module, selection)
    _require_castable(selection, compute)
    before = _megabytes(module)
    done: list[Module] = []
    try:
        for layer in selection.layers.values():
            weight = _weight(layer)
            original = weight.detach().to("cpu", copy=True) if keep_originals else None
            before_casting = Before(weight.requires_grad, original, non_blocking)
            dtype = compute_dtype or _compute_dtype(layer)
            options: dict[str, Any] = {"compute": compute, "compute_dtype": dtype}
            granularity = "128x128" if isinstance(layer, torch.nn.Linear) else "channel"
            format = Format(stored_as, granularity, rule=Rule.TORCHAO, power_of_two=True)
            hold(layer, Fp8Weight.cast(weight, format, **options))
            layer.before_casting = before_casting  # type: ignore[assignment]
            done.append(layer)
    except BaseException:  # no memory, no kernel, Ctrl-C
        for layer in done:
            _restore(layer)
        raise
    note(
        f"layerwise casting: {len(done)} layers of {type(module).__qualname__} are stored as "
        f"{stored_as}; its {before:.1f} MB are {_megabytes(module):.1f} now"
    )
    return module


@torch.no_grad()
def disable_layerwise_casting(module: Module) -> Module:
    """Undo enable_layerwise_casting(), in place: weights are numbers again, of the dtype that they
    had, on the device where they are now.

    With keep_originals, the weights are those of before, bit for bit, unless others have been
    loaded since. Without, they are what FP8
    has kept: code times scale, which bfloat16 and float32 hold exactly. So enabling casting again
    loses nothing more; the log says so.

    module: a model or a part of it.

    Returns the module.
    Raises InvalidArgumentError if casting is enabled for nothing in it, or if weights are on `meta`
    (accelerate's remove_hook_from_submodules() brings them back).
    """
    require_type(_UNDO, "module", module, Module, "a torch.nn.Module")
    layers = {name: one for name, one in module.named_modules() if BEFORE in one.__dict__}
    if not layers:
        got = f"{type(module).__qualname__} without"
        raise invalid_argument(_UNDO, "module", "a model with layerwise casting", got)
    for name, layer in layers.items():
        if _weight(layer).device.type == "meta":  # accelerate's hooks would bring codes again
            raise invalid_argument(_UNDO, "module", "weights in memory", f"{name!r} on meta")
    rounded = len(layers) - sum(_restore(layer) for layer in layers.values())
    if rounded:
        note(
            f"layerwise casting: disabled; the weights of {rounded} layers are what FP8 has kept "
            "of them (keep_originals=True keeps them as they were)"
        )
    return module


@dataclass
class Before:
    """The properties of a weight that its layer remembers, as `before_casting`."""

    requires_grad: bool
    original: Tensor | None = None
    """The weight as it was, on the CPU, if it is kept."""
    non_blocking: bool = False
    """True if it is copied back without blocking."""


def _restore(layer: Module) -> bool:
    """Give a layer numbers for its weight. Returns whether they are the original's."""
    weight = weight_of(layer)
    before = layer.__dict__.pop(BEFORE)
    layer.__dict__.pop("extra_repr", None)
    numbers, original = None, before.original
    if original is not None:
        numbers = original.to(weight.device, non_blocking=before.non_blocking)
        again: Any = weight.clone()
        again.recast(numbers)
        if not again.scaled.equals(weight.scaled):  # others were loaded
            numbers = None
    is_original = numbers is not None
    numbers = weight.dequantize() if numbers is None else numbers.to(weight.dtype)
    layer._parameters["weight"] = Parameter(numbers, before.requires_grad)
    return is_original


def _compute_dtype(layer: Module) -> torch.dtype:
    weight = _weight(layer)
    if weight.dtype != torch.float32:
        return weight.dtype
    return torch.bfloat16 if has_bfloat16(weight.device) else torch.float16


def _classes(classes: Any) -> tuple[type[Module], ...]:
    argument = "skip_modules_classes"
    if classes is None:
        return ()
    given = (classes,) if isinstance(classes, type) else tuple_of(argument, classes)
    for one in given:
        if not isinstance(one, type) or not issubclass(one, Module):
            raise invalid_argument(NAME, argument, "classes of modules", repr(one))
    return given


def _require_layers(module: Module, selection: Selection) -> None:
    if selection.layers:
        return
    what = type(module).__qualname__
    reasons = Counter(selection.reasons.values())
    listed = "".join(f"; {reason} ({n})" for reason, n in reasons.items())
    if selection.skipped and not reasons:
        argument, expected = "skip_modules_pattern", "to leave a layer (and skip_modules_classes)"
        raise invalid_argument(NAME, argument, expected, f"every layer of {what} skipped")
    expected = "linear, convolution or embedding layers with weights of their own"
    skipped = f"; skipped as asked for ({selection.skipped})" if selection.skipped else ""
    raise invalid_argument(NAME, "module", expected, f"{what} without{listed}{skipped}")


def _require_castable(selection: Selection, compute: str) -> None:
    extremes: dict[torch.device, list[Tensor]] = {}
    for name, layer in selection.layers.items():
        weight = _weight(layer)
        if weight.device.type == "meta":
            expected = "weights in memory (load them first, and offload afterwards)"
            raise invalid_argument(NAME, "module", expected, f"{name!r} on meta")
        bias = layer._parameters.get("bias")
        if bias is not None and bias.device != weight.device:
            got = f"{name!r} with its weight on {weight.device}, its bias on {bias.device}"
            raise invalid_argument(NAME, "module", "each layer on one device", got)
        if compute == "native" and not has_native(weight.device):
            expected = f"another word, as {weight.device} has no kernels of FP8 with FP8"
            raise invalid_argument(NAME, "compute", expected, "native")
        extremes.setdefault(weight.device, []).append(torch.stack(weight.aminmax()).float())
    finite = [torch.stack(values).isfinite().all(1).tolist() for values in extremes.values()]
    by_device = dict(zip(extremes, map(iter, finite), strict=True))
    for name, layer in selection.layers.items():
        if not next(by_device[_weight(layer).device]):
            expected = "finite weights, because others share scales with them"
            raise invalid_argument(NAME, "module", expected, f"NaN or infinity in {name!r}")


def _megabytes(module: Module) -> float:
    """The megabytes of parameters and buffers."""
    tensors = (*module.parameters(), *module.buffers())
    known = [tensor for tensor in tensors if not torch.nn.parameter.is_lazy(tensor)]
    return sum(tensor.nbytes for tensor in known) / 1e6


def _weight(layer: Module) -> Tensor:
    weight = layer._parameters["weight"]
    assert weight is not None
    return weight
