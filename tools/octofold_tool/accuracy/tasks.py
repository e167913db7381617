"""The questions to models, from texts that every Python has, and how answers are judged."""

import ast
import pydoc_data.topics
import sysconfig
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from .measures import Array, Estimate, ratio, reciprocal_ranks, spearman
from .models import Loaded

MOST_TOKENS: Final = 512
SHORTEST_PAGE: Final = 1000  # characters, some 250 tokens
SHORTEST_SUMMARY, SHORTEST_REST = 20, 100


class Language:
    """The next token of pages of Python's manual (pydoc_data.topics)."""

    def __init__(self, count: int) -> None:
        pages = pydoc_data.topics.topics.values()
        self.texts = drawn([page for page in pages if len(page) > SHORTEST_PAGE], count)

    def answers(self, loaded: Loaded, model: Any, device: str) -> list[tuple[Array, Array]]:
        """(nats that each token took, the token that seemed likeliest there) of each page."""
        found = []
        for page in self.texts:
            ids = torch.tensor([loaded.tokens(page)[:MOST_TOKENS]], device=device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            nats = cross_entropy(logits, ids[0, 1:], reduction="none").double()
            found.append((nats.cpu().numpy(), logits.argmax(dim=-1).cpu().numpy()))
        return found

    def judge(self, answers: list[Any], reference: list[Any]) -> dict[str, Estimate]:
        nats, before = (np.array([page[0].sum() for page in x]) for x in (answers, reference))
        pairs = zip(answers, reference, strict=True)
        same = [np.sum(after[1] == before[1]) for after, before in pairs]
        tokens = [len(page[0]) for page in answers]
        return {
            "perplexity": ratio(nats, tokens, np.exp),
            "change, %": ratio(nats - before, tokens, lambda x: 100 * np.expm1(x)),
            "same token, %": ratio(same, tokens, lambda x: 100 * x),
        }


class Retrieval:
    """For the first paragraph of a docstring of the standard library: which of all is the rest?"""

    def __init__(self, count: int) -> None:
        pairs: dict[str, str] = {}  # the rest, and its summary
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
                    long = len(first) >= SHORTEST_SUMMARY and len(rest) >= SHORTEST_REST
                    if long and first not in pairs.values():
                        pairs.setdefault(rest, first)
        self.texts = drawn(list(pairs.items()), count)

    def answers(self, loaded: Loaded, model: Any, device: str) -> Array:
        """The cosine similarity of each query to each document, [queries, documents]."""

        def embedding(text: str) -> Tensor:
            ids = torch.tensor([loaded.tokens(text)], device=device)
            return normalize(model(ids).last_hidden_state[0].double().mean(dim=0), dim=0)

        documents, queries = (
            torch.stack([embedding(pair[i]) for pair in self.texts]) for i in range(2)
        )
        return np.asarray((queries @ documents.T).cpu().numpy())

    def judge(self, answers: Array, reference: Array) -> dict[str, Estimate]:
        ranks, before = reciprocal_ranks(answers), reciprocal_ranks(reference)
        same = answers.argmax(axis=1) == reference.argmax(axis=1)
        return {
            "MRR, %": ratio(100 * ranks),
            "change, points": ratio(100 * (ranks - before)),
            "recall at 1, %": ratio(100 * (ranks == 1)),
            "same first, %": ratio(100 * same),
            "Spearman": ratio(spearman(answers, reference)),
        }


def drawn(items: list[Any], count: int) -> list[Any]:
    """So many of them, or all, in an order that is always the same."""
    return [items[i] for i in np.random.default_rng(0).permutation(len(items))[:count]]
