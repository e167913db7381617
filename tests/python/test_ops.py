"""The table of operations: what a row makes of a public function's annotations."""

import octofold
import pytest
from octofold._core import calls, ops
from octofold._core.formats import DTypeLike
from octofold._core.frameworks import Array, StreamLike


@pytest.fixture
def op(monkeypatch):
    """Makes rows that are in no table afterwards."""
    monkeypatch.setattr(ops, "TABLE", {})

    def make(**parameters):
        return calls.Op("turn", parameters, ("out",), lambda *_: (), lambda: print)

    return make


def test_parameters_become_inputs_and_options(op):
    turn = op(
        x=Array,
        a=octofold.ScaledTensor,
        bias=Array | None,
        c=Array | octofold.ScaledTensor,
        dtype=DTypeLike,
        out_dtype=DTypeLike | None,
        mode=str,
        fast=bool,
        exact=bool | None,
        count=int,
        most=int | None,
        angle=float,
        stream=StreamLike | None,
        out=Array | None,
        **{"return": Array},
    )
    assert turn.inputs == ["x", "a", "a.scale", "bias?", "c", "c.scale?"]
    options = ["a.granularity", "c.granularity", "mode", "fast", "exact", "count", "most", "angle"]
    assert list(turn.options) == options


@pytest.mark.parametrize("kind", [float | None, "bool", octofold.ScaledTensor | None])
def test_parameters_of_other_types_are_refused(op, kind):
    with pytest.raises(TypeError, match="turn: no op takes a parameter 'angle' of type"):
        op(x=Array, angle=kind)
    assert not ops.TABLE
