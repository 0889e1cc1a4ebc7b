"""A device whose copies come late, and graphs of what was done there: what waymark.late and the
tests need of torch, on numpy. Mistakes that waymark.late could have."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from waymark import late

SPOILED = 120  # an id, and a slot; nothing that the tests expect


class Array(np.ndarray):  # type: ignore[type-arg]
    """A tensor as far as waymark and the tests look."""

    device: Any = None  # of the device, not of the host

    def fill_(self, value: int) -> None:
        self[...] = value

    def copy_(self, source: Any) -> None:
        Graph.call(partial(np.copyto, self, np.asarray(source), casting="unsafe"))

    def numpy(self) -> Any:
        return self.view(np.ndarray)

    def cpu(self) -> Any:
        return self.copy()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        given = [np.asarray(one) if isinstance(one, Array) else one for one in inputs]
        if Graph.captured is None or method != "__call__":
            return getattr(ufunc, method)(*given, **more)
        made = Graph.captured.memory(ufunc(*given))
        Graph.call(partial(ufunc, *given, out=made))
        return made.view(Array)


def array(shape: Any, dtype: Any) -> Array:
    return np.full(shape, SPOILED, dtype).view(Array)


class Graph:
    """The operators of a forward, run once and recorded. They run again on the same memory, without
    Python. What they make lies in memory that all graphs share, and is spoiled behind them."""

    captured: Graph | None = None
    pool: list[Any] = []

    def __init__(self, forward: Callable[[], None]) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.made = 0
        Graph.captured = self
        try:
            forward()
        finally:
            Graph.captured = None
            self.spoil()

    @classmethod
    def call(cls, function: Callable[[], Any]) -> None:
        if cls.captured is not None:
            cls.captured.calls.append(function)
        function()

    def memory(self, like: Any) -> Any:
        if self.made == len(self.pool):
            self.pool.append(np.empty(1 << 12, np.uint8))
        self.made += 1
        return self.pool[self.made - 1][: like.nbytes].view(like.dtype).reshape(like.shape)

    def spoil(self) -> None:
        for memory in self.pool[: self.made]:
            memory.fill(SPOILED)

    def replay(self) -> None:
        for call in self.calls:
            call()
        self.spoil()


class Numpy:
    """What the engine of the tests does on a device. (tests/gpu/late_ids.py: with torch)"""

    full = staticmethod(array)
    graph = Graph
    eager = Graph  # what it makes is spoiled, too

    @staticmethod
    def put(target: Array, values: Any) -> None:
        target[: len(values)] = values

    @staticmethod
    def work() -> None:
        """Between two layers."""


class _Copies:
    def __init__(self, looks: int, pairs: list[tuple[Any, Any]]) -> None:
        self.looks, self.pairs = looks, pairs


class LateDevice:
    """A copy to the host is done some looks later than it was asked for. Until then the host's
    memory is spoiled; then its source is, which nobody may need any more. What the engine itself
    does to memory of the device happens at once."""

    make: Callable[[Any, Any], Any] = staticmethod(array)

    def __init__(self, index: int = 0, seed: int = 1, most_looks: int = 3) -> None:
        self.index, self.most_looks = index, most_looks
        self.in_order = True
        """Copies are done in the order in which they were asked for, as on one stream."""
        self.held = False
        """Nothing is done while it is."""
        self.error: Exception | None = None
        """Of every look from now on."""
        self.entered: int | None = None
        self.random = random.Random(seed)
        self._lock = threading.Lock()
        self._copies: list[_Copies] = []

    def memory(self, shape: tuple[int, ...], dtype: str, pinned: bool = False) -> Any:
        return self.make(shape, dtype)

    def copy(self, pairs: Sequence[tuple[Any, Any]]) -> Any:
        for host, _ in pairs:
            host.fill_(SPOILED)
        with self._lock:
            event = _Copies(self.random.randint(0, self.most_looks), list(pairs))
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
            for copies in self._copies.copy():
                if self.held:
                    return
                if copies.looks > 0:
                    copies.looks -= 1
                    if self.in_order:
                        return
                    continue
                for host, source in copies.pairs:
                    host[...] = source
                    source.fill_(SPOILED)
                self._copies.remove(copies)

    def enter_thread(self) -> None:
        self.entered = threading.get_ident()

    @property
    def pending(self) -> int:
        return len(self._copies)


MISTAKES = ("no copy on the device", "used again early", "no event", "out of order", "not reset",
            "reset behind the step")  # fmt: skip


class Mistake(late.LateIds):
    """LateIds with one of them, or none."""

    what = ""
    _held: Any = None

    def begin(self) -> None:
        if self.what not in ("not reset", "reset behind the step"):
            super().begin()

    def issued(self, slots: Any, rows: int, tell: Any) -> None:
        super().issued(slots, rows, tell)
        if self.what == "reset behind the step":  # a dummy batch before the next one is in it
            self._memory.buffer.fill_(-1)

    def _copy(self, entry: Any, slots: Any, rows: int) -> None:
        if self.what != "no copy on the device":
            return super()._copy(entry, slots, rows)
        entry.slots = self._take(self._slots_taken, self._slots_read)
        entry.ids = self._take(self._ids_taken, self._ids_read)
        if entry.slots >= 0 and entry.ids >= 0:
            entry.event = self._device.copy([
                (self._memory.host_slots[entry.slots][:rows], slots[:rows]),
                (self._memory.host_ids[entry.ids][:rows], self._memory.buffer[:rows]),
            ])  # fmt: skip

    def _take(self, taken: list[bool], read: Any) -> int:
        if self.what != "used again early":
            return super()._take(taken, read)
        taken[0] = True
        return 0

    def _arrives(self, entry: Any) -> bool:
        return self.what == "no event" or super()._arrives(entry)

    def _next(self) -> Any:
        entry, self._held = self._held, None
        if entry is None:
            entry = super()._next()
            if self.what == "out of order" and entry is not None and entry.event is not None:
                self._held, entry = entry, super()._next()
        return entry
