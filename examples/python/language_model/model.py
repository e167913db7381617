"""A transformer language model over bytes, as Llama has it: RMSNorm, rotary positions, grouped
heads, SwiGLU. Parameters are FP32; activations have the dtype that the model is called with, and
linear layers run under autocast."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
ROTARY_BASE = 10_000.0
HEAD = "head"  # the name of the output layer, which stays BF16


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    inner: int  # of the MLP
    context: int  # tokens of a sequence
    batch: int  # sequences of a step

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


SIZES = {
    "tiny": Size(128, 2, 4, 2, 256, context=64, batch=2),  # 0.4 M parameters
    "small": Size(512, 6, 8, 2, 1408, context=1024, batch=16),  # 17 M
    "medium": Size(1024, 12, 16, 4, 2816, context=1024, batch=16),  # 136 M
}


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), eps=1e-5)


class Rotary(nn.Module):
    """Turns pairs (i, i + head_size / 2) of a head by the token's position times a frequency."""

    def __init__(self, head_size: int, context: int) -> None:
        super().__init__()
        frequencies = ROTARY_BASE ** (-torch.arange(0, head_size, 2) / head_size)
        angles = torch.outer(torch.arange(context), frequencies)
        self.register_buffer("cosine", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sine", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, heads, tokens, head_size]."""
        tokens = x.shape[-2]
        cosine, sine = (part[:tokens].to(x.dtype) for part in (self.cosine, self.sine))
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat([-second, first], dim=-1) * sine


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        key_values = 2 * size.key_value_heads * size.head_size
        self.qkv = nn.Linear(size.hidden, size.hidden + key_values, bias=False)
        self.output = nn.Linear(size.hidden, size.hidden, bias=False)
        self.rotary = Rotary(size.head_size, size.context)

    def forward(self, x: Tensor) -> Tensor:
        size = self.size
        heads = (size.heads, size.key_value_heads, size.key_value_heads)
        parts = self.qkv(x).split([count * size.head_size for count in heads], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, size.head_size)).transpose(1, 2) for part in parts)
        q, k = self.rotary(q), self.rotary(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_up = nn.Linear(size.hidden, 2 * size.inner, bias=False)
        self.down = nn.Linear(size.inner, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(size.hidden), Attention(size)
        self.mlp_norm, self.mlp = RMSNorm(size.hidden), MLP(size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # So the sum of the branches keeps its size with depth (Radford et al., 2019).
                branch = name.endswith(("output.weight", "down.weight"))
                deviation = 0.02 / (2 * size.layers) ** 0.5 if branch else 0.02
                nn.init.normal_(parameter, std=deviation)

    def forward(self, tokens: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Logits [batch, tokens, 256] of tokens [batch, tokens]."""
        x = self.embedding(tokens).to(dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
