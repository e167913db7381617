"""How hypothesis runs: here alone, as machines for the GPU tests need not have it. And what tests of
torch's ops share."""

import pytest
from hypothesis import settings

settings.register_profile("octofold", deadline=None, max_examples=200)
settings.load_profile("octofold")


@pytest.fixture
def opcheck(monkeypatch):
    """torch.library.opcheck, which compares inputs before and after by torch.allclose: that has no
    FP8, so here it compares FP8 by bytes."""
    octofold = pytest.importorskip("octofold")
    torch = pytest.importorskip("torch")
    allclose = torch.allclose

    def allclose_with_fp8(left, right, **options):
        if left.dtype.itemsize == 1:
            return torch.equal(left.view(torch.uint8), right.view(torch.uint8))
        return allclose(left, right, **options)

    monkeypatch.setattr(torch, "allclose", allclose_with_fp8)
    octofold.convert(torch.zeros(1), "e4m3")  # the first call with a tensor registers the ops
    return torch.library.opcheck
