"""Tables of calls that are refused: on each line a call, and behind two spaces what the error says.

A line that begins with spaces goes on with the one above it. An ellipsis stands for anything.
"""

import re

import numpy as np
import octofold
import pytest


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def ints(*numbers):
    return np.array(numbers, np.int32)


def table(text):
    """Parametrizes a test by the calls of a table and by what their errors say."""
    lines = re.sub(r"\n +", "  ", text.strip()).splitlines()
    return pytest.mark.parametrize(("call", "message"), [line.split("  ", 1) for line in lines])


OPERATIONS = vars(octofold) | vars(octofold.ops)


def check(call, message, names):
    """The call, of operations and these names, raises an InvalidArgumentError that says so, and
    whose it is."""
    with pytest.raises(octofold.InvalidArgumentError) as caught:
        eval(call, OPERATIONS | names)
    said, operation = str(caught.value), call.partition("(")[0]
    parts = (part.strip() for part in message.split("…"))
    assert re.search(".*".join(map(re.escape, parts)), said), said
    if "argument" in message and operation in (*OPERATIONS, *octofold.__all__):
        assert said.startswith(operation), said
