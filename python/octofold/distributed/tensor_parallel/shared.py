"""Several layers that take the same x: its cast is made, and gathered, once for all of them.

The casts are kept while the forward of the module that holds the layers runs (SharedInput), and no
longer: whoever writes to x between two forwards, be it a CUDA graph, is seen. Within one forward a
write that torch counts is seen too. Where torch does not count (inference_mode), in torch.compile
and while a CUDA graph is captured nothing is kept, and each layer makes its own.
"""

from dataclasses import dataclass
from threading import local
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..._core.formats import Format
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.cast_sources import Source
from ...nn.autograd.boundary import Boundary

_is_compiling: Final = torch.compiler.is_compiling


@dataclass(frozen=True)
class Shared(Boundary):
    """A boundary that does not cast again what it has just cast. As `inner` in all else."""

    inner: Boundary

    @property
    def partial_dtype(self) -> torch.dtype | None:  # type: ignore[override]
        return self.inner.partial_dtype

    @property
    def adds_bias(self) -> bool:
        return self.inner.adds_bias

    def cast(
        self,
        source: Tensor | Source,
        rows: Format | None,
        transposed: Format | None,
        columns: str | None = None,
        scale: Tensor | None = None,
        complete: bool = False,
    ) -> AnyCasts:
        options = rows, transposed, columns, scale, complete
        if columns is not None or scale is not None or not isinstance(source, Tensor):
            return self.inner.cast(source, *options)
        kept = None if _is_compiling() else _kept_for(source)
        if kept is None:
            return self.inner.cast(source, *options)
        key = self.inner, rows, transposed, complete, _identity(source)
        if key in kept:
            casts: AnyCasts = kept[key][1]
            if casts.transposed is not None and casts.transposed.data not in _WHOLE:
                _WHOLE[casts.transposed.data] = None
            return casts
        casts = self.inner.cast(source, *options)
        kept[key] = source, casts  # the source is held so that no other gets its memory
        return casts

    def whole(self, own: Tensor | ScaledTensor | None, shape: torch.Size) -> Any:
        if _is_compiling() or not isinstance(own, ScaledTensor) or own.data not in _WHOLE:
            return self.inner.whole(own, shape)
        if _WHOLE[own.data] is None:
            _WHOLE[own.data] = self.inner.whole(own, shape)
        return _WHOLE[own.data]

    def leave(self, partial: Tensor, dtype: torch.dtype) -> Tensor:
        return self.inner.leave(partial, dtype)

    def total(self, own: Tensor) -> Tensor:
        return self.inner.total(own)


def enter() -> None:
    """From here on Shared boundaries keep what they cast, until leave(). Modules may be inside each
    other; each has its own casts."""
    _OPEN.__dict__.setdefault("stack", []).append({})


def leave() -> None:
    """Forgets what was kept since the last enter()."""
    _OPEN.stack.pop()


_OPEN: Final = local()
"""stack: for each context that is open in this thread, casts by what they are of."""

_WHOLE: Final[Any] = WeakIdKeyDictionary()
"""Transposed casts of this rank that several layers keep for backward, and what whole() makes of
them once one has asked; no longer than these are kept."""


def _kept_for(source: Tensor) -> dict[Any, Any] | None:
    stack = getattr(_OPEN, "stack", None)
    if not stack or source.is_inference():
        return None
    if source.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    kept: dict[Any, Any] = stack[-1]
    return kept


def _identity(x: Tensor) -> tuple[Any, ...]:
    """A key that differs for tensors that are not the same numbers."""
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.device, x._version, stream
