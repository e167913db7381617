"""Parameters as they were."""

from typing import NamedTuple

from torch import Tensor


class Version(NamedTuple):
    """A parameter as it was when casts were made of it: by torch's count of writes, and where it
    was in memory."""

    parameter: Tensor
    version: int
    address: int

    @staticmethod
    def of(parameter: Tensor) -> "Version":
        return Version(parameter, parameter._version, parameter.data_ptr())

    def is_current(self) -> bool:
        parameter = self.parameter
        return parameter._version == self.version and parameter.data_ptr() == self.address
