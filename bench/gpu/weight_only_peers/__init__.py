"""What others have for products of 16-bit activations and FP8 weights."""
