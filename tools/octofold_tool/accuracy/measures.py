"""Questions to models, measures of their answers, and the intervals of these.

Each measure is a ratio of sums over units that do not depend on each other (pages, queries,
recordings): nats over tokens, hits over queries, errors over words. So one bootstrap serves all:
units are drawn again with replacement, and the interval holds the middle 95 % of the ratios (Efron
and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13). A change is the sum of each
unit's own change: it is paired.
"""

import ast
import gzip
import importlib
import pydoc_data.topics
import sysconfig
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ..report import ToolError, require
from .models import VOICE, Loaded

Array: TypeAlias = npt.NDArray[Any]

BOOTSTRAP: Final = {"resamples": 2000, "seed": 0}
MOST_TOKENS: Final = 512
SHORTEST_PAGE: Final = 1000  # characters, some 250 tokens
SHORTEST_SUMMARY, SHORTEST_REST = 20, 100
SPEECH: Final = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
SCRIPT: Final = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
FEWEST_WORDS, MOST_BYTES = 4, 30 * 16000  # 30 s of 8 kHz: Whisper hears no more at once


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


def ratio(
    parts: npt.ArrayLike, sizes: npt.ArrayLike = 1.0, read: Callable[[Any], Any] = float
) -> Estimate:
    """Σ parts / Σ sizes, each [units], and the ends of its interval, told by `read`: a function
    that grows, as exp of nats."""
    above = np.asarray(parts, np.float64)
    below = np.broadcast_to(np.asarray(sizes, np.float64), above.shape)
    shape = BOOTSTRAP["resamples"], len(above)
    draws = np.random.default_rng(BOOTSTRAP["seed"]).integers(len(above), size=shape)
    low, high = np.quantile(above[draws].sum(axis=1) / below[draws].sum(axis=1), (0.025, 0.975))
    return Estimate(*(float(read(x)) for x in (above.sum() / below.sum(), low, high)))


def reciprocal_ranks(similarity: Array) -> Array:
    """1 / the place of document i for query i, behind its equals, of [queries, documents]."""
    return np.asarray(1 / (similarity >= np.diag(similarity)[:, None]).sum(axis=1))


def spearman(left: Array, right: Array) -> Array:
    """The correlation of the ranks in each row, [rows], of two [rows, columns] without ties."""
    ranks = [x.argsort(axis=1).argsort(axis=1) - (x.shape[1] - 1) / 2 for x in (left, right)]
    return np.asarray((ranks[0] * ranks[1]).sum(axis=1) / np.square(ranks[0]).sum(axis=1))


class Language:
    """The next token of pages of Python's manual (pydoc_data.topics)."""

    def __init__(self, count: int) -> None:
        pages = pydoc_data.topics.topics.values()
        self.texts = drawn([page for page in pages if len(page) > SHORTEST_PAGE], count)

    def answers(self, loaded: Loaded, model: Any, device: str) -> list[tuple[Array, Array]]:
        """(nats that each token took, the token that seemed likeliest there) of each page."""
        found = []
        for page in self.texts:
            ids = torch.tensor([loaded.encode(page)[:MOST_TOKENS]], device=device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            nats = cross_entropy(logits, ids[0, 1:], reduction="none").double()
            found.append((nats.cpu().numpy(), logits.argmax(dim=-1).cpu().numpy()))
        return found

    def judge(self, answers: list[Any], reference: list[Any]) -> dict[str, Estimate]:
        nats, before = (np.array([page[0].sum() for page in x]) for x in (answers, reference))
        same = [np.sum(x[1] == y[1]) for x, y in zip(answers, reference, strict=True)]
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
            ids = torch.tensor([loaded.encode(text)], device=device)
            return normalize(model(ids).last_hidden_state[0].double().mean(dim=0), dim=0)

        columns = ([embedding(pair[i]) for pair in self.texts] for i in range(2))
        documents, queries = map(torch.stack, columns)
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


class Speech:
    """The words of a woman in recordings for telephones (Debian's asterisk-core-sounds-en)."""

    def __init__(self, count: int) -> None:
        require("jiwer", "accuracy")
        if not (SCRIPT.exists() and SPEECH.exists()):
            raise ToolError(f"no {SCRIPT} or no {SPEECH}: apt-get install {' '.join(VOICE)}")
        whisper: Any = importlib.import_module("transformers.models.whisper.english_normalizer")
        self._normal = whisper.EnglishTextNormalizer({})  # lower case, digits, no punctuation
        names: dict[str, str] = {}  # by their words
        for line in gzip.decompress(SCRIPT.read_bytes()).decode().splitlines():
            name, _, said = line.partition(": ")
            words, path = self._words(said), SPEECH / f"{name}.wav"
            # These mark what is no speech, or are read out.
            plain = not set("[(<#*") & set(said) and len(words.split()) >= FEWEST_WORDS
            if plain and path.exists() and path.stat().st_size <= MOST_BYTES:
                names.setdefault(words, name)
        self.texts = drawn(list(names.items()), count)

    def _words(self, text: str) -> str:
        return " ".join(self._normal(text.replace("...", " ")).split())

    def answers(self, loaded: Loaded, model: Any, device: str) -> list[str]:
        """The words of each recording."""
        found = []
        for _, name in self.texts:
            features = loaded.encode(sound(SPEECH / f"{name}.wav")).to(device, model.dtype)
            tokens = model.generate(features, language="en", task="transcribe")[0]
            found.append(self._words(loaded.decode(tokens.tolist())))
        return found

    def judge(self, answers: list[str], reference: list[str]) -> dict[str, Estimate]:
        said = [words for words, _ in self.texts]
        counts = np.array([len(words.split()) for words in said])
        rate = importlib.import_module("jiwer").wer
        errors, before = (
            counts * [rate(*pair) for pair in zip(said, heard, strict=True)]
            for heard in (answers, reference)
        )
        return {
            "WER, %": ratio(100 * errors, counts),
            "change, points": ratio(100 * (errors - before), counts),
            "same words, %": ratio(100 * (np.array(answers) == np.array(reference))),
        }


def sound(path: Path) -> Array:
    """The samples [n] of a recording at 16 kHz, which is twice its rate, by interpolation."""
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 2**15
    return np.fft.irfft(2 * np.fft.rfft(samples), 2 * len(samples))


def drawn(items: list[Any], count: int) -> list[Any]:
    """So many of them, or all, in an order that is always the same."""
    return [items[i] for i in np.random.default_rng(0).permutation(len(items))[:count]]
