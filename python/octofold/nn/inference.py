"""A linear layer whose weight is FP8."""

from collections.abc import Callable
from typing import Any, Final, Self

import torch
from torch import Tensor

from .._core.ops import scale_shape
from .._core.torch import DTYPES
from ..errors import UnsupportedError, invalid_argument
from ..scaled_tensor import ScaledTensor
from .buffers import keep_dtypes
from .casts import cast_weight
from .fitting import is_fp8, require_features, require_input
from .functional import linear_with_casts
from .recipes import Product, Recipe, recipe_of

_NAME: Final = "octofold.nn.InferenceLinear"


class InferenceLinear(torch.nn.Module):
    """x · weightᵀ (+ bias) with a weight kept in FP8, without gradients.

    in_features, out_features, bias, device: as of torch.nn.Linear.
    dtype: of the bias; x of any dtype goes with any.
    recipe: an octofold.nn.Recipe or the name of one, of which the product `output` is used, and the
        dtypes; scales of x are those of x, also where the recipe delays them.

    What is made so is uninitialized: load_state_dict() fills it, or from_linear() makes another.
    Its buffers have the names, and the weight the bytes, of FP8 checkpoints:

    | weight's scales | buffers                                             | as in              |
    |-----------------|-----------------------------------------------------|--------------------|
    | 128x128         | weight, weight_scale_inv [⌈out/128⌉, ⌈in/128⌉]      | DeepSeek-V3        |
    | channel         | weight, weight_scale [out], from files [out, 1] too | compressed-tensors |
    | tensor          | weight, weight_scale [1], from files [] too         | vLLM               |
    | 1x128           | weight, weight_scale [out, ⌈in/128⌉]                |                    |

    Scales are float32 multipliers, whatever their names say; to(), half() and the like move weight
    and scales, and convert neither.

    forward: x [..., in] of bfloat16, float16 or float32 to [..., out] in the dtype of x, or in
    autocast's. It is no part of a graph: an x that requires a gradient raises UnsupportedError
    where gradients are enabled. Few tokens are cast by the product itself on a GPU
    (octofold.dynamic_gemm), with scales 1x128 and 128x128.
    Raises InvalidArgumentError that names the argument.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
    ) -> None:
        require_features(_NAME, in_features, out_features)
        recipe = recipe_of(_NAME, recipe)
        product = _output_of(_NAME, recipe)
        super().__init__()
        self._recipe, self._product = recipe, product
        self.in_features, self.out_features = in_features, out_features
        shape = (out_features, in_features)
        weight = torch.empty(shape, device=device, dtype=DTYPES[recipe.weight_dtype])
        scale = torch.empty(scale_shape(product.b, *shape), dtype=torch.float32, device=device)
        self._hold(
            ScaledTensor(weight, scale, product.b),
            torch.empty(out_features, device=device, dtype=dtype) if bias else None,
        )

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, recipe: Recipe | str = "blockwise") -> Self:
        """The FP8 twin of a torch.nn.Linear (or octofold.nn.Linear), whose results have the bits of
        octofold.nn.Linear's with this recipe, without gradients (if scales are not delayed). The
        bias is shared, as a buffer."""
        operation = f"{_NAME}.from_linear"
        recipe = recipe_of(operation, recipe)
        _output_of(operation, recipe)
        if not isinstance(linear, torch.nn.Linear):
            got = f"{type(linear).__module__}.{type(linear).__qualname__}"
            raise invalid_argument(operation, "linear", "a torch.nn.Linear", got)
        layer = cls(
            linear.in_features, linear.out_features, linear.bias is not None, "meta", recipe=recipe
        )
        with torch.no_grad():
            rows, _ = cast_weight(linear.weight, recipe, True, False)
        assert rows is not None
        layer._hold(rows, None if linear.bias is None else linear.bias.detach())
        return layer.train(linear.training)

    @property
    def recipe(self) -> Recipe:
        """What is cast, and how."""
        return self._recipe

    @property
    def scale_name(self) -> str:
        """Of the buffer that holds the weight's scales."""
        return "weight_scale_inv" if self._product.b == "128x128" else "weight_scale"

    @property
    def scaled_weight(self) -> ScaledTensor:
        """The weight [out, in] with its scales."""
        return ScaledTensor(self.weight, self._buffers[self.scale_name], self._product.b)

    def forward(self, input: Tensor) -> Tensor:
        require_input(_NAME, input, self.weight)
        if torch.is_grad_enabled() and input.requires_grad:
            raise UnsupportedError(
                f"{_NAME}: argument 'x': expected nothing to differentiate (torch.no_grad(), or "
                "octofold.nn.Linear, which has gradients), got a tensor that requires grad"
            )
        casts = self.scaled_weight, None
        return linear_with_casts(input, self.weight, self.bias, self._recipe, casts)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, recipe={self._recipe}"
        )

    def _hold(self, weight: ScaledTensor, bias: Tensor | None) -> None:
        self.register_buffer("weight", weight.data)
        self.register_buffer(self.scale_name, weight.scale)
        self.register_buffer("bias", bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: getattr(self, name) for name in ("weight", self.scale_name)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_dtypes(self, before)
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key, scale_key = f"{prefix}weight", f"{prefix}{self.scale_name}"
        weight, scale = state_dict.get(key), state_dict.get(scale_key)
        if weight is not None and weight.dtype != self.weight.dtype:
            words = "its own" if is_fp8(weight) else "the FP8 weight of a checkpoint"
            error_msgs.append(
                f"{_NAME}: '{key}': expected {self.weight.dtype}, {words}, got {weight.dtype} "
                "(octofold.nn.InferenceLinear.from_linear() casts a weight of high precision)"
            )
            return
        own = self._buffers[self.scale_name]
        if scale is not None and own is not None and scale.numel() == own.numel():
            state_dict = {**state_dict, scale_key: scale.reshape(own.shape)}
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _output_of(operation: str, recipe: Recipe) -> Product:
    if recipe.output is None:
        expected = "one whose product 'output' is in FP8"
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    return recipe.output
