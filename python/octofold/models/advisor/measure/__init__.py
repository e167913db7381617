"""Errors, times and bytes of layers in each way to run them, and of the whole model."""
