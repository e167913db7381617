"""The ways to compute a model that are compared: a row of the table each. Linear layers are FP8 by
force: `convert` would leave small ones in BF16 on a GPU where that is faster."""

import copy
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import octofold
import octofold.models
import octofold.nn
import torch
from torch import Tensor
from torch.nn import Module


@dataclass(frozen=True)
class Variant:
    name: str
    changes: tuple[Callable[[Any], object], ...] = ()  # in place, of a model in BF16
    batch_invariant: bool = False

    @contextmanager
    def of(self, model: Module) -> Iterator[Module]:
        """A changed copy of a model, for as long as its casts and the process's setting last."""
        before = octofold.is_batch_invariant()
        changed = copy.deepcopy(model).to(torch.bfloat16)
        for change in self.changes:
            change(changed)
        octofold.set_batch_invariant(self.batch_invariant)
        try:
            with octofold.nn.keep_casts(changed):
                yield changed
        finally:
            octofold.set_batch_invariant(before)


def recipe(name: str) -> Callable[[Any], object]:
    return lambda model: octofold.nn.convert(model, name, force_fp8=True)


def fp8_attention(model: Any) -> None:
    """Keys and values as a cache in FP8 has them, e4m3 without scales (docs/attention.md)."""
    importlib.import_module("transformers").AttentionInterface.register("octofold-fp8", attend)
    model.set_attn_implementation("octofold-fp8")


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Without padding: [batch, heads, tokens, head size] each → [batch, tokens, heads, size]."""
    assert mask is None, "transformers makes none for an attention that it does not know"
    k8, v8 = (octofold.ops.convert_dtype(x.contiguous(), "e4m3") for x in (key, value))
    q, k, v = (x.transpose(1, 2) for x in (query, k8, v8))
    seen = options.get("sliding_window")  # by a token, itself among them
    window = (seen - 1 if seen else None, 0 if module.is_causal else None)
    return octofold.attention(q, k, v, softmax_scale=options.get("scaling"), window=window), None


# Products as on a GPU with FP8 units from 17 tokens on; by default a CPU casts no x.
layerwise: Final = partial(octofold.models.enable_layerwise_casting, compute="native")

VARIANTS: Final = (
    Variant("BF16"),
    Variant("FP8 linear layers, blockwise", (recipe("blockwise"),)),
    Variant("FP8 linear layers, rowwise", (recipe("rowwise"),)),
    Variant("FP8 linear layers, tensorwise", (recipe("tensorwise"),)),
    Variant("layerwise casting, FP8 products", (layerwise,)),
    Variant("FP8 weights alone", (octofold.nn.convert_weight_only,)),
    Variant("FP8 weights alone, batch-invariant", (octofold.nn.convert_weight_only,), True),
    Variant("FP8 keys and values", (fp8_attention,)),
    Variant("blockwise, FP8 keys and values", (recipe("blockwise"), fp8_attention)),
    Variant("the same, batch-invariant", (recipe("blockwise"), fp8_attention), True),
)
