"""One linear layer that serves few tokens, its cast counted, beside BF16."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict

import octofold.nn
import torch
from octofold_tool.gpu.timing import MIN_BYTES
from torch import nn

from .checks import FP8_ERRORS, Wrong, relative_error, require_right
from .layers import on_gpu, release, text
from .results import Results
from .sampling import timings

TOKENS = (1, 2, 4, 8, 16, 32, 64)
LAYERS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
MAX_SETS = 64


@torch.no_grad()
def measure_inference(
    layers: Sequence[tuple[int, int]],
    tokens: Sequence[int],
    device: torch.device,
    results: Results,
) -> None:
    """layers: (out, in). Weights and activations go round sets larger than the L2 cache."""
    ratios: dict[int, dict[str, float]] = {m: {} for m in tokens}
    try:
        for out_features, in_features in layers:
            name = text((out_features, in_features))
            count = min(MAX_SETS, 1 + MIN_BYTES // (out_features * in_features))
            wide = []
            for _ in range(count if on_gpu(device) else 1):
                wide.append(nn.Linear(in_features, out_features, False, device, torch.bfloat16))
                nn.init.normal_(wide[-1].weight, std=0.02)
            narrow = [octofold.nn.InferenceLinear.from_linear(layer) for layer in wide]
            for m in tokens:
                results.check_time()
                inputs = [torch.randn(m, in_features, device=device).bfloat16() for _ in wide]
                expected = inputs[0].double() @ wide[0].weight.double().T
                error = relative_error(narrow[0](inputs[0]), expected)
                try:
                    require_right({"y": error}, *FP8_ERRORS)
                except Wrong as wrong:
                    results.leave_out("octofold", True, wrong, tokens=m, layer=name)
                    continue
                peers = [
                    [
                        lambda layer=layer, x=x: layer(x)
                        for layer, x in zip(peer, inputs, strict=True)
                    ]
                    for peer in (wide, narrow)
                ]
                bf16, fp8 = timings(peers, device, results.rounds)
                ratios[m][name] = bf16.microseconds / fp8.microseconds
                results.add(
                    "inference",
                    tokens=m,
                    layer=name,
                    **asdict(fp8),
                    bf16=asdict(bf16),
                    over_bf16=ratios[m][name],
                    error=error,
                )
            del wide, narrow
            release(device)
    finally:
        names = [text(layer) for layer in layers]
        rows = [
            [
                str(m),
                *(f"{found[name]:.2f}" if name in found else "—" for name in names),
                f"{statistics.geometric_mean(found.values()):.3f}",
            ]
            for m, found in ratios.items()
            if found
        ]
        results.table("Inference, × BF16's rate", ["tokens", *names, "geometric mean"], rows)
