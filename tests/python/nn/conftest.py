"""Fixtures of the layers' tests."""

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def casts(monkeypatch):
    """The tensors that were cast so far, as lists of (rows, columns), transposed ones as they came:
    what layers cast they cast by these functions."""
    from octofold.nn.autograd import products
    from octofold.nn.casting import casts as module

    seen = []

    def recording(function):
        def record(x, *arguments, **options):
            seen.append(tuple(x.shape))
            return function(x, *arguments, **options)

        return record

    for name in ("quantize", "quantize_both", "quantize_with_columns"):
        monkeypatch.setattr(module, name, recording(getattr(module, name)))
    with_columns = recording(products.quantize_with_columns)
    monkeypatch.setattr(products, "quantize_with_columns", with_columns)
    return seen
