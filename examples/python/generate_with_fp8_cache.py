"""A causal language model that generates from a paged cache of FP8 keys and values.

    python examples/python/generate_with_fp8_cache.py
    python examples/python/generate_with_fp8_cache.py --device cpu --tokens 8

Three prompts of different lengths share the pages of one cache. Each step writes the keys and
values of its tokens into their pages as e4m3 and attends over all that came before: the prompts at
once, then a token of each sequence at a time. The same model generates again with plain attention
over the numbers that the codes stand for, and on a GPU with octofold's reference backend on the
CPU; the tokens have to be the same, else the exit code is 1. With a cache that was never rounded it
generates a third time, which says what FP8 changed.

The model is that of train_language_model.py with 12 M parameters and random weights, so what it
says is noise; octofold.attention sees what it would see in any other.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import octofold
import torch
from language_model.model import Block, LanguageModel, Size
from torch import Tensor
from torch.nn import functional

PROMPTS = (b"The ferry stays in the harbour", b"Gulls", b"Nobody rows to the islands when it")
PAGE_SIZE = 16
SIZE = Size(512, 4, 8, 2, 1408, context=512, batch=1)  # heads of 64


@dataclass
class Batch:
    """The tokens of a step, one sequence behind another, and where they are in theirs."""

    tokens: Tensor  # [total]
    positions: Tensor  # [total]
    sequences: Tensor  # [total]: whose token it is
    offsets: Tensor  # int32 [sequences + 1]
    counts: Tensor  # int32 [sequences]: tokens of each so far, these among them

    @staticmethod
    def of(lists: list[list[int]], lengths: list[int], device: str) -> "Batch":
        """`lists`: the new tokens of each sequence, which had so many before."""
        begins = [0]
        for tokens in lists:
            begins.append(begins[-1] + len(tokens))
        places = [(i, lengths[i] + j) for i, tokens in enumerate(lists) for j in range(len(tokens))]
        return Batch(
            torch.tensor([token for tokens in lists for token in tokens], device=device),
            torch.tensor([position for _, position in places], device=device),
            torch.tensor([sequence for sequence, _ in places], device=device),
            torch.tensor(begins, dtype=torch.int32, device=device),
            torch.tensor(
                [n + len(tokens) for n, tokens in zip(lengths, lists, strict=True)],
                dtype=torch.int32,
                device=device,
            ),
        )


class PagedCache:
    """Keys and values of all layers, [layers, pages, page size, key heads, head size]. Pages are
    given to sequences in a random order, as a server's would be."""

    def __init__(self, size: Size, sequences: int, capacity: int, dtype: torch.dtype, device: str):
        pages_each = -(-capacity // PAGE_SIZE)
        pages = sequences * pages_each
        shape = (size.layers, pages, PAGE_SIZE, size.key_value_heads, size.head_size)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(1))
        self.table = order.view(sequences, pages_each).to(device, torch.int32)

    def write(self, layer: int, batch: Batch, keys: Tensor, values: Tensor) -> None:
        """keys, values [total, key heads, head size]."""
        pages = self.table[batch.sequences, batch.positions // PAGE_SIZE].long()
        for cache, new in ((self.keys, keys), (self.values, values)):
            if cache.dtype == torch.float8_e4m3fn:
                new = octofold.ops.convert_dtype(new.contiguous(), "e4m3")
                cache, new = cache.view(torch.uint8), new.view(torch.uint8)
            cache[layer, pages, batch.positions % PAGE_SIZE] = new.to(cache.dtype)


Attend = Callable[[Tensor, PagedCache, int, Batch], Tensor]
"""attend(queries [total, heads, head size], cache, layer, batch) → the same of its results."""


def attend_by_octofold(q: Tensor, cache: PagedCache, layer: int, batch: Batch) -> Tensor:
    return octofold.attention(
        q.half(),
        cache.keys[layer],
        cache.values[layer],
        query_offsets=batch.offsets,
        key_counts=batch.counts,
        page_table=cache.table,
        causal=True,
    ).float()


def attend_by_reference(q: Tensor, cache: PagedCache, layer: int, batch: Batch) -> Tensor:
    """The same call on the CPU."""
    out = octofold.attention(
        q.half().cpu(),
        cache.keys[layer].cpu(),
        cache.values[layer].cpu(),
        query_offsets=batch.offsets.cpu(),
        key_counts=batch.counts.cpu(),
        page_table=cache.table.cpu(),
        causal=True,
    )
    return out.float().to(q.device)


def attend_plainly(q: Tensor, cache: PagedCache, layer: int, batch: Batch) -> Tensor:
    """A sequence after another, in FP32, over the numbers of its pages."""
    out = torch.empty_like(q)
    for sequence, count in enumerate(batch.counts.tolist()):
        first, end = batch.offsets[sequence : sequence + 2].tolist()
        pages = cache.table[sequence].long()
        keys, values = (
            part[layer, pages].flatten(0, 1)[:count].float().transpose(0, 1)
            for part in (cache.keys, cache.values)
        )
        visible = torch.arange(count, device=q.device) <= batch.positions[first:end, None]
        own = q[first:end].half().float().transpose(0, 1)
        mixed = functional.scaled_dot_product_attention(
            own, keys, values, attn_mask=visible, enable_gqa=True
        )
        out[first:end] = mixed.transpose(0, 1)
    return out


class Generator:
    def __init__(self, model: LanguageModel, size: Size, cache: PagedCache, attend: Attend) -> None:
        self.model, self.size, self.cache, self.attend = model, size, cache, attend

    def attention(self, block: Block, layer: int, x: Tensor, batch: Batch) -> Tensor:
        size = self.size
        counts = (size.heads, size.key_value_heads, size.key_value_heads)
        parts = block.attention.qkv(x).split([n * size.head_size for n in counts], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, size.head_size)) for part in parts)
        rotary = block.attention.rotary
        cosine, sine = (part[batch.positions, None] for part in (rotary.cosine, rotary.sine))

        def turned(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * cosine + torch.cat([-second, first], dim=-1) * sine

        self.cache.write(layer, batch, turned(k), v)
        mixed = self.attend(turned(q), self.cache, layer, batch)
        return block.attention.output(mixed.flatten(-2))

    def logits(self, batch: Batch) -> Tensor:
        """Returns the logits of the last token of each sequence, [sequences, 256]."""
        x = self.model.embedding(batch.tokens)
        for layer, block in enumerate(self.model.blocks):
            x = x + self.attention(block, layer, block.attention_norm(x), batch)
            x = x + block.mlp(block.mlp_norm(x))
        last = batch.offsets[1:].long() - 1
        return self.model.head(self.model.norm(x[last]))

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """`count` more tokens of each, the likeliest at each step."""
        device = str(self.model.head.weight.device)
        lengths, new = [0] * len(prompts), prompts
        generated: list[list[int]] = [[] for _ in prompts]
        for _ in range(count):
            batch = Batch.of(new, lengths, device)
            lengths = batch.counts.tolist()
            new = [[token] for token in self.logits(batch).argmax(dim=-1).tolist()]
            for tokens, token in zip(generated, new, strict=True):
                tokens += token
        return generated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=32, help="to generate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    arguments = parser.parse_args()

    size, prompts = SIZE, [list(prompt) for prompt in PROMPTS]
    capacity = max(map(len, prompts)) + arguments.tokens
    if not 0 < arguments.tokens <= size.context - max(map(len, prompts)):
        parser.error(f"--tokens: expected 1 to {size.context - max(map(len, prompts))}")
    torch.manual_seed(arguments.seed)
    model = LanguageModel(size).to(arguments.device).eval()

    def run(attend: Attend, dtype: torch.dtype) -> tuple[list[list[int]], PagedCache]:
        cache = PagedCache(size, len(prompts), capacity, dtype, arguments.device)
        return Generator(model, size, cache, attend).generate(prompts, arguments.tokens), cache

    got, cache = run(attend_by_octofold, torch.float8_e4m3fn)
    references = {"plain attention over the same codes": attend_plainly}
    if arguments.device != "cpu":
        references["the reference backend on the CPU"] = attend_by_reference
    total = len(prompts) * arguments.tokens
    print(f"{len(prompts)} sequences, {arguments.tokens} tokens each, on {arguments.device}")
    print(f"cache: {2 * cache.keys.nbytes} bytes in FP8, {4 * cache.keys.nbytes} in FP16")
    are_equal = True
    for name, attend in references.items():
        same = equal_tokens(got, run(attend, torch.float8_e4m3fn)[0])
        are_equal &= same == total
        print(f"same tokens as {name}: {same} of {total}")
    unrounded = equal_tokens(got, run(attend_plainly, torch.float32)[0])
    print(f"same tokens as with a cache in FP32: {unrounded} of {total}")
    return 0 if are_equal else 1


def equal_tokens(left: list[list[int]], right: list[list[int]]) -> int:
    """Up to the first difference of each sequence: what follows one is another text."""
    equal = 0
    for a, b in zip(left, right, strict=True):
        differences = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        equal += differences[0] if differences else len(a)
    return equal


if __name__ == "__main__":
    sys.exit(main())
