"""Boundaries of layers whose weights are split over the ranks of a group (tensor parallelism).

| tokens outside | boundary   | inwards                                    | outwards       |
|----------------|------------|--------------------------------------------|----------------|
| alike on all   | Replicated | each rank casts them, nothing travels      | all-reduce     |
| split          | Split      | cast where they are; codes, scales travel  | reduce-scatter |

What is cast has the bits of a cast of all tokens in one process. Scales that belong to the tokens
of several ranks (of a column of tokens, or of the whole tensor) are agreed on by an all-reduce of
largest magnitudes, [cols] numbers. Units of 128 tokens that two ranks share cannot be
cast on either side: then the tensor itself travels, and each rank casts all of it.
"""

import math
from dataclasses import dataclass
from threading import local
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement
from torch.nn import Module
from torch.utils.weak import WeakIdKeyDictionary

from ..._core.errors import UnsupportedError
from ..._core.formats import UNITS, Format
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts, Casts, cast
from ..._ops.cast_sources import Source
from ..._ranks import Ranks, require_agreement
from ..._ranks.wire import gathered, gathered_columns, gathered_rows, largest, scattered_sum, summed
from ...nn.autograd.boundary import Boundary
from ...nn.casting.casts import cast_as_wanted, with_amax
from .layouts import FEATURES, local_of, require_split, require_tokens, to_output_layout, tokens_of
from .sequence import local_tokens


@dataclass(frozen=True)
class Replicated(Boundary):
    """All ranks have all tokens.

    operation: in whose name errors are.
    partial_dtype: of what is summed over ranks; None: of the result.
    """

    operation: str
    ranks: Ranks
    partial_dtype: torch.dtype | None = None

    @property
    def adds_bias(self) -> bool:
        return self.ranks.rank == 0

    def reduce(self, partial: Tensor, dtype: torch.dtype) -> Tensor:
        return _in(dtype, summed(self.operation, partial, self.ranks))


@dataclass(frozen=True)
class Split(Boundary):
    """Each rank has an equal part of the tokens.

    operation, partial_dtype: as in Replicated.
    dim: the dimension of tokens [..., cols] that is split.
    """

    operation: str
    ranks: Ranks
    dim: int = 0
    partial_dtype: torch.dtype | None = None

    @property
    def adds_bias(self) -> bool:
        return self.ranks.rank == 0

    def cast(
        self,
        source: Tensor | Source,
        rows: Format | None,
        transposed: Format | None,
        columns: str | None = None,
        complete: bool = False,
    ) -> AnyCasts:
        if rows is None and transposed is None:
            return Casts(None, None)
        shape = _shape(source)
        if self._straddles(shape, rows, transposed):
            return self._cast_of_all(source, rows, transposed, columns, complete)
        casts = self._cast_here(source, rows, transposed, columns)
        of_rows, of_columns = casts.rows, casts.transposed
        if of_rows is not None:
            same = UNITS[of_rows.granularity].rows is None
            of_rows = gathered_rows(self.operation, of_rows, self.ranks, self.dim, same)
        if complete:
            of_columns = self.gather(of_columns, shape)
        return casts._replace(rows=of_rows, transposed=of_columns)

    def gather(self, local: Tensor | ScaledTensor | None, shape: torch.Size) -> Any:
        if isinstance(local, ScaledTensor):
            return gathered_columns(self.operation, local, self.ranks, math.prod(shape[: self.dim]))
        return None if local is None else gathered(self.operation, local, self.ranks, self.dim)

    def reduce(self, partial: Tensor, dtype: torch.dtype) -> Tensor:
        return _in(dtype, scattered_sum(self.operation, partial, self.ranks, self.dim))

    def all_reduce(self, local: Tensor) -> Tensor:
        return summed(self.operation, local, self.ranks)

    def _straddles(self, shape: torch.Size, rows: Format | None, transposed: Format | None) -> bool:
        """True if units of scales may be of tokens of several ranks, and not of all."""
        tokens = {
            None if rows is None else UNITS[rows.granularity].rows,
            None if transposed is None else UNITS[transposed.granularity].cols,
        }
        return math.prod(shape[self.dim : -1]) % 128 != 0 and len(tokens - {1, None}) > 0

    def _cast_here(
        self,
        source: Tensor | Source,
        rows: Format | None,
        transposed: Format | None,
        columns: str | None,
    ) -> AnyCasts:
        """Casts of this rank's tokens, with the scales that all tokens give."""
        agreed_rows = rows is not None and UNITS[rows.granularity].rows is None
        agreed_columns = transposed is not None and UNITS[transposed.granularity].cols is None
        if not agreed_rows and not agreed_columns:
            return cast_as_wanted(source, rows, transposed, columns=columns)
        magnitudes = "amax" if columns is None else "both"
        if rows is None:
            first = cast(source, transposed=transposed, columns=magnitudes)
        else:
            first = cast(source, rows=rows, columns=magnitudes)
        assert first.amax is not None
        amax = largest(self.operation, first.amax, self.ranks)
        of_all = cast(
            source,
            rows=with_amax(rows, amax) if agreed_rows else None,
            transposed=with_amax(transposed, amax) if agreed_columns else transposed,
        )
        of_rows = of_all.rows if agreed_rows else first.rows
        of_columns = of_all.transposed
        return Casts(of_rows, of_columns, first.sums, None, first.norm)

    def _cast_of_all(
        self,
        source: Tensor | Source,
        rows: Format | None,
        transposed: Format | None,
        columns: str | None,
        complete: bool,
    ) -> AnyCasts:
        """Casts of all ranks' tokens, which travel as they are."""
        if not isinstance(source, Tensor) or (transposed is not None and not complete):
            shape = _shape(source)
            raise UnsupportedError(
                f"{self.operation}: argument 'x': expected a multiple of 128 tokens on each rank, "
                f"as the recipe has a scale for 128 tokens, got {list(shape)} on {self.ranks}"
            )
        x = gathered(self.operation, source, self.ranks, self.dim)
        casts = cast_as_wanted(x, rows, transposed)
        sums = None if columns is None else source.flatten(0, -2).sum(0, dtype=torch.float32)
        return casts._replace(sums=sums)


