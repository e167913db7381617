"""A small model for the advisor's tests, and its inputs."""

import torch


class Block(torch.nn.Module):
    def __init__(self, width, dtype):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width, dtype=dtype)
        self.up = torch.nn.Linear(width, 2 * width, dtype=dtype)
        self.down = torch.nn.Linear(2 * width, width, dtype=dtype)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    """Embedding, convolution, blocks, a head; `unused` is called by nobody."""

    def __init__(self, width=128, blocks=2, dtype=torch.float32):
        super().__init__()
        self.embed = torch.nn.Embedding(50, width, dtype=dtype)
        self.mix = torch.nn.Conv1d(width, width, 3, padding=1, dtype=dtype)
        self.blocks = torch.nn.ModuleList(Block(width, dtype) for _ in range(blocks))
        self.unused = torch.nn.Linear(width, 8, dtype=dtype)
        self.head = torch.nn.Linear(width, 30, bias=False, dtype=dtype)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, ids, scale=None):
        x = self.embed(ids)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        y = self.dropout(self.head(x))
        return {"logits": y if scale is None else y * scale, "ids": ids}


def make_model(seed=0, device="cpu", **options):
    torch.manual_seed(seed)
    return Model(**options).to(device)


def make_ids(rows=2, tokens=40, device="cpu"):
    return torch.arange(rows * tokens, device=device).reshape(rows, tokens) * 7 % 50
