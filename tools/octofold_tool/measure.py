"""Errors and times, measured the same way by every command."""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from octofold._timing import CPU, Call, take_turns

MIN_ROUNDS = 5  # fewer give no median to trust

# Seconds between one peer's calls and another's. The threads of NumPy's OpenBLAS spin for about
# 0.1 s after a product, in case another one follows, and take the next peer's processors meanwhile.
REST = 0.25

# Relative error limits of docs/numerics.md, by the output's dtype.
ERROR_LIMITS = {"float32": 3e-4, "bfloat16": 2.5e-3, "float16": 4e-4}

# Outputs of few elements may be off by half an ulp each, on top of FP32's limit (same place).
FEW_ELEMENTS = 4096
HALF_ULP = {"float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11}


def error_limit(dtype: str, elements: int) -> float:
    """The limit of a product's relative error, if so many of its elements are compared."""
    few = elements < FEW_ELEMENTS
    return ERROR_LIMITS["float32"] + HALF_ULP[dtype] if few else ERROR_LIMITS[dtype]


def relative_error(actual: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """‖actual − expected‖ / ‖expected‖ in FP64; 0 where both are zero."""
    reference = np.asarray(expected, np.float64)
    error = np.linalg.norm(np.asarray(actual, np.float64) - reference)
    if error == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # infinite where only `expected` is zero
        return float(error / np.linalg.norm(reference))


def decibels(error: float) -> float:
    """Signal-to-noise ratio of a relative error."""
    return float("inf") if error == 0 else -20 * float(np.log10(error))


def interleaved_seconds(
    calls: Sequence[Call], rounds: int, budget: float = float("inf")
) -> list[list[float]]:
    """Seconds of each call in each round, in the order A B … and then … B A, with rests between.

    At least MIN_ROUNDS of them, more until `rounds` are done or `budget` seconds are spent.
    """
    samplers = [CPU.sampler([call]) for call in calls]
    return take_turns(samplers, rounds, least=MIN_ROUNDS, budget=budget, between=REST)


def rest() -> None:
    """Let the threads of the last peer fall asleep."""
    time.sleep(REST)