def _in(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def _shape(source: Tensor | Source) -> torch.Size:
    """The shape of the matrix [..., cols] that is cast."""
    x: Tensor = source if isinstance(source, Tensor) else source.operands()[0][0]
    return x.shape


_is_compiling: Final = torch.compiler.is_compiling


@dataclass(frozen=True)
class Shared(Boundary):
    """A boundary that does not cast again what it has just cast. As `inner` in all else.

    Several layers that take the same x cast it, and gather the cast, once for all of them. The
    casts are kept while the forward of the module that holds the layers runs (SharedInput), and no
    longer: whoever writes to x between two forwards, be it a CUDA graph, is seen. Within one
    forward a write that torch counts is seen too. Where torch does not count (inference_mode), in
    torch.compile and while a CUDA graph is captured nothing is kept, and each layer makes its own.
    """

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
        complete: bool = False,
    ) -> AnyCasts:
        options = rows, transposed, columns, complete
        if columns is not None or not isinstance(source, Tensor):
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

    def gather(self, local: Tensor | ScaledTensor | None, shape: torch.Size) -> Any:
        if _is_compiling() or not isinstance(local, ScaledTensor) or local.data not in _WHOLE:
            return self.inner.gather(local, shape)
        if _WHOLE[local.data] is None:
            _WHOLE[local.data] = self.inner.gather(local, shape)
        return _WHOLE[local.data]

    def reduce(self, partial: Tensor, dtype: torch.dtype) -> Tensor:
        return self.inner.reduce(partial, dtype)

    def all_reduce(self, local: Tensor) -> Tensor:
        return self.inner.all_reduce(local)


def open_shared_casts() -> None:
    """From here on Shared boundaries keep what they cast, until close_shared_casts(). Modules may
    be inside each other; each has its own casts."""
    _OPEN.__dict__.setdefault("stack", []).append({})


def close_shared_casts() -> None:
    """Forgets what was kept since the last open_shared_casts()."""
    _OPEN.stack.pop()


