"""Numbers for the FP8 weights of a server's model that runs: its own loaders place what is cast.

A server's load_weights() knows which rows of which parameter a checkpoint's tensor is on this rank,
and writes into the parameter's memory. Here the loaders of weights with 128x128 scales take numbers
too: each tensor is cast whole, as `octofold quantize` casts it, and its codes and scales are what
the loaders get.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from .._core.errors import UnsupportedError, invalid_argument
from .._core.formats import Format, FormatLike, format_of
from .._core.ops import scale_shape
from .._core.torch import FLOAT8
from .._ops.quantize import quantize
from ..nn.casting.casts import walkable
from ..nn.casting.weight_tensors import is_wide

_NAME: Final = "refit"
_SCALES: Final = "_scale_inv"
_DERIVED: Final = ("W_UK_T", "w_kc", "octofold_unit")
"""Layers have these beside a weight as it was loaded, or in its place: copies of it for attention
over latents, and parts of blocks that ranks have cut (cut_blocks.py)."""


@torch.no_grad()
def refit(
    model: Any, named_tensors: Iterable[tuple[str, Tensor]], format: FormatLike = "128x128"
) -> Any:
    """Write other numbers into the weights of a server's model, in the memory that they have.

    model: vLLM's or SGLang's, with weights as checkpoints have them, of 128x128 scales where they
        are FP8. Each rank calls this with all tensors.
    named_tensors: names and shapes of a checkpoint, whole tensors in 16 or 32 bits, or FP8 codes
        and `_scale_inv` as an FP8 checkpoint has them. Each is written as it comes.
    format: how they are cast; scales are powers of two too where the checkpoint's are.

    Returns what the model's load_weights() returns: of vLLM's the names of what was loaded.
    Raises InvalidArgumentError or UnsupportedError, which name the parameter; what came before is
    written then.
    """
    cast_as, before = format_of(_NAME, format), {}
    try:
        for path, module in model.named_modules():
            if any(getattr(module, name, None) is not None for name in _DERIVED):
                expected = "weights as they were loaded, not copies for latents or cut blocks"
                raise UnsupportedError(f"{_NAME}: expected {expected}, got {path}")
            quantizes = getattr(module, "quant_method", None)
            power = getattr(getattr(quantizes, "quant_config", None), "scale_fmt", "") == "ue8m0"
            power = power or getattr(quantizes, "is_scale_e8m0", False)
            own_format = replace(cast_as, power_of_two=True) if power else cast_as
            for name, weight in module._parameters.items():
                if weight is None or weight.dtype not in FLOAT8 or id(weight) in before:
                    continue  # a tied one has one loader
                scale = module._parameters.get(f"{name}{_SCALES}")
                loaders = (getattr(part, "weight_loader", _copy) for part in (weight, scale))
                # A property of the servers' own classes reads the first of these names.
                key = "_weight_loader" if hasattr(weight, "_weight_loader") else "weight_loader"
                before[id(weight)] = weight, dict(weight.__dict__)
                own = _Weight(f"{path}.{name}", own_format, scale, *loaders)
                weight.__dict__[key] = own.take
        return model.load_weights(named_tensors)
    finally:
        for weight, attributes in before.values():
            weight.__dict__.clear()
            weight.__dict__.update(attributes)


class _Weight(NamedTuple):
    """An FP8 weight: how it is cast, its scales, and the server's loaders of both."""

    name: str
    format: Format
    scale: Tensor | None
    load: Callable[..., Any]
    load_scale: Callable[..., Any]

    def take(self, weight: Tensor, loaded: Tensor, *args: Any, **options: Any) -> Any:
        """Called in place of the server's loader."""
        cast = None
        if is_wide(loaded):
            self._require_blocks(weight)
            numbers = walkable(loaded.detach().to(weight.device))
            matrices = len(numbers) if numbers.dim() == 3 else None
            cast = quantize(numbers, self.format, matrices=matrices)
        try:
            result = self.load(weight, loaded if cast is None else cast.data, *args, **options)
            if cast is not None:
                of_scales = {key: _of_scales(value) for key, value in options.items()}
                self.load_scale(self.scale, cast.scale, *map(_of_scales, args), **of_scales)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            expected = f"what goes into {[*weight.shape]} on this rank"
            got = f"{loaded.dtype} {[*loaded.shape]} ({error})"
            raise invalid_argument(_NAME, self.name, expected, got) from error
        return result

    def _require_blocks(self, weight: Tensor) -> None:
        """Requires scales as those of a checkpoint."""
        matrices = len(weight) if weight.dim() == 3 else None
        wanted = f"torch.float32 {[*scale_shape('128x128', *weight.shape, matrices=matrices)]}"
        found = "none" if self.scale is None else f"{self.scale.dtype} {[*self.scale.shape]}"
        if found != wanted or self.format.granularity != "128x128":
            expected = f"{self.format}, and scales {wanted}, to cast numbers for"
            raise UnsupportedError(f"{_NAME}: '{self.name}': expected {expected}, got {found}")


def _copy(weight: Tensor, loaded: Tensor) -> None:
    """The servers' loader of a parameter that has none."""
    weight.data.copy_(loaded.view(weight.shape))


def _of_scales(argument: Any) -> Any:
    """An argument of a loader, for the scales of a weight: loaders of experts get its name."""
    is_name = isinstance(argument, str) and argument.endswith("weight")
    return f"{argument}{_SCALES}" if is_name else argument
