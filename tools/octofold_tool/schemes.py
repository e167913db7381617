"""Parts of a model in FP8: linear layers with their activations, or their weights alone, and keys
and values of attention."""

from typing import Any

import numpy as np
import numpy.typing as npt
import octofold

from .arrays import Arrays
from .minilm import Float32Array


def cast_weight(weight: Float32Array, arrays: Arrays) -> octofold.ScaledTensor:
    """A weight [N, K] as linear layers have it."""
    return octofold.quantize(arrays.from_numpy(weight), "128x128")


class Scheme:
    """Linear layers with weights in FP8, and activations in FP8 too, for GPUs that multiply it, or
    in FP16, for every GPU."""

    def __init__(self, arrays: Arrays, weight_only: bool) -> None:
        self._arrays, self._weight_only = arrays, weight_only
        self.title = f"weights 128x128, activations {'FP16' if weight_only else '1x128'}"
        """The tensors that are cast, for people."""
        self.parameters = (
            {"activation_dtype": "float16"} if weight_only else {"activation_granularity": "1x128"}
        )
        """The same for demo.json."""

    def cast(self, x: Any) -> Any:
        """Activations [M, K], float32, as products take them."""
        return self._arrays.to_float16(x) if self._weight_only else octofold.quantize(x)

    def values(self, x: Any) -> npt.NDArray[np.float64]:
        """Returns the values that cast() has made of activations."""
        wide = x if self._weight_only else x.dequantize()
        return self._arrays.to_numpy(wide).astype(np.float64)

    def multiply(
        self, x: Any, weight: octofold.ScaledTensor, bias: Any = None, out: Any = None
    ) -> Any:
        """x · weightᵀ (+ bias) [M, N], float32, of an x that was cast."""
        product: Any = octofold.gemm_weight_only if self._weight_only else octofold.gemm
        return product(x, weight, bias=bias, out=out, out_dtype="float32" if out is None else None)


class Fp8Attention:
    """Attention over keys and values in FP8 with a scale for each head, queries in FP16."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def __call__(self, query: Float32Array, key: Float32Array, value: Float32Array) -> Float32Array:
        q = self._arrays.to_float16(self._arrays.from_numpy(query))
        k, k_scale = self._cast(key)
        v, v_scale = self._cast(value)
        rows = q.swapaxes(0, 1)[None]  # [1, tokens, heads, head size]
        out = octofold.attention(rows, k, v, k_scale=k_scale, v_scale=v_scale)
        result: Float32Array = self._arrays.to_numpy(out)[0].swapaxes(0, 1)
        return result

    def _cast(self, x: Float32Array) -> tuple[Any, Any]:
        """Codes [1, tokens, heads, head size] and scales [heads]."""
        heads, tokens, size = x.shape
        rows = self._arrays.from_numpy(np.ascontiguousarray(x).reshape(heads, tokens * size))
        cast = octofold.quantize(rows, "channel")
        return cast.data.reshape(heads, tokens, size).swapaxes(0, 1)[None], cast.scale
