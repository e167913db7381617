"""Layers whose weight lies in memory as FP8, and that remain what they were for everybody else.

A layer becomes one by taking another class, a subclass of its own made for it, and has its old
class back when casting is disabled. So the layer stays the same object: parents, hooks, peft's
wrappers and shared places need no change; isinstance(layer, torch.nn.Linear) holds, by which peft
finds what it can adapt; and unlike a forward put into the instance, a class survives deepcopy and
torch.save (by __reduce_ex__ below), and torch.compile follows it. Parametrizations of torch would
do the same with other names in state_dict(), where Diffusers' users and checkpoints have `weight`.
"""

import types
from collections.abc import Callable
from typing import Any, ClassVar, Final, Self

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.scaled_tensor import ScaledTensor
from ..._info import NATIVE, WEIGHT_ONLY
from ...nn.autograd.fitting import is_fp8
from ...nn.autograd.functions import result_dtype
from ...nn.casting.weight_tensors import StoredWeight, stored
from ...nn.layers.buffers import keep_dtypes
from ...nn.layers.saving import give_numbers
from ...nn.layers.weight_only import weight_only_linear
from .products import forgetting, linear_compute, linear_of_codes
from .storage import Storage, from_storage, load_weight


class StoredLayer(Module):
    """The base of all of them: `weight` a StoredWeight, beside it a buffer of scales, the bias as
    it was.

    compute_dtype: of the products. peft gives new adapters this dtype.
    plain_class: what the layer was.
    """

    plain_class: ClassVar[type[Module]]
    compute_dtype: torch.dtype
    storage: Storage
    weight: Tensor
    bias: Tensor | None

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """A plain layer: peft makes adapters of convolutions by type(layer)(...). Without arguments
        one that is yet to be filled, as DataParallel and copies ask for it."""
        if arguments or options:
            return cls.plain_class(*arguments, **options)
        return super().__new__(cls)

    @property
    def weight_scale_values(self) -> Tensor:
        """float32 multipliers of the codes."""
        scale = self._buffers[self.storage.scale_name]
        assert scale is not None
        return scale

    def wide_weight(self, dtype: torch.dtype) -> Tensor:
        """The numbers that the codes stand for, as a new tensor."""
        codes, scale = self.weight.detach(), self.weight_scale_values
        return from_storage(codes, scale, self.storage.granularity, dtype)

    def forgetting(self, copy: Tensor) -> Any:
        """forgetting() of a wide_weight()."""
        codes, scale = self.weight.detach(), self.weight_scale_values
        return forgetting(copy, codes, scale, self.storage.granularity)

    def product_dtype(self, x: Tensor) -> torch.dtype:
        """To compute with: autocast's where it is on."""
        if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
            return torch.get_autocast_dtype(x.device.type)
        return self.compute_dtype

    def with_copy(
        self, product: Callable[[Tensor, Tensor, Tensor | None], Tensor], x: Tensor
    ) -> Tensor:
        """product(x, weight, bias) in the dtype to compute with, with a copy of the weight that
        nothing refers to afterwards; the result as a layer of the dtype of x would have it."""
        dtype = self.product_dtype(x)
        bias = None if self.bias is None else self.bias.to(dtype)
        copy = self.wide_weight(dtype)
        with self.forgetting(copy):
            return product(x.to(dtype), copy, bias).to(result_dtype(x))

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return f"{text}, stored as {self.weight.dtype}, scales {self.storage.granularity}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        name = self.storage.scale_name
        weight, scale = self.weight.detach(), self.weight_scale_values
        # The dtype that fn makes of a weight in high precision.
        dtype = fn(torch.zeros((), dtype=self.storage.dtype, device=weight.device)).dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight.dtype != weight.dtype:
            self._parameters["weight"] = StoredWeight(weight.to(self.weight.device))
        keep_dtypes(self, {name: scale})
        self._parameters["weight"] = stored(self.weight)
        self.storage.dtype = dtype
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        storage = self.storage
        give_numbers(self, destination, prefix, storage.scale_name, self.wide_weight, storage.dtype)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        state_dict = load_weight(self.weight, self.storage, state_dict, prefix, arguments[-1])
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._parameters["weight"] = stored(self.weight)  # load_state_dict(assign=True)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        reduced = super().__reduce_ex__(protocol)
        assert isinstance(reduced, tuple)
        return _blank, (self.plain_class,), *reduced[2:]


