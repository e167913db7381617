"""A linear layer in FP8: cast the activations and the weights, multiply, see what it cost."""

import numpy as np
import octofold

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 512), dtype=np.float32)  # activations: [tokens, inputs]
w = rng.standard_normal((256, 512), dtype=np.float32)  # weights: [outputs, inputs]

a = octofold.quantize(x)
b = octofold.quantize(w, "128x128")
y = octofold.gemm(a, b, out_dtype="float32")

exact = x @ w.T
error = np.linalg.norm(y - exact) / np.linalg.norm(exact)
print(f"relative error against FP32: {error:.3f}")
