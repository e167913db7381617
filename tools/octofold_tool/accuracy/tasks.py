"""What models are asked, from texts that every Python has, and how their answers are judged."""

import ast
import hashlib
import pydoc_data.topics
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from .measures import Array, Estimate, ratio, reciprocal_ranks, spearman
from .models import Loaded

MOST_TOKENS: Final = 512
SHORTEST_PAGE: Final = 1000  # characters: some 250 tokens
SHORTEST_PARTS: Final = 20, 100  # of a docstring: its summary, and the rest


@dataclass(frozen=True)
class Language:
    """The next token of each of some pages of Python's manual (pydoc_data.topics)."""

    pages: Sequence[str]
    title = "perplexity"

    @staticmethod
    def of(count: int) -> "Language":
        pages = [page for page in pydoc_data.topics.topics.values() if len(page) > SHORTEST_PAGE]
        return Language(drawn(pages, count))

    @property
    def text(self) -> str:
        return "\0".join(self.pages)

    def answers(self, loaded: Loaded, model: Any, device: str) -> list[tuple[Array, Array]]:
        """(nats that each token took, the token that was thought likeliest) of each page."""
        found = []
        for page in self.pages:
            ids = torch.tensor([loaded.tokens(page)[:MOST_TOKENS]], device=device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            nats = functional.cross_entropy(logits, ids[0, 1:], reduction="none")
            found.append((nats.cpu().numpy(), logits.argmax(dim=-1).cpu().numpy()))
        return found

    def judge(self, answers: list[Any], reference: list[Any]) -> dict[str, Estimate]:
        nats, nats_before = (
            np.array([page[0].sum(dtype=np.float64) for page in some])
            for some in (answers, reference)
        )
        pairs = zip(answers, reference, strict=True)
        same = [np.sum(after[1] == before[1]) for after, before in pairs]
        tokens = [len(page[0]) for page in answers]
        return {
            "perplexity": ratio(nats, tokens, np.exp),
            "change, %": ratio(nats - nats_before, tokens, lambda x: 100 * np.expm1(x)),
            "same token, %": ratio(same, tokens, lambda x: 100 * x),
        }


@dataclass(frozen=True)
class Retrieval:
    """For the first paragraph of a docstring of the standard library: which of all is the rest?"""

    queries: Sequence[str]
    documents: Sequence[str]
    title = "mean reciprocal rank"

    @staticmethod
    def of(count: int) -> "Retrieval":
        pairs: dict[str, str] = {}
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
                    long = all(map(int.__le__, SHORTEST_PARTS, (len(first), len(rest))))
                    if long and rest not in pairs.values():
                        pairs.setdefault(first, rest)
        queries, documents = zip(*drawn(list(pairs.items()), count), strict=True)
        return Retrieval(queries, documents)

    @property
    def text(self) -> str:
        return "\0".join((*self.queries, *self.documents))

    def answers(self, loaded: Loaded, model: Any, device: str) -> Array:
        """The cosine similarity of each query to each document, [queries, documents]."""

        def embeddings(texts: Sequence[str]) -> Array:
            states = [
                model(torch.tensor([loaded.tokens(text)], device=device)).last_hidden_state[0]
                for text in texts
            ]
            means = torch.stack([state.float().mean(dim=0) for state in states])
            return np.asarray(functional.normalize(means, dim=-1).double().cpu().numpy())

        return np.asarray(embeddings(self.queries) @ embeddings(self.documents).T)

    def judge(self, answers: Array, reference: Array) -> dict[str, Estimate]:
        found, found_before = reciprocal_ranks(answers), reciprocal_ranks(reference)
        same = answers.argmax(axis=1) == reference.argmax(axis=1)
        return {
            "MRR, %": ratio(100 * found),
            "change, points": ratio(100 * (found - found_before)),
            "recall at 1, %": ratio(100 * (found == 1)),
            "same first, %": ratio(100 * same),
            "Spearman": ratio(spearman(answers, reference)),
        }


def drawn(items: list[Any], count: int) -> list[Any]:
    """So many of them, or all, in an order that is always the same."""
    return [items[i] for i in np.random.default_rng(0).permutation(len(items))[:count]]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
