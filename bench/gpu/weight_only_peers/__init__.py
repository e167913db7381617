"""Peers' ways to multiply: products of 16-bit activations and FP8 weights."""