_OPEN: Final = local()
"""stack: for each context that is open in this thread, casts by what they are of."""

_WHOLE: Final[Any] = WeakIdKeyDictionary()
"""Transposed casts of this rank that several layers keep for backward, and what gather() makes of
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


@dataclass(frozen=True)
class LayoutHooks:
    """The hooks by which a parallel layer takes and gives tensors in layouts.

    operation: in whose name errors are.
    input_layout: that of a plain tensor that comes in. desired_input_layout: that in which the
        layer takes it.
    result_layout: that of what the layer gives. output_layout: that in which it goes out.
    use_local_output: whether as a plain tensor, and not as a DTensor.
    out_features: in all, of the result.
    facts: what else all ranks have to agree on.
    """

    operation: str
    mesh: DeviceMesh
    ranks: Ranks
    input_layout: Placement
    desired_input_layout: Placement
    result_layout: Placement
    output_layout: Placement
    use_local_output: bool
    out_features: int
    facts: str

    def install(self, module: Module) -> None:
        module.register_forward_pre_hook(self.before, with_kwargs=True, prepend=True)
        module.register_forward_hook(self.after)

    def before(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Each rank's own tensors of all arguments."""
        args = tuple(local_tokens(x) for x in args)
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if tensors and not _is_compiling():
            self._require_fitting(tensors, module)
        args = tuple(self._desired(x) for x in args)
        return args, {name: self._desired(x) for name, x in kwargs.items()}

    def after(self, module: Module, args: Any, output: Any) -> Any:
        """The result, and beside it what has the layout of the arguments."""
        if isinstance(output, tuple):
            y, *others = output
            out = self.desired_input_layout, self.input_layout, self.use_local_output
            return self._out(y), *(to_output_layout(x, self.mesh, *out) for x in others)
        return self._out(output)

    def _desired(self, x: Any) -> Any:
        return local_of(self.operation, x, self.mesh, self.input_layout, self.desired_input_layout)

    def _out(self, y: Tensor) -> Any:
        layouts = self.result_layout, self.output_layout, self.use_local_output
        return to_output_layout(y, self.mesh, *layouts, self.out_features)

    def _require_fitting(self, tensors: list[Tensor], module: Module) -> None:
        """Checks that all ranks agree, and that the tokens can be split as they are to be."""
        operation, x = self.operation, tensors[0]
        described = ", ".join(_words(tensor, self.input_layout) for tensor in tensors)
        trained = ["x"] if any(tensor.requires_grad for tensor in tensors) else []
        trained += [name for name, weight in module.named_parameters() if weight.requires_grad]
        gradients = ", ".join(trained) if trained and torch.is_grad_enabled() else "none"
        require_agreement(operation, self.ranks, x=described, gradients=gradients, layer=self.facts)
        came, goes = (
            None if layout == FEATURES else tokens_of(operation, "layouts", layout)
            for layout in (self.desired_input_layout, self.output_layout)
        )
        require_split(operation, "x", x, came)
        require_split(operation, "x", x, goes)
        if came is not None and isinstance(x, DTensor):
            require_tokens(operation, x, came, self.ranks.size)
        if goes is not None and (came != goes or isinstance(x, DTensor)):
            require_tokens(operation, x, goes, self.ranks.size)


def boundary_of(
    operation: str, ranks: Ranks, layout: Placement, partial_dtype: torch.dtype | None
) -> Replicated | Split:
    """The boundary between tokens of this layout and a layer that computes with all of them."""
    dim = tokens_of(operation, "layouts", layout)
    if dim is None:
        return Replicated(operation, ranks, partial_dtype)
    return Split(operation, ranks, dim, partial_dtype)


def _words(x: Tensor, input_layout: Placement) -> str:
    """Says what is the same on all ranks: not the features, where each may have others."""
    dtype = str(x.dtype).removeprefix("torch.")
    if isinstance(x, DTensor):
        return f"{dtype} {list(x.shape)} {x.placements}"
    if input_layout == FEATURES:
        return f"{dtype} {list(x.shape[:-1])} × features"
    return f"{dtype} {list(x.shape)}"
