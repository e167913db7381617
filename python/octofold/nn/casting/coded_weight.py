"""A weight that is there in FP8 alone, and is a tensor all the same."""

from typing import Any, Final

import torch
from torch import Tensor

from ..._core.scaled_tensor import ScaledTensor

_aten: Final = torch.ops.aten
_AS_IT_IS: Final = (_aten.detach.default, _aten.alias.default)
_VIEWS: Final = (_aten.view.default, _aten.as_strided.default)


class CodedWeight(Tensor):
    """A weight [out, in], or [experts, out, in], whose codes and scales came from all ranks, of the
    dtype that it has in high precision. Layers multiply with the codes. Everything else that is
    computed with it sees the values that they stand for, in its dtype.

    It is what a sharded weight is between FSDP's gather and its freeing (nn/fsdp).
    """

    codes: Tensor
    scale: Tensor
    granularity: str

    @staticmethod
    def __new__(
        cls, codes: Tensor, scale: Tensor, granularity: str, dtype: torch.dtype
    ) -> "CodedWeight":
        made: CodedWeight = Tensor._make_wrapper_subclass(
            cls, codes.shape, strides=codes.stride(), dtype=dtype, device=codes.device
        )
        made.codes, made.scale, made.granularity = codes, scale, granularity
        return made

    @property
    def scaled(self) -> ScaledTensor:
        """Codes and scales, as products take them."""
        return ScaledTensor(self.codes, self.scale, self.granularity)

    @classmethod
    def of(cls, scaled: ScaledTensor, dtype: torch.dtype) -> "CodedWeight":
        return cls(scaled.data, scaled.scale, scaled.granularity, dtype)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], (self.granularity, self.dtype)

    @staticmethod
    def __tensor_unflatten__(
        tensors: dict[str, Tensor], context: Any, size: Any, stride: Any
    ) -> "CodedWeight":
        return CodedWeight(tensors["codes"], tensors["scale"], *context)

    def _stable_hash_for_caching(self) -> str:
        """Returns a text with what torch.compile's cache is to know of the weight."""
        return f"{self!r}, {self.dtype}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _AS_IT_IS or (func in _VIEWS and _is_same(*args, **(kwargs or {}))):
            with torch.inference_mode(args[0].is_inference()):  # as torch's views are
                return cls.of(args[0].scaled, args[0].dtype)
        args, kwargs = torch.utils._pytree.tree_map_only(
            CodedWeight, lambda weight: weight.scaled.dequantize(weight.dtype), (args, kwargs or {})
        )
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<a weight {list(self.shape)} in {self.codes.dtype}, {self.granularity}>"


def coded_below(weights: list[CodedWeight]) -> CodedWeight:
    """Weights [out, in] one below the other, each of whole squares of 128x128."""
    codes = torch.cat([weight.codes.view(torch.uint8) for weight in weights])
    scale = torch.cat([weight.scale for weight in weights])
    first = weights[0]
    return CodedWeight(codes.view(first.codes.dtype), scale, first.granularity, first.dtype)


def _is_same(
    weight: Tensor, size: Any, stride: Any = None, storage_offset: int | None = None
) -> bool:
    """True if a view, as FSDP and DTensor make it, is the tensor itself."""
    same = stride is None or tuple(stride) == weight.stride()
    return same and tuple(size) == tuple(weight.shape) and not storage_offset
