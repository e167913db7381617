#!/usr/bin/env python3
"""Errors that FP8 scores add to attention, and those of FP8 keys and values: a table of
docs/attention.md.

    python scripts/fp8_scores_accuracy.py

Normal queries, keys and values (seed 0), 8 heads, as many queries as keys, FP16 queries and e4m3
keys and values without scales; with outliers one number of each head's queries and keys is 20 times
larger. On the CPU backend; norms of all errors relative to that of all results.
"""

import itertools

import numpy as np
import octofold

HEADS = 8


def codes(x):
    return octofold.ops.convert_dtype(x, "e4m3")[None]


def wide_attention(q, k, v, causal):
    """[tokens, heads, size] in FP64."""
    q, k, v = (x.astype(np.float64).swapaxes(0, 1) for x in (q, k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    if causal:
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1)


def relative(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def errors(size, tokens, outliers, causal):
    """Errors of FP8 scores beside exact ones; and against FP64, of exact scores and of FP8 ones."""
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.normal(size=(tokens, HEADS, size)).astype(np.float32).astype(np.float16) for _ in "qkv"
    )
    if outliers:
        q[..., 3] *= np.float16(20)
        k[..., 3] *= np.float16(20)
    wide = wide_attention(q, k, v, causal)
    exact, fp8 = (
        octofold.attention(q[None], codes(k), codes(v), causal=causal, compute=compute)[0].astype(
            np.float64
        )
        for compute in ("exact", "fp8")
    )
    return relative(fp8, exact), relative(exact, wide), relative(fp8, wide)


def main():
    print("head  keys  causal  outliers   added   exact     fp8")
    for size, tokens, outliers, causal in itertools.product(
        (64, 128), (256, 1024, 4096), (False, True), (False, True)
    ):
        added, exact, fp8 = errors(size, tokens, outliers, causal)
        print(
            f"{size:4} {tokens:5}  {causal!s:6}  {outliers!s:8} {added:.1e} {exact:.1e} {fp8:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
