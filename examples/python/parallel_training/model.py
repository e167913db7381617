"""A transformer over bytes, as Llama has it (RMSNorm, rotary positions, grouped heads, SwiGLU), and
one whose MLPs are mixtures of experts. Written as any model for one process is."""

from dataclasses import dataclass

import octofold
from language_model.model import VOCABULARY, Rotary
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Features are such that up to four ranks have whole squares of 128 rows of each weight."""

    hidden: int = 512
    layers: int = 2
    heads: int = 8
    key_value_heads: int = 4
    head_size: int = 128
    inner: int = 512  # of an MLP
    experts: int = 0  # 0: an MLP instead
    experts_of_a_token: int = 2
    context: int = 128  # tokens of a sequence


class Attention(nn.Module):
    """The number of heads is read from what the projections give: a rank may have some of them."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_size = size.head_size
        heads, key_values = size.heads * size.head_size, size.key_value_heads * size.head_size
        self.q_proj = nn.Linear(size.hidden, heads, bias=False)
        self.k_proj = nn.Linear(size.hidden, key_values, bias=False)
        self.v_proj = nn.Linear(size.hidden, key_values, bias=False)
        self.o_proj = nn.Linear(heads, size.hidden, bias=False)
        self.rotary = Rotary(size.head_size, size.context)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (p.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for p in projected)
        q, k = self.rotary(q), self.rotary(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.hidden)
        self.attention = Attention(size)
        self.mlp_norm = nn.RMSNorm(size.hidden)
        self.mlp: nn.Module
        if size.experts:
            self.mlp = octofold.nn.MixtureOfExperts(
                size.hidden, size.inner, size.experts, size.experts_of_a_token
            )
        else:
            # Gate and up are two parameters, as checkpoints of several ranks want them.
            shapes = (size.hidden, size.inner), (size.hidden, size.inner), (size.inner, size.hidden)
            linears = [nn.Linear(*shape, bias=False) for shape in shapes]
            self.mlp = octofold.nn.MLP.from_linears(*linears, force_fp8=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, tokens, 256] of tokens [batch, tokens]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
