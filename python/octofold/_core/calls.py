"""The call of an operation: by torch where its first input is a torch tensor, by octofold.jax where
it is an array of JAX and that module is imported, else at once.

torch is imported by the caller alone. torch_ops.py, which makes the rows torch's own, is imported
here with the first torch tensor, after all rows have entered the table.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Final, TypeAlias

from .frameworks import StreamLike, common_kind, framework_of, is_torch, stream_handle
from .ops import Arrays, Options, Row

_torch_ops: ModuleType | None = None
"""torch_ops.py, once a torch tensor has come."""

Caller: TypeAlias = Callable[[Row, Arrays, Options, str, Arrays | None, StreamLike | None], Arrays]

CALLERS: Final[dict[type, Caller]] = {}
"""Who calls an op whose first input is of this type, for frameworks that trace programs."""


class Op(Row):
    """A row that can be called."""

    def __call__(
        self,
        inputs: Arrays,
        options: Options,
        dtype: str = "",
        out: Arrays | None = None,
        stream: StreamLike | None = None,
    ) -> Arrays:
        """The results: `out`, or new ones of `dtype`, in the framework of the first input."""
        results: Arrays
        # The host's time counts here. No dictionary by type: torch.compile follows none.
        if _torch_ops is not None and type(inputs[0]) in _torch_ops.PLAIN_TYPES:
            results = _torch_ops.call(self, inputs, options, dtype, out, stream)
            return results
        if is_torch(inputs[0]):
            return _call_by_torch(self, inputs, options, dtype, out, stream)
        for array_type, caller in CALLERS.items():
            if isinstance(inputs[0], array_type):
                return caller(self, inputs, options, dtype, out, stream)
        arrays = inputs + (out or ())
        kind = common_kind(self.name, self.names(), arrays)
        handle = None if stream is None else stream_handle(self.name, stream)
        return self.launch(framework_of(kind, arrays, handle), inputs, options, dtype, out)


def _call_by_torch(
    row: Row,
    inputs: Arrays,
    options: Options,
    dtype: str,
    out: Arrays | None,
    stream: StreamLike | None,
) -> Arrays:
    """For the first tensor, and for those of other types than torch's own."""
    global _torch_ops
    from . import torch_ops

    _torch_ops = torch_ops
    return torch_ops.call(row, inputs, options, dtype, out, stream)
