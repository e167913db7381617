"""A model's answers with other arithmetic, beside those that it gives in FP32."""

import dataclasses
import statistics

import numpy as np

from .minilm import Float32Array


@dataclasses.dataclass(frozen=True)
class Answers:
    """The model's embeddings in other arithmetic beside those in FP32."""

    cosines: list[float]  # of each sentence's two embeddings
    same_nearest: int  # sentences whose nearest other sentence is still the same
    largest_lost_lead: float  # by how much, in FP32's similarity, one was nearest that is no more

    @property
    def worst(self) -> float:
        return min(self.cosines)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.cosines)


def compare_answers(float32: Float32Array, other: Float32Array) -> Answers:
    """Two sets of unit embeddings [sentences, 384] of the same sentences."""
    cosines = np.sum(float32.astype(np.float64) * other, axis=1)
    similarity = similarity_to_others(float32)
    before, after = similarity.argmax(axis=1), similarity_to_others(other).argmax(axis=1)
    everyone = np.arange(len(similarity))
    leads = similarity[everyone, before] - similarity[everyone, after]
    return Answers(cosines.tolist(), int(np.sum(before == after)), float(leads.max()))


def similarity_to_others(embeddings: Float32Array) -> Float32Array:
    """Cosine similarity of each sentence to each other one; to itself, −∞."""
    similarity: Float32Array = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -np.inf)
    return similarity
