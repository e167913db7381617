"""Sums and largest magnitudes of columns, from the casts that give them, against FP64."""

import itertools

import ml_dtypes
import numpy as np
import octofold
import pytest
import reference
import reference_activations
from octofold._core.targets import _workspace_rows
from octofold._library import library

ROWS, COLS = 131, 300
SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16)
TARGETS = {"rows": [False], "transposed": [True], "both": [False, True]}
every_target = pytest.mark.parametrize("targets", TARGETS)


def assert_columns_of(columns, x):
    wide = x.astype(np.float64).reshape(-1, x.shape[-1])
    for actual, expected in ((columns.sums, wide.sum(0)), (columns.amax, np.abs(wide).max(0))):
        assert actual.dtype == np.float32
        np.testing.assert_array_equal(actual, expected.astype(np.float32))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("granularity", reference.GRANULARITIES)
@every_target
def test_beside_any_cast(targets, granularity, source, rng):
    x = rng.normal(0.5, 1, (ROWS, COLS)).astype(source)
    options = {"granularity": granularity, "dtype": "e5m2", "profile": "te"}
    *casts, columns = octofold.quantize_with_columns(x, "both", targets=targets, **options)
    assert_columns_of(columns, x)
    for cast, transpose in zip(casts, TARGETS[targets], strict=True):
        assert cast.equals(octofold.quantize(x, transpose=transpose, **options))


def test_only_what_is_asked_for(rng):
    x = rng.normal(0, 1, (ROWS, COLS)).astype(np.float32)
    *_, both = octofold.quantize_with_columns(x, "both")
    *_, sums = octofold.quantize_with_columns(x)
    *_, amax = octofold.quantize_with_columns(x, "amax")
    assert sums.amax is None
    assert amax.sums is None
    np.testing.assert_array_equal(sums.sums, both.sums)
    np.testing.assert_array_equal(amax.amax, both.amax)
    alone = octofold.quantize_with_columns(x, None, targets="rows")
    assert alone.equals(octofold.quantize(x))
    pair = octofold.quantize_with_columns(x, None, transposed_granularity="channel")
    expected = octofold.quantize_both(x, transposed_granularity="channel")
    assert all(cast.equals(other) for cast, other in zip(pair, expected, strict=True))


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_of_activations_and_their_gradients(layout, rng):
    x = rng.normal(0, 2, (ROWS, 2 * COLS)).astype(ml_dtypes.bfloat16)
    gradient = rng.normal(0, 1, (ROWS, COLS)).astype(ml_dtypes.bfloat16)
    value = reference_activations.activation(x, "swiglu", layout)
    slope = reference_activations.activation_gradient(gradient, x, "swiglu", layout)
    for cast, inputs, values in (
        (octofold.quantize_activation, (x,), value),
        (octofold.quantize_activation_gradient, (gradient, x), slope),
    ):
        for targets in TARGETS:
            *casts, columns = cast(*inputs, layout=layout, targets=targets, columns="both")
            assert_columns_of(columns, values.astype(np.float32).astype(x.dtype))
            alone = cast(*inputs, layout=layout, targets=targets)
            for actual, expected in zip(
                casts, alone if targets == "both" else [alone], strict=True
            ):
                assert actual.equals(expected)


def test_of_norms(rng):
    """y is what a cast by scales of 1 would have rounded: here it is FP32."""
    x = rng.normal(1, 1, (ROWS, COLS)).astype(np.float32)
    norm = octofold.quantize_norm(x, columns="both")
    y = x * norm.rstd[:, None]
    assert_columns_of(norm.columns, y)
    assert norm.rows.equals(octofold.quantize_norm(x).rows)
    assert octofold.quantize_norm(x).columns is None


