"""Steps whose ids and slots are on their way from a device, told in the order of their forwards."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._arrays import check_type
from .._capture import Capture
from .._core import Buffer
from ._device import Cuda

Tell = Callable[[Buffer | None, Buffer | None], None]
"""Tells a store of a step: its slots, and its ids; ids None: they are lost; both None: nobody knows
which rows the forward wrote, and Capture.lose_rows() is the answer. The thread that waits."""

# CUDA has no wait with a deadline, so that the thread looks again and again while a copy is on its
# way; rows that come a millisecond later are late for nobody.
_PAUSE_SECONDS = 0.001
_LOOK_AGAIN_SECONDS = 0.2  # for buffers of steps that were given up
_EXIT_SECONDS = 1.0


class Memory:
    """Of one worker: what its routers write, and where copies of it go."""

    def __init__(
        self, device: Cuda, max_rows: int, layers: int, top_k: int, depth: int = 4,
        slots_depth: int = 32,
    ) -> None:  # fmt: skip
        """To be made before the first graph is captured, which keeps the address of `buffer`.
        max_rows: of a forward, padding included. depth: steps whose ids are on their way or are
        read by the store; slots_depth: those whose slots are, 8 bytes a row, so that a step whose
        ids are lost still says which rows it wrote."""
        self.device, self.max_rows, self.layers = device, max_rows, layers
        rows = (max_rows, layers, top_k)
        self.buffer = device.memory(rows, "int16")
        """int16 [max_rows, layers, top_k], on the device."""
        self.buffer.fill_(-1)
        self.ids = [device.memory(rows, "int16") for _ in range(depth)]
        self.host_ids = [device.memory(rows, "int16", pinned=True) for _ in range(depth)]
        slots = (max_rows,)
        self.slots = [device.memory(slots, "int64") for _ in range(slots_depth)]
        self.host_slots = [device.memory(slots, "int64", pinned=True) for _ in range(slots_depth)]


@dataclass(eq=False, slots=True)
class _Entry:
    tell: Tell
    deadline: float = 0.0
    event: Any = None
    slots: int = -1  # the number of its buffer; -1: none
    ids: int = -1


class LateIds:
    """Of one worker. Methods: the engine's thread. A thread in here waits for the device, and it
    alone tells the store anything. It keeps the memory, the store, and what `tell` keeps until it
    is called; after stop() it ends within a millisecond, whatever the device does."""

    def __init__(self, memory: Memory, store: Capture, seconds: float) -> None:
        """seconds: after them a step whose copies are not done is given up: it is told without its
        slots, and its buffers stay reserved until they are done."""
        self._memory, self._device, self._seconds = memory, memory.device, seconds
        check_type("memory", memory.host_ids[0].numpy(), store.shape.num_experts)
        self._ids_read = [store.buffer(ids.numpy()) for ids in memory.host_ids]
        self._slots_read = [store.buffer(slots.numpy()) for slots in memory.host_slots]
        # The engine's thread sets them, and the other unsets them when the store was told.
        self._ids_taken = [False] * len(memory.ids)
        self._slots_taken = [False] * len(memory.slots)
        self._given_up: list[_Entry] = []
        self._stops = False
        self.lost = self.unknown = self.given_up = 0
        """Steps whose ids found no buffer; whose slots found none, or whose forward has thrown;
        whose copies did not come in time."""
        self.failure = ""
        """Why nothing comes from the device any more."""
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        entered = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(entered,), name="waymark-late", daemon=True
        )
        self._thread.start()
        _running.add(self)
        entered.wait(10)  # not while a graph is captured, when its first call could be illegal

    # -- the engine's thread --------------------------------------------------------------------
    def begin(self) -> None:
        """Before the forward of a step, on its stream: what warm-ups and dummy batches left is
        gone, and a layer that stays silent has -1."""
        self._memory.buffer.fill_(-1)

    def issued(self, slots: Any, rows: int, tell: Tell) -> None:
        """Behind the forward of a step, on its stream: its rows are the first so many of the buffer
        and of slots, int64 on the device. Both may be written again at once. slots None: the
        forward has thrown. Does not wait, and does not raise for the device."""
        entry = _Entry(tell, time.monotonic() + self._seconds)
        if slots is not None and not self.failure and rows <= self._memory.max_rows:
            try:
                self._copy(entry, slots, rows)
            except Exception as error:  # what it took stays reserved
                self._fail(error)
                entry.event = None
        self.unknown += entry.event is None
        self.lost += entry.event is not None and entry.ids < 0
        self._queue.put(entry)

    def later(self, tell: Tell) -> None:
        """Calls `tell` behind the steps so far: a schedule without a forward."""
        self._queue.put(_Entry(tell))

    def drain(self, timeout: float) -> bool:
        """Whether everything so far was told within `timeout`."""
        if self._stops:
            return False
        reached = threading.Event()
        self.later(lambda slots, ids: reached.set())
        return reached.wait(timeout)

    def stop(self) -> None:
        """What was not told is not told any more. The thread ends without being waited for."""
        self._stops = True
        self._queue.put(None)

    def close(self, timeout: float) -> bool:
        """Whether everything was told within `timeout`. The thread has ended then; in any case it
        is in no call of the store."""
        told = self.drain(timeout)
        self.stop()
        self._thread.join()
        return told

    def _copy(self, entry: _Entry, slots: Any, rows: int) -> None:
        memory = self._memory
        entry.slots = self._take(self._slots_taken, self._slots_read)
        if entry.slots < 0:
            return
        pairs = [(memory.host_slots[entry.slots], memory.slots[entry.slots], slots)]
        entry.ids = self._take(self._ids_taken, self._ids_read)
        if entry.ids >= 0:
            pairs.append((memory.host_ids[entry.ids], memory.ids[entry.ids], memory.buffer))
        for _, copy, source in pairs:
            copy[:rows].copy_(source[:rows])
        entry.event = self._device.copy([(host[:rows], copy[:rows]) for host, copy, _ in pairs])

    @staticmethod
    def _take(taken: list[bool], read: list[Buffer]) -> int:
        """The number of a buffer that no copy writes and no step reads; -1: none is free."""
        for at, buffer in enumerate(read):
            if not taken[at] and buffer.free:
                taken[at] = True
                return at
        return -1

    # -- the thread that waits ------------------------------------------------------------------
    def _run(self, entered: threading.Event) -> None:
        try:
            self._device.enter_thread()
        except Exception as error:
            self._fail(error)
        entered.set()
        while (entry := self._next()) is not None:
            there = entry.event is not None and self._arrives(entry)
            if self._stops:
                return
            slots = self._slots_read[entry.slots] if there else None
            ids = self._ids_read[entry.ids] if there and entry.ids >= 0 else None
            try:
                entry.tell(slots, ids)
            except Exception as error:
                self._fail(error)
            del entry.tell  # what it keeps may end while a device hangs
            if there:
                self._release(entry)

    def _next(self) -> _Entry | None:
        while True:
            self._reclaim()
            try:
                return self._queue.get(timeout=_LOOK_AGAIN_SECONDS if self._given_up else None)
            except queue.Empty:
                pass

    def _arrives(self, entry: _Entry) -> bool:
        """Waits for the copies. False: they have not come in time, or the device has failed."""
        try:
            while not self._device.done(entry.event):
                if self._stops:
                    return False
                if time.monotonic() > entry.deadline:
                    self.given_up += 1
                    self._given_up.append(entry)
                    return False
                time.sleep(_PAUSE_SECONDS)
        except Exception as error:
            self._fail(error)
            return False
        return True

    def _release(self, entry: _Entry) -> None:
        # Only now that the store was told: `free` says from here on whether it reads the ids.
        self._slots_taken[entry.slots] = False
        if entry.ids >= 0:
            self._ids_taken[entry.ids] = False

    def _reclaim(self) -> None:
        try:
            for entry in [one for one in self._given_up if self._device.done(one.event)]:
                self._given_up.remove(entry)
                self._release(entry)
        except Exception as error:
            self._fail(error)
            self._given_up.clear()

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or f"{type(error).__name__}: {error}"


_running: weakref.WeakSet[LateIds] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """CPython before 3.14 unwinds the stack of a daemon thread that comes back from a call without
    the GIL when the interpreter ends. Within torch that ends the process, by std::terminate."""
    every = list(_running)
    for ids in every:
        ids.stop()
    for ids in every:
        ids._thread.join(_EXIT_SECONDS)  # not for ever: the device may hang
