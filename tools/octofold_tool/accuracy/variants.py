"""The ways to compute a model that are compared: a row of the table each.

Linear layers are FP8 by force, small ones too, which `convert` would leave in BF16 on a GPU where
that is faster: what is asked here is what FP8 loses.
"""

import copy
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import octofold
import octofold.models
import octofold.nn
import torch
from torch import Tensor
from torch.nn import Module

ATTENTION: Final = "octofold-fp8"


@dataclass(frozen=True)
class Variant:
    name: str
    change: Callable[[Any], object]  # in place, of a model in BF16
    batch_invariant: bool = False

    @contextmanager
    def of(self, model: Module) -> Iterator[Module]:
        """A changed copy of a model in FP32, while whatever the variant sets for the process is."""
        before = octofold.is_batch_invariant()
        changed = copy.deepcopy(model).to(torch.bfloat16)
        self.change(changed)
        octofold.set_batch_invariant(self.batch_invariant)
        try:
            with octofold.nn.keep_casts(changed):
                yield changed
        finally:
            octofold.set_batch_invariant(before)


def by_recipe(recipe: str) -> Callable[[Any], object]:
    return lambda model: octofold.nn.convert(model, recipe, force_fp8=True)


def fp8_attention(model: Any) -> None:
    """Keys and values as a cache in FP8 has them, e4m3 without scales (docs/attention.md)."""
    transformers: Any = importlib.import_module("transformers")
    transformers.AttentionInterface.register(ATTENTION, attend)
    model.set_attn_implementation(ATTENTION)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """An attention function of transformers, for sequences without padding: query [batch, heads,
    tokens, head size], key and value likewise → [batch, tokens, heads, head size]."""
    assert mask is None, "transformers makes none for an attention that it does not know"
    window = options.get("sliding_window")
    out = octofold.attention(
        query.transpose(1, 2),
        *(octofold.ops.convert_dtype(x.contiguous(), "e4m3").transpose(1, 2) for x in (key, value)),
        softmax_scale=options.get("scaling"),
        window=(window - 1 if window else None, 0 if module.is_causal else None),
    )
    return out, None


def blockwise_and_attention(model: Any) -> None:
    by_recipe("blockwise")(model)
    fp8_attention(model)


VARIANTS: Final = (
    Variant("BF16", lambda model: None),
    Variant("FP8 linear layers, blockwise", by_recipe("blockwise")),
    Variant("FP8 linear layers, rowwise", by_recipe("rowwise")),
    Variant("FP8 linear layers, tensorwise", by_recipe("tensorwise")),
    Variant("layerwise casting", octofold.models.enable_layerwise_casting),
    Variant("FP8 weights alone", octofold.nn.convert_weight_only),
    Variant("FP8 weights alone, batch-invariant", octofold.nn.convert_weight_only, True),
    Variant("FP8 keys and values", fp8_attention),
    Variant("blockwise, FP8 keys and values", blockwise_and_attention),
    Variant("the same, batch-invariant", blockwise_and_attention, True),
)
