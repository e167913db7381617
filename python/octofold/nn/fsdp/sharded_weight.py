"""A weight that FSDP2 gathers as FP8 codes with their scales.

FSDP asks the local tensor of a sharded parameter what is to be gathered (fsdp_pre_all_gather), and
makes the parameter of what has come (fsdp_post_all_gather): torch.distributed.fsdp's extension
point for tensor subclasses. So each rank casts its shard, and the layers multiply with the codes.
"""

import inspect
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..._core.errors import UnsupportedError
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import Target, cast
from ..._ranks.wire import as_bytes
from ..casting.casts import cast_weight, with_amax
from ..casting.weight_tensors import CodedWeight, WrappedWeight
from .agreed_scale import StreamValue, agreed_scale, in_backward

_Metadata: TypeAlias = tuple[str, torch.dtype, Tensor | None]
"""Granularity, dtype of the codes, and the scale that all ranks know already."""


class ShardedWeight(WrappedWeight):
    """A weight [out, in], or experts' [experts, out, in], or the shard of one.

    place: of the layer in the model, for messages.
    recipe: of the layer: its weight has the same scales in both of its products.
    """

    place: str
    recipe: Recipe
    _kept: tuple[torch.dtype, StreamValue[ScaledTensor]] | None
    """The codes that the last gather outside backward cast, and from which dtype: backward
    multiplies with the codes of forward, and each step casts a weight once."""

    @staticmethod
    def __new__(cls, plain: Tensor, place: str, recipe: Recipe) -> "ShardedWeight":
        made = WrappedWeight.__new__(cls, plain)
        made.place, made.recipe, made._kept = place, recipe, None
        return made

    def like(self, plain: Tensor) -> "ShardedWeight":
        return ShardedWeight(plain, self.place, self.recipe)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["plain"], (self.place, self.recipe)

    @staticmethod
    def __tensor_unflatten__(
        tensors: dict[str, Tensor], context: Any, size: Any, stride: Any
    ) -> "ShardedWeight":
        return ShardedWeight(tensors["plain"], *context)

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], _Metadata]:
        """FSDP's question: what of this shard is to be gathered along the first dimension."""
        _require_whole_units(self, mesh.size(), outer_size)
        codes = self._codes(mp_policy.param_dtype or self.dtype, mesh, module)
        kind, data = (codes.granularity, codes.data.dtype), as_bytes(codes.data)
        # All ranks know one scale already. Of several tensors FSDP takes the first for one rank.
        if has_one_scale(self) or mesh.size() == 1:
            return (data,), (*kind, codes.scale)
        return (data, codes.scale), (*kind, None)

    def _codes(self, dtype: torch.dtype, mesh: Any, module: Any) -> ScaledTensor:
        """The shard's codes, as casting after the gather makes them from a weight of this dtype."""
        if in_backward() and self._kept is not None and self._kept[0] == dtype:
            return self._kept[1].on_current_stream()
        codes = self._cast(dtype, mesh, module)
        if not in_backward():
            kept = StreamValue(codes, codes.data, codes.scale)
            self._kept = (dtype, kept) if module.training else None
        return codes

    def _cast(self, dtype: torch.dtype, mesh: Any, module: Any) -> ScaledTensor:
        weight = self.plain.to(dtype)
        codes: ScaledTensor | None
        if has_one_scale(self):
            assert self.recipe.output is not None
            agreed = agreed_scale(module, self.place, self.plain, dtype, mesh)
            format = self.recipe.output.b
            static = Target(format, scale=agreed.scale)
            target = with_amax(format, agreed.amax) if agreed.scale is None else static
            codes = cast(weight, rows=target).rows
        else:
            codes, _ = cast_weight(weight, self.recipe, True, False)
        assert codes is not None
        if codes.scale.is_contiguous():
            return codes
        return ScaledTensor(codes.data, codes.scale.contiguous(), codes.granularity)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[Tensor, ...],
        metadata: _Metadata,
        param_dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """FSDP's question: the whole weight of what has come; with `out`, that it is there again,
        in the memory that it had."""
        granularity, dtype, agreed = metadata
        if agreed is not None and agreed.is_cuda:  # was made on a stream of FSDP's
            agreed.record_stream(torch.cuda.current_stream(agreed.device))
        if out is not None:
            held = getattr(out, "_local_tensor", out)  # of a DTensor, over tensor parallelism
            assert isinstance(held, CodedWeight)
            if agreed is not None:
                # Tensors that backward saved of it hold the same numbers: the weight is the same.
                counted = () if held.scale.is_inference() else (held.scale,)
                with torch.no_grad(), _unsafe_preserve_version_counter(counted):
                    held.scale.copy_(agreed)
            return None
        codes, *scale = all_gather_outputs
        whole = ScaledTensor(codes.view(dtype), agreed if not scale else scale[0], granularity)
        return CodedWeight.of(whole, param_dtype), ()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<a weight that travels in FP8: {self.plain!r}>"


# FSDP looks it up in each gather, which takes the host longer than a launch.
_pre: Any = ShardedWeight.fsdp_pre_all_gather
_pre.__signature__ = inspect.signature(_pre)


def has_one_scale(weight: ShardedWeight) -> bool:
    """True if the whole weight has one: experts have one each, and a shard is of whole experts."""
    output = weight.recipe.output
    return weight.dim() == 2 and output is not None and output.b.granularity == "tensor"


def _require_whole_units(weight: ShardedWeight, ranks: int, size: Any) -> None:
    """Requires that each rank has as many rows as any other, whole squares of them. All ranks see
    the same sizes, so that all raise."""
    rows, got = int(size[0]), f"{list(size)} on {ranks} ranks"
    squares = weight.dim() == 2 and not has_one_scale(weight)
    if weight.shape[1:] != size[1:]:
        got = f"parts {list(weight.shape)} of {got} (shard_placement_fn)"
    elif rows % ranks == 0 and not (squares and ranks > 1 and rows // ranks % 128 != 0):
        return
    unit = "a multiple of 128 rows" if squares else "equally many rows"
    raise UnsupportedError(
        f"octofold.nn.convert: argument 'fsdp_fp8': expected {unit} of {weight.place!r} on "
        f"each rank, got {got}: leave this layer out (module_filter_fn), or convert it without "
        "fsdp_fp8"
    )
