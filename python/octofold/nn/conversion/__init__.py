"""Models converted to FP8 layers, and back."""
