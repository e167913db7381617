"""The encoder of minilm.py in torch: the same parameters, names and arithmetic, for the advisor."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module

from .minilm import MiniLm

WIDTH, HIDDEN, HEADS, EPSILON = 384, 1536, 12, 1e-12


class Embeddings(Module):
    """Embeddings of tokens and their places."""

    def __init__(self, tokens: int, positions: int) -> None:
        super().__init__()
        self.word_embeddings = torch.nn.Embedding(tokens, WIDTH)
        self.position_embeddings = torch.nn.Embedding(positions, WIDTH)
        self.token_type_embeddings = torch.nn.Embedding(2, WIDTH)
        self.LayerNorm = LayerNorm(WIDTH, EPSILON)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word_embeddings(ids) + self.position_embeddings.weight[: ids.shape[1]]
        y: Tensor = self.LayerNorm(x + self.token_type_embeddings.weight[0])
        return y


class SelfAttention(Module):
    """Every token over those of its sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None])
        return out.transpose(1, 2).flatten(2)


class Output(Module):
    """A linear layer that is added to the stream, and a norm."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.dense = Linear(features, WIDTH)
        self.LayerNorm = LayerNorm(WIDTH, EPSILON)

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.LayerNorm(x + self.dense(hidden))
        return y


class Layer(Module):
    """Attention, and a perceptron of two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.ModuleDict({"self": SelfAttention(), "output": Output(WIDTH)})
        self.intermediate = torch.nn.ModuleDict({"dense": Linear(WIDTH, HIDDEN)})
        self.output = Output(HIDDEN)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, mask), x)
        hidden = torch.nn.functional.gelu(self.intermediate["dense"](x))
        y: Tensor = self.output(hidden, x)
        return y


class TorchMiniLm(Module):
    """all-MiniLM-L6-v2: token ids and their mask [sentences, tokens] to unit embeddings
    [sentences, 384]."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        parameters = load_file(folder / "model.safetensors")
        tokens = len(parameters["embeddings.word_embeddings.weight"])
        positions = len(parameters["embeddings.position_embeddings.weight"])
        layers = len({name.split(".")[2] for name in parameters if name.startswith("encoder.")})
        self.embeddings = Embeddings(tokens, positions)
        self.encoder = torch.nn.ModuleDict(
            {"layer": torch.nn.ModuleList(Layer() for _ in range(layers))}
        )
        own = self.state_dict()
        self.load_state_dict({name: parameters[name] for name in own})

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embeddings(ids)
        for layer in self.encoder["layer"].children():
            x = layer(x, mask)
        weights = mask[..., None].to(x.dtype)
        mean = (x * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)


def batch_of(model: MiniLm, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Token ids of the sentences and their mask, [sentences, tokens of the longest]."""
    rows = [torch.tensor(model.token_ids(sentence)) for sentence in sentences]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]
