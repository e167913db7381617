"""Progress of long runs inside the library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]


@contextmanager
def reporting(progress: Progress | None) -> Iterator[Progress]:
    """Yields the callback to hand to the library, while the block runs, in place of `progress`.

    It is called even without one: Python handles an interrupt (Ctrl-C) in it. What `progress`
    raises leaves the block as it is, of whatever class, and not as its image behind C++.
    """
    raised: list[BaseException] = []

    def report(done: int, total: int) -> None:
        try:
            if progress is not None:
                progress(done, total)
        except BaseException as error:
            raised.append(error)
            raise

    try:
        yield report
    except BaseException:
        if raised:
            raise raised[0] from None
        raise