class StoredLinear(StoredLayer):
    def forward(self, input: Tensor) -> Tensor:
        codes, bias = self.weight, self.bias
        if not is_fp8(codes):  # another weight was put there
            return torch.nn.functional.linear(input, codes, bias)
        storage, dtype = self.storage, self.product_dtype(input)
        compute = linear_compute(input.shape, codes.shape[0], storage.native, input.device, dtype)
        weight = ScaledTensor(codes.detach(), self.weight_scale_values, storage.granularity)
        # Short ways for what is usual: up to some 100 tokens the host's time is the layer's.
        as_is = input.dtype == dtype
        x = input if as_is else input.to(dtype)
        if compute == WEIGHT_ONLY:
            y = weight_only_linear(x, weight, bias)
        else:
            y = linear_of_codes(x, weight, bias, compute == NATIVE)
        return y if as_is else y.to(result_dtype(input))


class StoredConv(StoredLayer):
    _conv_forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]

    def forward(self, input: Tensor) -> Tensor:
        if not is_fp8(self.weight):
            return self._conv_forward(input, self.weight, self.bias)
        return self.with_copy(self._conv_forward, input)


class StoredConvTranspose(StoredLayer):
    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        layer: Any = self
        dimensions = len(layer.kernel_size)
        output_padding = layer._output_padding(
            input,
            output_size,
            layer.stride,
            layer.padding,
            layer.kernel_size,
            dimensions,
            layer.dilation,
        )
        rest = (layer.stride, layer.padding, output_padding, layer.groups, layer.dilation)
        function = _TRANSPOSED[dimensions]
        if not is_fp8(self.weight):
            return function(input, self.weight, self.bias, *rest)
        return self.with_copy(lambda *operands: function(*operands, *rest), input)


class StoredEmbedding(StoredLayer):
    """An embedding of which only the rows that are looked up are ever in high precision, in the
    dtype that the weight had."""

    def forward(self, input: Tensor) -> Tensor:
        look_up = torch.nn.functional.embedding
        if not is_fp8(self.weight):
            return look_up(input, self.weight)
        codes = look_up(input, self.weight.detach().view(torch.uint8)).view(self.weight.dtype)
        scale = look_up(input, self.weight_scale_values[:, None])
        return (codes.float() * scale).to(self.storage.dtype)


class StoredOther(StoredLayer):
    """A subclass of these with a forward of its own, which may do anything with `weight`: it finds
    a copy there in the dtype that the weight had."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        parameters: dict[str, Any] = self._parameters
        weight = parameters["weight"]
        forward: Callable[..., Any] = super().forward
        if not is_fp8(weight):
            return forward(*arguments, **options)
        copy = self.wide_weight(self.storage.dtype)
        with self.forgetting(copy):
            parameters["weight"] = copy
            try:
                return forward(*arguments, **options)
            finally:
                parameters["weight"] = weight


_TRANSPOSED: Final[dict[int, Callable[..., Tensor]]] = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}
_KINDS: Final[dict[type[Module], type[StoredLayer]]] = {
    torch.nn.Linear: StoredLinear,
    torch.nn.Conv1d: StoredConv,
    torch.nn.Conv2d: StoredConv,
    torch.nn.Conv3d: StoredConv,
    torch.nn.ConvTranspose1d: StoredConvTranspose,
    torch.nn.ConvTranspose2d: StoredConvTranspose,
    torch.nn.ConvTranspose3d: StoredConvTranspose,
    torch.nn.Embedding: StoredEmbedding,
}
"""The stored class of each class that Diffusers casts; subclasses count too."""
SUPPORTED: Final = tuple(_KINDS)


_stored_classes: Final[dict[type[Module], type[StoredLayer]]] = {}


def stored_class(plain_class: type[Module]) -> type[StoredLayer]:
    """The class of layers of this one whose weight is stored; the same each time."""
    if plain_class not in _stored_classes:
        _stored_classes[plain_class] = _new_class(plain_class)
    return _stored_classes[plain_class]


def _new_class(plain_class: type[Module]) -> type[StoredLayer]:
    base = next(base for base in _KINDS if issubclass(plain_class, base))
    kind = _KINDS[base] if plain_class.forward is base.forward else StoredOther
    return type(
        f"Layerwise{plain_class.__name__}",
        (kind, plain_class),
        {"plain_class": plain_class, "__module__": __name__, "__doc__": kind.__doc__},
    )


def change_class(layer: Module, to: type[Module]) -> None:
    """The layer becomes one of this class. accelerate's hooks keep the layer's old forward."""
    layer.__class__ = to
    if isinstance(layer.__dict__.get("_old_forward"), types.MethodType):
        layer._old_forward = to.forward.__get__(layer)


def _blank(plain_class: type[Module]) -> Module:
    """For copies and files, which fill it."""
    layer_class = stored_class(plain_class)
    layer: Module = layer_class.__new__(layer_class)
    return layer
