"""Numbers for the FP8 weights of a server's model that runs: its own loaders place what is cast.

A server's load_weights() knows which rows of which parameter a checkpoint's tensor is on this rank,
and writes into the parameter's memory. Here the loaders of weights with 128x128 scales take numbers
too: each tensor is cast whole, as `octofold quantize` casts it, and its codes and scales are what
the loaders get. That a loader takes them is tried on "meta" as they come; it is done for a bucket.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .._core.errors import UnsupportedError, invalid_argument, listed
from .._core.formats import Format, FormatLike, format_of
from .._core.ops import scale_shape
from .._core.scaled_tensor import ScaledTensor
from .._core.torch import FLOAT8
from .._ops.cast import Target
from .._ops.cast_many import CastJob, cast_many
from ..nn.casting.casts import walkable
from ..nn.casting.weight_tensors import is_wide

_NAME: Final = "refit"
_SCALES: Final = "_scale_inv"
_DERIVED: Final = ("W_UK_T", "w_kc")
"""Copies that servers have of a weight, for attention over latents."""


@torch.no_grad()
def refit(
    model: Any,
    named_tensors: Iterable[tuple[str, Tensor]],
    format: FormatLike = "128x128",
    complete: bool = True,
    bucket_bytes: int = 1 << 28,
) -> None:
    """Write other numbers into the weights of a server's model, in the memory that they have.

    model: vLLM's or SGLang's, with weights as checkpoints have them, of 128x128 scales where they
        are FP8. Each rank calls this with all tensors.
    named_tensors: names and shapes of a checkpoint, whole tensors in 16 or 32 bits, or FP8 codes
        and `_scale_inv` as an FP8 checkpoint has them. A tensor stays what it is until its bucket
        is written.
    format: how they are cast; scales are powers of two too where the checkpoint's are.
    complete: whether FP8 weights that do not get all of their numbers are an error.

    Raises InvalidArgumentError or UnsupportedError, which name the parameter, with nothing of the
    bucket written.
    """
    format, loading = format_of(_NAME, format), _Loading(bucket_bytes)
    before: list[tuple[Tensor, dict[str, Any]]] = []
    wanted: list[_Into] = []
    for path, module in model.named_modules():
        if any(getattr(module, name, None) is not None for name in _DERIVED):
            got = f"{path}, attention over latents"
            raise UnsupportedError(f"{_NAME}: expected layers without copies of weights, got {got}")
        quantizes = getattr(module, "quant_method", None)
        power = getattr(getattr(quantizes, "quant_config", None), "scale_fmt", "") == "ue8m0"
        power = power or getattr(quantizes, "is_scale_e8m0", False)
        own_format = replace(format, power_of_two=True) if power else format
        for name, parameter in module._parameters.items():
            if parameter is not None:
                before.append((parameter, dict(parameter.__dict__)))
                scale = module._parameters.get(f"{name}{_SCALES}")
                into = _Into(f"{path}.{name}", own_format, *_loader(parameter), *_loader(scale))
                # A property of the servers' own classes reads the first of these names.
                key = "_weight_loader" if hasattr(parameter, "_weight_loader") else "weight_loader"
                parameter.__dict__[key] = partial(loading.take, into)
                if complete and parameter.dtype in FLOAT8:
                    wanted.append(into)
    try:
        model.load_weights(named_tensors)
        loading.finish(wanted)
    finally:
        for parameter, attributes in before:
            parameter.__dict__.clear()
            parameter.__dict__.update(attributes)


def _copy(parameter: Tensor, loaded: Tensor, *_: Any) -> None:
    """The servers' loader of a parameter that has none."""
    if parameter.shape != loaded.shape and (parameter.numel(), loaded.numel()) != (1, 1):
        raise ValueError("another shape")
    parameter.data.copy_(loaded.view(parameter.shape))


def _loader(parameter: Tensor | None) -> tuple[Any, Callable[..., Any]]:
    return parameter, getattr(parameter, "weight_loader", _copy)


def _of_scales(argument: Any) -> Any:
    """An argument of a loader, for the scales of a weight: loaders of experts get its name."""
    is_name = isinstance(argument, str) and argument.endswith("weight")
    return f"{argument}{_SCALES}" if is_name else argument


