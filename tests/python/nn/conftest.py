"""Fixtures of the layers' tests."""

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def reads(monkeypatch):
    """The reads of casts so far, as (what was read, shape of its first array)."""
    from octofold._ops import cast as module

    seen = []
    read_once = module._read_once

    def record(source, *arguments):
        first = getattr(source, "x", source) if isinstance(source, module.Source) else source
        seen.append((type(source).__name__, tuple(first.shape)))
        return read_once(source, *arguments)

    monkeypatch.setattr(module, "_read_once", record)
    _record_passes(monkeypatch, seen)
    return seen


def _record_passes(monkeypatch, seen):
    """Records the reads of linear layers in one call of the library."""
    from octofold.nn.autograd import one_call

    passes_of = one_call.passes_of

    def recorded(*arguments):
        passes = passes_of(*arguments)
        if passes is None:
            return None

        def forward(x, weight, weight_scale, *others):
            seen.extend([("Tensor", tuple(weight.shape))] if weight_scale is None else [])
            seen.append(("Tensor", tuple(x.shape)))
            passes.forward(x, weight, weight_scale, *others)

        def backward(dy, *others):
            seen.append(("Tensor", tuple(dy.shape)))
            passes.backward(dy, *others)

        return passes._replace(forward=forward, backward=backward)

    monkeypatch.setattr(one_call, "passes_of", recorded)


class _Shapes:
    """The shapes of the tensors among the reads."""

    def __init__(self, reads):
        self._reads, self._first = reads, 0

    def _list(self):
        return [shape for name, shape in self._reads[self._first :] if name in _TENSORS]

    def clear(self):
        self._first = len(self._reads)

    def count(self, shape):
        return self._list().count(shape)

    def copy(self):
        return self._list()

    def __getitem__(self, index):
        return self._list()[index]

    def __len__(self):
        return len(self._list())


_TENSORS = ("Tensor", "Parameter")


@pytest.fixture
def casts(reads):
    """The shapes of the tensors that were cast so far, transposed ones as they came; not what is
    worked out on the way."""
    return _Shapes(reads)


@pytest.fixture
def fused_casts(monkeypatch):
    """The fused casts and the products so far: (operation, shape of the first)."""
    from octofold._ops import cast
    from octofold.nn.autograd import chain, normed, products

    seen = []

    def recording(name, function):
        def record(x, *arguments, **options):
            if name != "_read_once":
                seen.append((name, tuple(x.shape)))
            elif isinstance(x, cast.Source):
                seen.append((type(x).__name__, tuple(x.x.shape)))
            return function(x, *arguments, **options)

        return record

    for module, name in (
        (cast, "_read_once"),
        (normed, "norm_gradient"),
        (products, "gemm"),
        (chain, "gated_gemm"),
    ):
        monkeypatch.setattr(module, name, recording(name, getattr(module, name)))
    return seen
