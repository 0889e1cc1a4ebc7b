"""A device whose copies come late: what waymark.late needs of one, and what torch's tensors need to
do there, on numpy."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

SPOILED = 120  # nothing that the tests expect


class Array(np.ndarray):  # type: ignore[type-arg]
    """A tensor as far as waymark looks."""

    device: Any = None  # of the device, not of the host
    recorded: list[tuple[Any, Any]] | None = None
    """While a graph is captured: its copies."""

    def fill_(self, value: int) -> None:
        self[...] = value

    def copy_(self, source: Any) -> None:
        self[...] = source
        if Array.recorded is not None:
            Array.recorded.append((self, source))

    def numpy(self) -> Any:
        return self.view(np.ndarray)

    def cpu(self) -> Any:
        return self.copy()


def array(shape: Any, dtype: Any) -> Array:
    return np.full(shape, SPOILED, dtype).view(Array)


class _Copies:
    def __init__(self, looks: int, pairs: list[tuple[Any, Any]]) -> None:
        self.looks, self.pairs = looks, pairs


class LateDevice:
    """A copy to the host is done some looks later than it was asked for, in order. Until then the
    host's memory is spoiled; then its source is, which nobody may need any more. What the engine
    itself does to memory of the device happens at once."""

    def __init__(self, index: int = 0, seed: int = 1, most_looks: int = 3) -> None:
        self.index, self.most_looks = index, most_looks
        self.held = False
        """Nothing is done while it is."""
        self.error: Exception | None = None
        """Of every look from now on."""
        self.entered: int | None = None
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._copies: list[_Copies] = []

    def memory(self, shape: tuple[int, ...], dtype: str, pinned: bool = False) -> Array:
        return array(shape, dtype)

    def copy(self, pairs: Sequence[tuple[Any, Any]]) -> Any:
        for host, _ in pairs:
            host.fill_(SPOILED)
        with self._lock:
            event = _Copies(self._random.randint(0, self.most_looks), list(pairs))
            self._copies.append(event)
        return event

    def done(self, event: Any) -> bool:
        assert self.entered == threading.get_ident()
        if self.error is not None:
            raise self.error
        self.look()
        return event not in self._copies

    def look(self) -> None:
        """Time passes."""
        with self._lock:
            while self._copies and not self.held:
                if self._copies[0].looks > 0:
                    self._copies[0].looks -= 1
                    break
                for host, source in self._copies[0].pairs:
                    host[...] = source
                    source.fill_(SPOILED)
                self._copies.pop(0)

    def enter_thread(self) -> None:
        self.entered = threading.get_ident()

    @property
    def pending(self) -> int:
        return len(self._copies)