def test_leading_dimensions_and_strides(rng):
    x = rng.normal(0, 1, (2, 65, COLS)).astype(np.float32)
    assert_columns_of(octofold.quantize_with_columns(x, "both")[-1], x)
    for view in (x[0, ::-2], np.broadcast_to(x[0, 7], (9, COLS)), x[0, :, 5:90]):
        assert_columns_of(octofold.quantize_with_columns(view, "both")[-1], view)


@every_target
def test_of_few_rows_and_of_none(targets, rng):
    x = rng.normal(0, 1, (1, COLS)).astype(np.float32)
    for rows in (x, x[:0]):
        *_, columns = octofold.quantize_with_columns(rows, "both", targets=targets)
        np.testing.assert_array_equal(columns.sums, rows.sum(0))
        np.testing.assert_array_equal(columns.amax, np.abs(rows).sum(0))
    torch = pytest.importorskip("torch")
    for empty in (x[:, :0], torch.ones(1, 0), torch.ones(300, 0)):
        *_, columns = octofold.quantize_with_columns(empty, "both", targets=targets)
        assert columns.sums.shape == columns.amax.shape == (0,)


def test_special_values_stay_in_their_columns():
    x = np.ones((ROWS, 256), np.float32)
    x[3, 1], x[4, 2], x[5, 3], x[6, 3] = np.nan, -np.inf, np.inf, -np.inf
    *_, columns = octofold.quantize_with_columns(x, "both")
    np.testing.assert_array_equal(columns.sums[:5], [ROWS, np.nan, -np.inf, np.nan, ROWS])
    np.testing.assert_array_equal(columns.amax[:5], [1, np.nan, np.inf, np.inf, 1])


def test_bad_columns():
    x = np.zeros((4, 8), np.float32)
    for operation, call in (
        ("quantize_with_columns", lambda: octofold.quantize_with_columns(x, "sum")),
        ("quantize_activation", lambda: octofold.quantize_activation(x, columns="sum")),
        ("quantize_norm", lambda: octofold.quantize_norm(x, columns="sum")),
    ):
        message = f"{operation}: argument 'columns': expected one of sums, amax, both, or None"
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            call()


def test_workspace_is_the_librarys():
    """Python works it out again, as torch's symbolic sizes cannot go to the library."""
    for rows in (0, 1, 127, 128, 129, 100_000):
        for wanted in itertools.product((False, True), repeat=2):
            assert _workspace_rows(rows, *wanted) == library.column_workspace_rows(rows, *wanted)


@pytest.mark.slow
def test_torch_compiles(rng):
    torch = pytest.importorskip("torch")
    x, gradient = torch.randn(130, 600), torch.randn(130, 300)

    @torch.compile(fullgraph=True)
    def compiled(gradient, x):
        *_, of_x = octofold.quantize_with_columns(x, "both")
        *_, of_slope = octofold.quantize_activation_gradient(gradient, x, columns="sums")
        return of_x.sums, of_x.amax, of_slope.sums

    sums, amax, of_slope = compiled(gradient, x)
    *_, expected = octofold.quantize_with_columns(x, "both")
    assert torch.equal(sums, expected.sums)
    assert torch.equal(amax, expected.amax)
    *_, expected = octofold.quantize_activation_gradient(gradient, x, columns="sums")
    assert torch.equal(of_slope, expected.sums)


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["sums", "amax", "both", None])
def test_opcheck(opcheck, columns):
    torch = pytest.importorskip("torch")
    codes = torch.zeros(300, 130).to(torch.float8_e4m3fn)
    of_sums, of_amax = columns in ("sums", "both"), columns in ("amax", "both")
    results = (
        *(None, None, codes, torch.empty(300, 2)),
        torch.zeros(300) if of_sums else None,
        torch.zeros(300) if of_amax else None,
        torch.zeros(2 * (of_sums + of_amax), 300) if columns else None,
    )
    options = (columns, "1x128", None, None, "saturate", "te", "transposed")
    arguments = (torch.randn(130, 300), None, None, None, *results, *options)
    opcheck(torch.ops.octofold.quantize_with_columns, arguments)
