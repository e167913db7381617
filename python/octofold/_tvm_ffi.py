"""tvm-ffi, imported without touching CUDA, so that the process may still fork.

At its import tvm-ffi asks torch.cuda.is_available(). That asks the CUDA runtime, which starts the
driver; from then on children by fork can use no GPU. Where PYTORCH_NVML_BASED_CUDA_CHECK is 1,
torch asks the management library instead and leaves the driver alone
(https://docs.pytorch.org/docs/stable/cuda_environment_variables.html).
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

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
        del os.environ[_VARIABLE]


with _cuda_untouched():
    import tvm_ffi
