"""Fixtures of the layers' tests."""

import pytest
import torch


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
    """Records the reads of layers in one call of the library."""
    from octofold.nn.autograd import layer_call, one_call

    def add_weights(*weights):  # and their scales, where they are cast already
        for weight, scale in zip(weights[::3], weights[1::3], strict=True):
            seen.extend([("Tensor", tuple(weight.shape))] if scale is None else [])

    def record(x, *others):  # one to four arguments, weights; y, kept, a workspace, the stream
        weights = 3 if len(others) < 12 else 6
        add_weights(*others[-4 - weights : -4])
        seen.append(("Tensor", tuple(x.shape)))

    def recording(passes_of):
        def recorded(*arguments):
            passes = passes_of(*arguments)

            def forward(*given):
                record(*given)
                passes.forward(*given)

            def backward(dy, *others):
                seen.append(("Tensor", tuple(dy.shape)))
                passes.backward(dy, *others)

            return passes._replace(forward=forward, backward=backward)

        return recorded

    for module in (one_call, layer_call):
        monkeypatch.setattr(module, "passes_of", recording(module.passes_of))


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
