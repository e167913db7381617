"""Products whose rows of `a` arrive while they run: bits and order, on the CPU."""

import threading
import time

import ml_dtypes
import numpy as np
import octofold
import pytest
from octofold import Arrivals

SHARDS = 4


def problem(rows, granularity="1x128"):
    """Operands, and the product of all rows at once."""
    rng = np.random.default_rng(rows)
    a = octofold.quantize(rng.standard_normal((rows, 300), np.float32), granularity)
    b = octofold.quantize(rng.standard_normal((200, 300), np.float32), "128x128")
    return a, b, octofold.gemm(a, b, out_dtype="float32")


def there(shards):
    return np.ones(shards, np.int32)


@pytest.mark.parametrize("granularity", ["tensor", "channel", "1x128", "128x128"])
@pytest.mark.parametrize("own", range(SHARDS))
def test_same_bits(granularity, own):
    a, b, whole = problem(4 * 128, granularity)
    arriving = octofold.gemm(a, b, arrivals=Arrivals(there(SHARDS), own), out_dtype="float32")
    assert np.array_equal(arriving, whole)


@pytest.mark.parametrize("rows", [4, 300, 640, 1300])
def test_shards_that_end_within_tiles(rows):
    a, b, whole = problem(rows)
    for shards in (1, 2):
        y = octofold.gemm(a, b, arrivals=Arrivals(there(shards)), out_dtype="float32")
        assert np.array_equal(y, whole)
    bias = np.ones(200, np.float32)
    for own in range(SHARDS):
        y = octofold.gemm(a, b, arrivals=Arrivals(there(SHARDS), own), out_dtype="float32")
        assert np.array_equal(y, whole)
    added = octofold.gemm(a, b, c=whole, bias=bias, out_dtype="float32")
    flags = Arrivals(there(SHARDS))
    y = octofold.gemm(a, b, c=whole, bias=bias, arrivals=flags, out=np.empty_like(whole))
    assert np.array_equal(y, added)


@pytest.mark.parametrize("own", [0, 3])
def test_rows_are_read_as_they_come(own):
    a, b, whole = problem(1024)
    late = octofold.ScaledTensor(
        np.full_like(a.data.view(np.uint8), 0xFF).view(ml_dtypes.float8_e4m3fn),
        np.full_like(a.scale, np.nan),
        a.granularity,
    )
    flags = np.zeros(SHARDS, np.int32)
    out = np.full((1024, 200), np.nan, np.float32)
    first_rows = []

    def copy():
        for i in range(SHARDS):
            shard = (own + i) % SHARDS
            rows = slice(shard * 256, (shard + 1) * 256)
            time.sleep(0.02)
            first_rows.append(np.isnan(out[rows]).all())
            late.data[rows] = a.data[rows]
            late.scale[rows] = a.scale[rows]
            flags[shard] = 1
            deadline = time.monotonic() + 30
            while np.isnan(out[rows]).any() and time.monotonic() < deadline:
                time.sleep(0.001)  # the next shard waits until this one's product is there

    thread = threading.Thread(target=copy)
    thread.start()
    octofold.gemm(late, b, arrivals=Arrivals(flags, own), out=out)
    thread.join()
    assert all(first_rows)
    assert np.array_equal(out, whole)
    assert flags.tolist() == [1] * SHARDS
