"""The judge of products itself: what is rounded well passes, one wrong element fails."""

import numpy as np
import pytest

from tests.python import reference
from tests.python.judge import (
    LIMITS,
    assert_close,
    assert_elements_close,
    assert_norm_close,
    half_ulp,
)

SHAPE = (300, 400)
NARROW = ("float16", "bfloat16")


@pytest.fixture
def problem(rng):
    """A product, as float32 holds it, and the magnitudes that it sums."""
    a, b = rng.normal(0, 1, (SHAPE[0], 64)), rng.normal(0, 1, (SHAPE[1], 64))
    return rounded(a @ b.T, "float32"), abs(a) @ abs(b).T


def rounded(values, dtype):
    return values.astype(reference.DTYPES[dtype]).astype(np.float64)


@pytest.mark.parametrize("dtype", LIMITS)
def test_what_is_rounded_once_is_close(dtype, problem):
    expected, terms = problem
    assert_close(rounded(expected, dtype), expected, terms, dtype)
    assert_elements_close(rounded(expected, dtype), expected, 0 * terms, dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("scale", [1e-5, 1e-7, 1e-8, 0])
def test_subnormal_results_are_close(dtype, scale, problem):
    """FP16's, of which the smallest are rounded to 0."""
    expected, terms = problem
    assert_close(rounded(scale * expected, dtype), scale * expected, scale * terms, dtype)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda x: 0.0, id="missing"),
        pytest.param(lambda x: 2 * x, id="doubled"),
        pytest.param(lambda x: -x, id="negated"),
        pytest.param(lambda x: np.nan, id="NaN"),
        pytest.param(lambda x: np.inf, id="Inf"),
    ],
)
def test_one_wrong_element_is_seen(dtype, wrong, problem):
    expected, terms = problem
    out = rounded(expected, dtype)
    place = np.unravel_index(np.argmin(abs(abs(expected) - 0.1)), SHAPE)
    out[place] = wrong(out[place])
    if np.isfinite(out[place]):
        assert_norm_close(out, expected, terms, dtype)  # which does not see it
        with pytest.raises(AssertionError, match=rf"1 of 300×400 .*\[{place[0]}, {place[1]}\]"):
            assert_close(out, expected, terms, dtype)
    else:
        with pytest.raises(AssertionError, match="finite"):
            assert_close(out, expected, terms, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_many_small_errors_are_seen_by_the_norm(dtype, problem):
    """Each within its limit, all of the same sign."""
    expected, terms = problem
    with pytest.raises(AssertionError, match="norm"):
        assert_close(expected + 2.9e-4 * terms, expected, terms, dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_half_ulp_is_half_of_the_way_to_the_neighbour(dtype):
    values = reference.DTYPES[dtype].type(2.0) ** np.arange(-14, 15).astype(reference.DTYPES[dtype])
    values = np.concatenate([values, values * reference.DTYPES[dtype].type(1.25)])
    neighbours = (values.view(np.uint16) + 1).view(values.dtype)
    distances = neighbours.astype(np.float64) - values.astype(np.float64)
    np.testing.assert_array_equal(half_ulp(values.astype(np.float64), dtype), distances / 2)


def test_half_ulp_of_subnormal_numbers():
    assert list(half_ulp(np.array([0.0, 2.0**-24, -(2.0**-14)]), "float16")) == [2.0**-25] * 3
