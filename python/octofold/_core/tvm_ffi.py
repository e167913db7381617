"""tvm-ffi, imported when something of it is first used: it imports torch where torch is installed,
which takes longer than all the rest, and `import octofold` shall cost what Octofold needs.

At its import tvm-ffi also asks torch.cuda.is_available(). That asks the CUDA runtime, which starts
the driver; from then on children by fork can use no GPU. Where PYTORCH_NVML_BASED_CUDA_CHECK is 1,
torch asks the management library instead and leaves the driver alone
(https://docs.pytorch.org/docs/stable/cuda_environment_variables.html).

What evaluates `tvm_ffi.Tensor` loads it, annotations too: write those as strings.
"""

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from .versions import require

__all__ = ["tvm_ffi"]

_VARIABLE: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextlib.contextmanager
def _cuda_untouched() -> Iterator[None]:
    if _VARIABLE in os.environ:  # the user has decided
        yield
        return
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)  # several threads may be here


class _TvmFfi:
    """The module's attributes, each bound here at its first use."""

    def __getattr__(self, name: str) -> Any:
        with _cuda_untouched():
            module = importlib.import_module("tvm_ffi")
        require("apache-tvm-ffi", module.__version__)
        value = getattr(module, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import tvm_ffi
else:
    tvm_ffi: Final = _TvmFfi()
