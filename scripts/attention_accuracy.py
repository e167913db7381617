#!/usr/bin/env python3
"""Errors of attention on a real model's activations, beside SDPA: the table of docs/attention.md.

    python scripts/attention_accuracy.py

All heads of all layers of the demo's model on the demo's page, each sentence by itself; the norm
of all errors relative to that of all results, beside FP64 without FP8. On the CPU backend; needs
torch and what `octofold demo` needs.
"""

import functools
import math

import numpy as np
import octofold
import torch
from octofold_tool.demo import read_sentences
from octofold_tool.minilm import MiniLm, exact_attention, model_folder
from torch.nn.functional import scaled_dot_product_attention


def activations():
    """(query, key, value), each [heads, tokens, head size] in FP32, of every layer and sentence."""
    recorded = []

    def attention(*operands):
        recorded.append([torch.from_numpy(np.ascontiguousarray(x)) for x in operands])
        return exact_attention(*operands)

    model = MiniLm(model_folder())
    model.embed(read_sentences(None), model.linear, attention)
    return recorded


def sdpa(dtype, q, k, v):
    return scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype))


def cast(x, dtype, scales):
    """Codes [1, tokens, heads, head size], and their scales of each head, or none."""
    heads, tokens, size = x.shape
    if scales == "none":
        return octofold.ops.convert_dtype(x, dtype).permute(1, 0, 2)[None], None
    x8 = octofold.quantize(x.reshape(heads, tokens * size), octofold.Format(dtype, "channel"))
    return x8.data.view(heads, tokens, size).permute(1, 0, 2)[None], x8.scale


def fp8(dtype, scales, wide, compute, q, k, v):
    k8, k_scale = cast(k, dtype, scales)
    v8, v_scale = cast(v, dtype, scales)
    rows = q.to(wide).permute(1, 0, 2)[None]
    out = octofold.attention(rows, k8, v8, k_scale=k_scale, v_scale=v_scale, compute=compute)
    return out[0].permute(1, 0, 2)


WAYS = {
    "SDPA in FP32": functools.partial(sdpa, torch.float32),
    "SDPA in FP16": functools.partial(sdpa, torch.float16),
    "SDPA in BF16": functools.partial(sdpa, torch.bfloat16),
    **{
        f"{dtype}, {scales} scales, {wide} queries, {compute} scores": functools.partial(
            fp8, dtype, scales, getattr(torch, wide), compute
        )
        for dtype in ("e4m3", "e5m2")
        for scales in ("none", "head")
        for wide in ("float16", "bfloat16")
        for compute in ("exact", "fp8")
    },
}


def main():
    recorded = activations()
    exact = [sdpa(torch.float64, *operands) for operands in recorded]
    norm = math.sqrt(sum(float(x.square().sum()) for x in exact))
    for name, way in WAYS.items():
        errors = (
            float((way(*operands).double() - expected).square().sum())
            for operands, expected in zip(recorded, exact, strict=True)
        )
        print(f"{name:<49} {math.sqrt(sum(errors)) / norm:.1e}")


if __name__ == "__main__":
    main()
