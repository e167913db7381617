"""A block of a language model, of plain torch."""

import octofold.nn
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu


class LlamaBlock(nn.Module):
    """x [sequences, tokens, hidden]. Norm, grouped attention, residual; norm, SwiGLU, residual."""

    def __init__(self, hidden: int, heads: int, key_value_heads: int, inner: int) -> None:
        super().__init__()
        self.head = hidden // heads
        self.heads = [count * self.head for count in (heads, key_value_heads, key_value_heads)]
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.mlp_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, sum(self.heads), bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.fused_qkv: nn.Module | None = None
        self.fused_mlp: nn.Module | None = None

    def fuse(self, recipe: str) -> None:
        """Norms and MLP as Octofold's modules, of the same parameters in the same order."""
        octofold.nn.convert(self, recipe, force_fp8=True)
        self.fused_qkv = octofold.nn.NormLinear.from_modules(self.attention_norm, self.qkv)
        layers = self.gate_up, self.down
        self.fused_mlp = octofold.nn.MLP.from_linears(*layers, norm=self.mlp_norm)

    def forward(self, x: Tensor) -> Tensor:
        fused = self.fused_qkv
        qkv = self.qkv(self.attention_norm(x)) if fused is None else fused(x)
        parts = qkv.split(self.heads, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        # FP32 has a kernel without all scores in memory, ungrouped.
        grouped = x.dtype != torch.float32
        if not grouped:
            repeats = q.shape[1] // k.shape[1]
            k, v = (part.repeat_interleave(repeats, dim=1) for part in (k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        mixed = self.output(mixed.transpose(1, 2).flatten(-2))
        if self.fused_mlp is not None:
            y, x = self.fused_mlp(mixed, x)
            return x + y
        x = x + mixed
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(silu(gate) * up)
