"""Delays between retries of a failed call."""

import random


class Backoff:
    """Delays that double from `first` to `longest` seconds.

    Each is multiplied by a random factor from 0.5 to 1, so that many workers do not reconnect at the same moment.
    """

    def __init__(self, first: float = 0.1, longest: float = 5.0) -> None:
        self.first = first
        self.longest = longest
        self._next = first

    def next(self) -> float:
        pause = self._next
        self._next = min(pause * 2, self.longest)
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._next = self.first
