"""Parts of language models, of plain torch."""

import torch
from torch.nn.functional import scaled_dot_product_attention, silu


class Attention(torch.nn.Module):
    def __init__(self, width, heads, groups, causal):
        super().__init__()
        self.size, self.causal = width // heads, causal
        self.query = torch.nn.Linear(width, width, bias=False)
        self.key = torch.nn.Linear(width, groups * self.size, bias=False)
        self.value = torch.nn.Linear(width, groups * self.size, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y = scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Gated(torch.nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = torch.nn.Linear(width, hidden, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))


class LlamaBlock(torch.nn.Module):
    def __init__(self, width, heads, groups, hidden):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))
        self.attention = Attention(width, heads, groups, causal=True)
        self.mlp = Gated(width, hidden)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))
