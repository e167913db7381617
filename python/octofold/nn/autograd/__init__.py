"""Layers as functions with gradients."""
