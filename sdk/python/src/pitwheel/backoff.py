"""How long to wait before trying again."""

import random


class Backoff:
    """Doubles from `first` to `longest` seconds, each spread by half, so that workers do not come back all at once."""

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
