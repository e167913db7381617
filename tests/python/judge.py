"""How results are judged, of NumPy and torch alike. Products (docs/numerics.md): by the norm of all
errors, and element by element, as a norm does not see a few elements that are wrong."""

import math

import numpy as np
from numpy.lib import NumpyVersion
from octofold import ScaledTensor

# Limits of norms over many elements, whose roundings average; a few may each be half an ulp off.
LIMITS = {"float32": 3e-4, "float16": 4e-4, "bfloat16": 2.5e-3}
LIMITS_OF_FEW = {"float32": 3e-4, "float16": 2**-11 + 3e-4, "bfloat16": 2**-8 + 3e-4}
FEW = 4096
ACCUMULATION = 3e-4  # error of a sum over the sum of its terms' magnitudes
# The same on a GPU, whose tensor cores sum 128 products with about 14 bits: where these are most of
# the sum a few elements are beyond 3e-4 (seen: 4.1e-4, one of 36 million at K = 128).
TENSOR_CORE_ACCUMULATION = 5e-4
FAST_ACCUMULATION = 1e-3  # likewise, where the tensor core sums all of K

# Stored bits of the mantissa; exponent of the smallest normal number.
FORMATS = {"float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}


def half_ulp(values, dtype):
    """Half the distance of these values (float64) from their neighbours in a format."""
    mantissa_bits, smallest_exponent = FORMATS[dtype]
    magnitudes = abs(values).clip(min=2.0**smallest_exponent)
    fractions, _ = magnitudes.frexp() if hasattr(magnitudes, "frexp") else np.frexp(magnitudes)
    # magnitude / fraction is a power of two, 1 to 2 times the magnitude.
    return magnitudes / fractions * 2.0 ** (-2 - mantissa_bits)


def norm(values):
    return float((values * values).sum()) ** 0.5


def relative_error(values, expected):
    """The norm of all errors over that of what is expected, of arrays that NumPy reads."""
    values, expected = (np.asarray(array, np.float64) for array in (values, expected))
    return norm(values - expected) / norm(expected)


def assert_elements_close(out, expected, terms, dtype, accumulation=ACCUMULATION):
    """Each element of a matrix within half an ulp and the error of a sum of such terms."""
    assert bool((abs(out) < math.inf).all()), "not all is written and finite"
    excess = abs(out - expected) / (half_ulp(out, dtype) + accumulation * terms)
    wrong = int((excess > 1).sum())
    if wrong:
        row, column = divmod(int(excess.argmax()), out.shape[1])
        raise AssertionError(
            f"{wrong} of {out.shape[0]}×{out.shape[1]} elements are wrong, most of all "
            f"[{row}, {column}]: {float(out[row, column])!r}, expected "
            f"{float(expected[row, column])!r}, {float(excess[row, column]):.3g} times the limit"
        )


def assert_norm_close(out, expected, terms, dtype):
    """Among a few elements one whose terms cancel may make up the norm: there, its terms count.
    Where results are subnormal their ulp is that of the smallest normal number."""
    few = math.prod(out.shape) < FEW
    allowed = (LIMITS_OF_FEW if few else LIMITS)[dtype] * norm(expected)
    if few:
        allowed += ACCUMULATION * norm(terms)
    mantissa_bits, smallest_exponent = FORMATS[dtype]
    allowed += 2.0 ** (smallest_exponent - mantissa_bits - 1) * math.prod(out.shape) ** 0.5
    error = norm(out - expected)
    assert error <= allowed, f"norm of the error {error:.3g}, allowed {allowed:.3g}"


def assert_close(out, expected, terms, dtype, accumulation=ACCUMULATION):
    """All three in float64; `terms`: the sum of the magnitudes that each element sums; `dtype`:
    what `out` was in."""
    assert out.shape == expected.shape
    assert_elements_close(out, expected, terms, dtype, accumulation)
    assert_norm_close(out, expected, terms, dtype)


def assert_same(actual, expected):
    """The same numbers in the same type: of arrays, tensors and casts, of collections of them, and
    None where there is none. FP8 is compared by its codes."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        actual, expected = list(actual.values()), list(expected.values())
    if expected is None or isinstance(expected, ScaledTensor):
        assert actual is expected or actual.equals(expected)
    elif not hasattr(expected, "dtype"):
        for left, right in zip(actual, expected, strict=True):
            assert_same(left, right)
    else:
        assert (actual.dtype, tuple(actual.shape)) == (expected.dtype, tuple(expected.shape))
        if isinstance(expected, np.ndarray):
            bits = [x.view(np.uint8) if x.itemsize == 1 else x for x in (actual, expected)]
            np.testing.assert_array_equal(*bits)
        else:
            import torch

            bits = [x.view(torch.uint8) if x.itemsize == 1 else x for x in (actual, expected)]
            assert torch.equal(*bits)


def assert_compiled_same(actual, expected):
    """Tensors and collections of them, of torch.compile's function and of the one that it compiled:
    the same numbers; but before torch 2.10 the backend aot_eager splits SiLU's gradient into steps,
    which round each for itself, and then a code next to a tie falls the other way."""
    import torch

    if NumpyVersion(torch.__version__.partition("+")[0]) >= "2.10.0":
        assert_same(actual, expected)
    elif isinstance(expected, torch.Tensor):
        assert torch.linalg.norm(actual - expected) <= 1e-3 * torch.linalg.norm(expected)
    else:
        parts = (x.values() if isinstance(x, dict) else x for x in (actual, expected))
        for left, right in zip(*parts, strict=True):
            assert_compiled_same(left, right)