class _Into(NamedTuple):
    """A parameter, and the scales beside it; each with the server's loader."""

    name: str
    format: Format
    parameter: Tensor
    load: Callable[..., Any]
    scale: Tensor | None
    load_scale: Callable[..., Any]

    @property
    def has_blocks(self) -> bool:
        """True if it is FP8 with the scales that a checkpoint has."""
        if self.parameter.dtype not in FLOAT8 or self.scale is None:
            return False
        matrices = self.parameter.shape[0] if self.parameter.dim() == 3 else None
        shape = scale_shape("128x128", *self.parameter.shape, matrices=matrices)
        return self.scale.shape == shape and self.scale.dtype == torch.float32


class _Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements that are copied."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.numel += args[0].numel()
        return func(*args, **(kwargs or {}))


class _Loading:
    def __init__(self, bucket_bytes: int) -> None:
        self._bucket_bytes, self._bytes = bucket_bytes, 0
        self._came = Counter[str]()
        self._jobs: defaultdict[torch.device, list[CastJob]] = defaultdict(list)
        self._loads: list[Callable[[], Any]] = []

    def take(self, into: _Into, _: Tensor, loaded: Tensor, *args: Any, **options: Any) -> Any:
        """Called in place of a parameter's loader."""
        own, is_cast = into.parameter, into.parameter.dtype in FLOAT8 and is_wide(loaded)
        if is_cast and not into.has_blocks:
            expected = "128x128 scales as a checkpoint has them, to cast numbers for"
            got = "none" if into.scale is None else f"{into.scale.dtype} {[*into.scale.shape]}"
            raise UnsupportedError(f"{_NAME}: '{into.name}': expected {expected}, got {got}")
        tried = own.detach().to("meta").as_subclass(type(own))
        tried.__dict__.update(own.__dict__)
        empty = torch.empty_like(loaded, dtype=own.dtype if is_cast else None, device="meta")
        try:
            with _Copies() as copies:  # type: ignore[no-untyped-call]
                result = into.load(tried, empty, *args, **options)
        except Exception as error:
            expected = f"what goes into {[*own.shape]} on this rank"
            got = f"{loaded.dtype} {[*loaded.shape]} ({error})"
            raise invalid_argument(_NAME, into.name, expected, got) from error
        if copies.numel:
            self._came[into.name] += copies.numel
            self._plan(into, loaded, is_cast, args, options)
        if self._bytes >= self._bucket_bytes:
            self._write()
        return result

    def _plan(
        self, into: _Into, loaded: Tensor, is_cast: bool, args: Any, options: dict[str, Any]
    ) -> None:
        self._bytes += loaded.nbytes
        if is_cast:
            source = walkable(loaded.detach().to(into.parameter.device))
            matrices = source.shape[0] if source.dim() == 3 else None
            scales = scale_shape("128x128", *source.shape, matrices=matrices)
            loaded = source.new_empty(source.shape, dtype=into.parameter.dtype)
            scale = source.new_empty(scales, dtype=torch.float32)
            out = Target(into.format, out=ScaledTensor(loaded, scale, "128x128"))
            self._jobs[source.device].append(CastJob(source, out, matrices=matrices))
            args_of, options_of = (
                map(_of_scales, args),
                {k: _of_scales(v) for k, v in options.items()},
            )
            self._loads.append(partial(into.load_scale, into.scale, scale, *args_of, **options_of))
        self._loads.append(partial(into.load, into.parameter, loaded, *args, **options))

    def _write(self) -> None:
        for jobs in self._jobs.values():
            cast_many(jobs)
        for load in self._loads:
            load()
        self._jobs.clear()
        self._loads, self._bytes = [], 0

    def finish(self, all_of: Iterable[_Into]) -> None:
        """Write the rest, if each of these has got all of its numbers."""
        missing = [into.name for into in all_of if self._came[into.name] < into.parameter.numel()]
        if missing:
            expected = "all FP8 weights (or complete=False)"
            got = f"none, or not all rows, for {listed(missing)}"
            raise invalid_argument(_NAME, "named_tensors", expected, got)
        self._write()
