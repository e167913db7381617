"""The base of linear layers with an FP8 weight: how they keep, move and load it."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from ..._core.errors import invalid_argument
from ..._core.formats import Format
from ..._core.ops import scale_shape
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import DTYPES, NAMES, with_aligned_rows
from ..autograd.boundary import Sides
from ..autograd.fitting import is_fp8, require_features
from ..casting.weight_tensors import stored
from .buffers import KeepsBuffers
from .linear import local_part
from .saving import CodedState, give_whole_rows, known_or


class Fp8Linear(CodedState, KeepsBuffers):
    """A weight [out, in] in FP8 with its scales, and a bias [out] or None.

    Its buffers have the names, and the weight has the bytes, of FP8 checkpoints:

    | weight's scales | buffers                                             | as in              |
    |-----------------|-----------------------------------------------------|--------------------|
    | 128x128         | weight, weight_scale_inv [⌈out/128⌉, ⌈in/128⌉]      | DeepSeek-V3        |
    | channel         | weight, weight_scale [out], from files [out, 1] too | compressed-tensors |
    | tensor          | weight, weight_scale [1], from files [] too         | vLLM               |
    | 1x128           | weight, weight_scale [out, ⌈in/128⌉]                |                    |

    Scales are float32 multipliers, whatever their names say. to(), half() and the like move weight
    and scales, and convert neither. save_pretrained() of other libraries gets the numbers that they
    stand for (wide_state_dict()). In models that other libraries load, the weight is a parameter, a
    frozen one (keep_as_parameter()). On a GPU rows of codes begin at multiples of 16 bytes: where a
    checkpoint has them otherwise (an `in` that is no multiple of 16), the layer has a copy.

    own_name: the name of the class in messages.
    trains_bias: whether the bias of a new layer is a parameter.
    """

    own_name: ClassVar[str]
    trains_bias: ClassVar[bool] = False
    weight: Tensor
    bias: Tensor | None
    sides: Sides | None = None
    """Boundaries where tokens enter and leave, in a group of ranks of which each has a part of the
    weight. None: the layer is whole in this process."""

    zero_rows: int = 0
    """The number of zero rows before this rank's codes, which thereby begin where a square does."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
        format: Format,
    ) -> None:
        """Uninitialized. dtype: of the bias."""
        super().__init__()
        require_features(self.own_name, in_features, out_features)
        self.in_features, self.out_features = in_features, out_features
        self._granularity = granularity = format.granularity
        shape = (out_features, in_features)
        self._codes = DTYPES[format.dtype]
        weight = torch.empty(shape, device=device, dtype=self._codes)
        scale = torch.empty(scale_shape(granularity, *shape), dtype=torch.float32, device=device)
        empty = torch.empty(out_features, device=device, dtype=dtype) if bias else None
        if empty is not None and self.trains_bias:
            empty = Parameter(empty)
        self.hold(ScaledTensor(weight, scale, granularity), empty)

    @classmethod
    def twin_of(
        cls, linear: torch.nn.Linear, weight: ScaledTensor, bias: Tensor | None, **options: Any
    ) -> Self:
        """A layer in the place of a torch.nn.Linear, with this weight and this bias. The options
        are those of the class."""
        layer = cls(linear.in_features, linear.out_features, False, "meta", **options)
        layer.hold(weight, bias)
        return layer.train(linear.training)

    @property
    def scale_name(self) -> str:
        """The name of the buffer that holds the weight's scales."""
        return "weight_scale_inv" if self._granularity == "128x128" else "weight_scale"

    @property
    def scaled_weight(self) -> ScaledTensor:
        """The weight [out, in] with its scales."""
        codes = self.weight.detach() if "weight" in self._parameters else self.weight
        return ScaledTensor(codes, self._buffers[self.scale_name], self._granularity)

    def own_bias(self) -> Tensor | None:
        """The bias: in a group of ranks what this one has of it, for each row of the codes."""
        if self.sides is None or self.bias is None:
            return self.bias
        bias: Tensor = local_part(self.bias)
        return torch.nn.functional.pad(bias, (self.zero_rows, 0)) if self.zero_rows else bias

    def keep_as_parameter(self) -> None:
        """Have the weight as a parameter, that is a StoredWeight: what libraries offload to the CPU
        between the forwards of a layer, or of a block, are its parameters alone."""
        if "weight" not in self._parameters:
            codes = self.scaled_weight.data
            del self._buffers["weight"]
            self.register_parameter("weight", stored(codes))

    def hold(self, weight: ScaledTensor, bias: Tensor | None) -> None:
        """Take these; a bias that is a parameter stays one, and the weight stays what it was.
        Raises InvalidArgumentError for a weight of other scales, or codes, than the layer's own."""
        own, got = (self._codes, self._granularity), (weight.data.dtype, weight.granularity)
        if own != got:
            words = [f"{NAMES[dtype]} {scales}" for dtype, scales in (own, got)]
            raise invalid_argument(f"{self.own_name}.hold", "weight", *words)
        self._hold_codes(with_aligned_rows(weight.data))
        self.register_buffer(self.scale_name, weight.scale)
        if isinstance(bias, Parameter):
            self._buffers.pop("bias", None)
            self.register_parameter("bias", bias)
        else:
            self.register_buffer("bias", bias)

    def _hold_codes(self, codes: Tensor) -> None:
        if "weight" in self._parameters:
            self._parameters["weight"] = stored(codes)
        else:
            self.register_buffer("weight", codes)

    def _align_codes(self) -> None:
        codes = self.weight.detach()
        aligned = with_aligned_rows(codes)
        if aligned is not codes:
            self._hold_codes(aligned)

    def recast(self, weight: Tensor) -> None:
        """Take a weight [out, in] of high precision, cast as the layer's own was."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )

    def _held_buffers(self) -> dict[str, Tensor | None]:
        names = ("weight", self.scale_name)
        return {name: self._buffers[name] for name in names if name in self._buffers}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        codes = self.weight.detach()
        super()._apply(fn, recurse)
        if "weight" in self._parameters:
            now = self.weight
            self._parameters["weight"] = stored(
                now if now.dtype == codes.dtype else codes.to(now.device)
            )
        self._align_codes()
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        # Others, of load_state_dict(assign=True).
        if "weight" in self._parameters:
            self._parameters["weight"] = stored(self.weight)
        self._align_codes()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        give_whole_rows(destination, prefix, "weight")

    def _in_files(self, dtype: torch.dtype) -> dict[str, Callable[[], Tensor] | None]:
        if not is_fp8(self.weight):
            return {}
        dtype = dtype if self.bias is None else known_or(self.bias.dtype, dtype)
        return {"weight": lambda: self.scaled_weight.dequantize(dtype), self.scale_name: None}

    def _objection(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        weight = state_dict.get(f"{prefix}weight")
        if weight is None or weight.dtype == self.weight.dtype:
            return None
        words = "its own" if is_fp8(weight) else "the FP8 weight of a checkpoint"
        return (
            f"{self.own_name}: '{prefix}weight': expected {self.weight.dtype}, {words}, got "
            f"{weight.dtype} ({self.own_name}.from_linear() casts a weight of high precision)"
        )

    def _adapted(self, state_dict: dict[str, Any], prefix: str) -> dict[str, Any]:
        key = f"{prefix}{self.scale_name}"
        scale, own = state_dict.get(key), self._buffers[self.scale_name]
        if scale is None or own is None or scale.numel() != own.numel():
            return state_dict
        return {**state_dict, key: scale.reshape(own.shape)}


def linear_of(operation: str, linear: object) -> torch.nn.Linear:
    """The argument as a torch.nn.Linear, which it has to be."""
    if not isinstance(linear, torch.nn.Linear):
        got = f"{type(linear).__module__}.{type(linear).__qualname__}"
        raise invalid_argument(operation, "linear", "a torch.nn.Linear", got)
    return linear
