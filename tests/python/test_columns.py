"""Sums and largest magnitudes of columns, from the casts that give them, against FP64."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from octofold._core.library import library
from octofold._ops.cast_row import workspace_rows
from octofold.ops import Activated, ActivationGradient, Normed

from tests.cases.shapes import ACTIVATED_COLUMNS, COLUMNS, WIDE_COLUMNS
from tests.python import reference_activations
from tests.python.casting import GRANULARITIES, cast_side, formats, sides_of
from tests.python.devices import cast, cpu_only, on_gpu

pytestmark = pytest.mark.usefixtures("each_device")
ROWS, COLS = 131, 600  # wider than what the library takes at a time
SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16)
TARGETS = ("rows", "transposed", "both")
every_target = pytest.mark.parametrize("targets", TARGETS)


def assert_columns_of(columns, x, step=0.0):
    """On a GPU sums are of FP32, off by some hundred half steps of all that is added. step: by how
    much of itself each number of x may be another one."""
    wide = x.astype(np.float64).reshape(-1, x.shape[-1])
    largest = np.abs(wide).max(0, initial=0).astype(np.float32)
    np.testing.assert_allclose(columns.amax, largest, rtol=2 * step, atol=1e-6 * bool(step))
    assert columns.sums.dtype == columns.amax.dtype == np.float32
    if on_gpu():
        error = np.abs(columns.sums.astype(np.float64) - wide.sum(0))
        assert (error <= (1e-5 + 2 * step) * np.abs(wide).sum(0) + 1e-4 * bool(step)).all()
    else:
        np.testing.assert_array_equal(columns.sums, wide.sum(0).astype(np.float32))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@every_target
def test_beside_any_cast(targets, granularity, source, rng):
    """Whatever is cast beside them, sums have the same bits."""
    format = f"e5m2 {granularity} te"
    for rows, cols in COLUMNS + (WIDE_COLUMNS if on_gpu() else ()):
        x = rng.normal(rng.normal(0.5, 1, cols), 1, (rows, cols)) * np.exp2(rng.uniform(-8, 8))
        x = x.astype(source)
        casts = cast(x, **formats(format, targets), columns="both")
        assert_columns_of(casts, x)
        others = cast(x, rows="1x128", transposed="channel", columns="both")
        assert casts.sums.tobytes() == others.sums.tobytes()
        assert len(sides_of(casts)) == (2 if targets == "both" else 1)
        for one, transpose in sides_of(casts):
            assert one.equals(cast_side(x, format, transpose))


def test_only_what_is_asked_for(rng):
    x = rng.normal(0, 1, (ROWS, COLS)).astype(np.float32)
    both, sums, amax, none = (
        cast(x, rows="1x128", columns=columns) for columns in ("both", "sums", "amax", None)
    )
    assert sums.amax is amax.sums is none.sums is none.amax is None
    np.testing.assert_array_equal(sums.sums, both.sums)
    np.testing.assert_array_equal(amax.amax, both.amax)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_of_activations_and_their_gradients(layout, source, rng):
    """A GPU approximates them, by two bits of FP32 and a rounding: that scales of channels come
    from the same magnitudes says that it is what is cast that is added."""
    steps = ml_dtypes.finfo(source).eps + 2 * np.finfo(np.float32).eps
    step = float(steps) if on_gpu() else 0.0
    for rows, cols in ((ROWS, COLS), *(ACTIVATED_COLUMNS if on_gpu() else ())):
        x = rng.normal(0, 2, (rows, 2 * cols)).astype(source)
        gradient = rng.normal(0, 1, (rows, cols)).astype(source)
        value = reference_activations.activation(x, "swiglu", layout)
        slope = reference_activations.activation_gradient(gradient, x, "swiglu", layout)
        for made, values in (
            (Activated(x, layout=layout), value),
            (ActivationGradient(gradient, x, layout=layout), slope),
        ):
            by_channel = cast(made, transposed="channel", columns="both")
            assert_columns_of(by_channel, values.astype(np.float32).astype(source), step)
            scale = np.maximum(by_channel.amax, np.float32(1e-4)) / np.float32(448)
            np.testing.assert_array_equal(by_channel.transposed.scale, scale)
            for format, targets in (*(("1x128", each) for each in TARGETS), ("tensor", "rows")):
                casts = cast(made, **formats(format, targets), columns="both")
                assert casts.sums.tobytes() == by_channel.sums.tobytes()
                assert casts.amax.tobytes() == by_channel.amax.tobytes()
                for one, transpose in sides_of(casts):
                    assert one.equals(cast_side(made, format, transpose))


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_of_norms(kind, rng):
    """y is what a cast by scales of 1 would have rounded: here it is FP32."""
    x, weight = rng.normal(1, 1, (ROWS, COLS)), rng.normal(0, 1, COLS)
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    source = Normed(x, weight, kind=kind)
    for targets in TARGETS:
        casts = cast(source, **formats("1x128", targets), columns="both")
        y = x if kind == "rms" else x - casts.norm.mean[:, None]
        assert_columns_of(casts, y * casts.norm.rstd[:, None] * weight)
        for one, transpose in sides_of(casts):
            assert one.equals(cast_side(source, "1x128", transpose))


def test_leading_dimensions_and_strides(rng):
    x = rng.normal(0, 1, (2, 65, COLS)).astype(np.float32)
    assert_columns_of(cast(x, rows="1x128", columns="both"), x)
    overlapping = np.lib.stride_tricks.as_strided(x, (100, 256), (16 * 4, 4))
    repeated = np.broadcast_to(x[0, 7], (9, COLS))
    for view in (x[0, ::-2], x[0, ::2, 16:], repeated, x[0, :, 5:90], overlapping):
        assert_columns_of(cast(view, rows="1x128", columns="both"), view)


@every_target
def test_of_few_rows_and_of_none(targets, rng):
    x = rng.normal(0, 1, (1, COLS)).astype(np.float32)
    for rows in (x, x[:0]):
        columns = cast(rows, **formats("1x128", targets), columns="both")
        np.testing.assert_array_equal(columns.sums, rows.sum(0))
        np.testing.assert_array_equal(columns.amax, np.abs(rows).sum(0))
    torch = pytest.importorskip("torch")
    for empty in (x[:, :0], torch.ones(1, 0), torch.ones(300, 0), torch.ones(0, 0)):
        columns = cast(empty, **formats("1x128", targets), columns="both")
        assert columns.sums.shape == columns.amax.shape == (0,)


def test_special_values_stay_in_their_columns():
    x = np.ones((ROWS, 256), np.float32)
    x[3, 1], x[4, 2], x[5, 3], x[6, 3] = np.nan, -np.inf, np.inf, -np.inf
    x[:, 200] = -0.0
    columns = cast(x, rows="1x128", columns="both")
    np.testing.assert_array_equal(columns.sums[:5], [ROWS, np.nan, -np.inf, np.nan, ROWS])
    np.testing.assert_array_equal(columns.amax[:5], [1, np.nan, np.inf, np.inf, 1])
    assert columns.sums[200] == 0
    assert not np.signbit(columns.sums[200])


@cpu_only
def test_workspace_is_the_librarys():
    """Python works it out again, as torch's symbolic sizes cannot go to the library."""
    for rows in (0, 1, 127, 128, 129, 100_000):
        for wanted in itertools.product((False, True), repeat=2):
            assert workspace_rows(rows, *wanted) == library.column_workspace_rows(rows, *wanted)
