"""Parameters as they were."""

from typing import NamedTuple

from torch import Tensor


class Version(NamedTuple):
    """A parameter as it was when casts were made of it: by torch's count of writes, and by the
    memory that it had."""

    parameter: Tensor
    version: int
    address: int
    memory: Tensor
    """Held, so that no other weight gets it, and the address with it."""

    @staticmethod
    def of(parameter: Tensor) -> "Version":
        return Version(parameter, parameter._version, parameter.data_ptr(), parameter.data)

    def is_current(self) -> bool:
        return self.parameter._version == self.version and not self.has_moved()

    def has_moved(self) -> bool:
        """True if the parameter has other memory, or reads the same in another way."""
        now, then = self.parameter, self.memory
        if now.data_ptr() != self.address or now.dtype != then.dtype:
            return True
        return not (now.is_meta or now.is_set_to(then)) or now.is_neg() != then.is_neg()
