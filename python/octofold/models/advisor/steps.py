"""The steps of a long run, for a progress bar."""

from ..._core.progress import Progress


class Steps:
    """Tells a caller how many steps are done, of how many."""

    def __init__(self, progress: Progress | None, layers: int) -> None:
        self._progress = progress
        self._done, self._total = 0, layers + 3
        self._tell()

    def add(self, steps: int) -> None:
        """More came to be known of."""
        self._total += steps

    def step(self) -> None:
        """One is done."""
        self._done += 1
        self._tell()

    def done(self) -> None:
        """All are."""
        self._done = self._total
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))
