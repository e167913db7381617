"""Modules with FP8 weights or FP8 products."""
