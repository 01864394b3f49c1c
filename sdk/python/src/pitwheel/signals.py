"""SIGINT and SIGTERM stop the workers of the process."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Signals:
    """The signals of an event loop, which has one handler for each: it stops all workers that run in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stops: list[Callable[[], None]] = []
        self._loop = loop
        self._found: dict[signal.Signals, Any] = {}

    def take(self) -> None:
        # Not possible outside the main thread and on Windows.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in SIGNALS:
                # Another handler of the loop is replaced and not restored: it cannot be read.
                had_handler = self._loop.remove_signal_handler(number)
                found = None if had_handler else signal.getsignal(number)
                self._loop.add_signal_handler(number, self._stop_all)
                self._found[number] = found

    def leave(self) -> None:
        for number, found in self._found.items():
            self._loop.remove_signal_handler(number)
            if found is not None:
                signal.signal(number, found)

    def _stop_all(self) -> None:
        for stop in self.stops:
            stop()


_of_loops: dict[asyncio.AbstractEventLoop, _Signals] = {}


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at SIGINT and SIGTERM. Has no effect outside the main thread and on Windows."""
    loop = asyncio.get_running_loop()
    signals = _of_loops.get(loop)
    if signals is None:
        signals = _of_loops[loop] = _Signals(loop)
        signals.take()
    signals.stops.append(stop)
    try:
        yield
    finally:
        signals.stops.remove(stop)
        if not signals.stops:
            del _of_loops[loop]
            signals.leave()
