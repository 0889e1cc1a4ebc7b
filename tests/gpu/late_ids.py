"""Expert ids of an engine on a device, reported late and in order: a prototype.

The routers write a buffer on the device, inside CUDA graphs. Behind each forward it is copied into
one of a few entries on the device, from there into pinned memory, and a thread tells the store of
it when the copies are done. The engine's thread waits for nothing: a step that finds no entry loses
its ids.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Any

import torch
import waymark


class CudaDevice:
    """What LateIds needs of a device: this one, or one of a test."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)
        self._issued = torch.cuda.Event()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def event(self) -> Any:
        # The thread that waits sleeps: a core that spins is the engine's loss.
        return torch.cuda.Event(blocking=True)

    def copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]], event: Any) -> None:
        """(pinned, device) each, behind what the current stream has been given so far; records the
        event behind them."""
        self._issued.record(torch.cuda.current_stream(self.device))
        self._stream.wait_event(self._issued)
        with torch.cuda.stream(self._stream):
            for host, source in pairs:
                host.copy_(source, non_blocking=True)
            event.record(self._stream)

    def enter_thread(self) -> None:
        # A fresh thread is on GPU 0, and would make a context there.
        torch.cuda.set_device(self.device)

    def wait(self, event: Any) -> None:
        event.synchronize()


@dataclass
class Entry:
    number: int = 0  # 0: a schedule without a forward
    version: int = 0
    rows: int = 0
    message: bytes | None = None
    ids: int = -1  # of the ring; -1: lost
    slots: int = -1  # of the ring; -1: nobody knows which rows the step wrote
    reached: threading.Event | None = None  # of drain()


class LateIds:
    """Of one worker. begin, issued and schedule: the engine's thread. Only the thread in here tells
    the capture anything."""

    def __init__(
        self, capture: waymark.Capture, device: Any, max_rows: int, layers: int, top_k: int,
        depth: int = 4, slots_depth: int = 32,
    ) -> None:  # fmt: skip
        """Before the first graph is captured: the address of `buffer` is in the graphs. depth:
        steps whose ids are on their way. slots_depth: those whose slots are; 8 bytes a row, so that
        a step whose ids are lost still says which rows it wrote."""
        self._capture, self._device, self._max_rows = capture, device, max_rows
        ids, slots = (depth, max_rows, layers, top_k), (slots_depth, max_rows)
        # A tensor that inference mode makes could not be written outside of it.
        with torch.inference_mode(False):
            self.buffer = torch.full(ids[1:], -1, dtype=torch.int16, device=device.device)
            self._ids = torch.empty(ids, dtype=torch.int16, device=device.device)
            self._slots = torch.empty(slots, dtype=torch.int64, device=device.device)
            self._host_ids = device.pinned(ids, torch.int16)
            self._host_slots = device.pinned(slots, torch.int64)
        self._ids_read = [capture.buffer(ids.numpy()) for ids in self._host_ids]
        self._slots_read = [capture.buffer(slots.numpy()) for slots in self._host_slots]
        self._events = [device.event() for _ in range(slots_depth)]
        # Set by the engine's thread, and unset by the other when the store has been told.
        self._ids_busy, self._slots_busy = [False] * depth, [False] * slots_depth
        self._next_ids = self._next_slots = 0
        self.lost = self.unknown = self.refused = 0
        """Steps without ids; steps of which not even the rows were known, each of which cost all
        rows of the store; calls that the store refused."""
        self.failure = ""
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._entered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waymark-late", daemon=True)
        self._thread.start()
        # Not while a graph is captured, when calls of other threads can be illegal.
        self._entered.wait(10)

    # -- the engine's thread --------------------------------------------------------------------
    def begin(self, rows: int) -> None:
        """Before each forward that is a step, on its stream. Not after it: what other forwards
        (warm-up, dummy batches) leave is gone then, too."""
        self.buffer[:rows].fill_(-1)

    def issued(
        self, number: int, version: int, slots: torch.Tensor, rows: int, message: bytes | None
    ) -> str:
        """Behind the forward, on its stream: the first `rows` rows of the buffer and of `slots` are
        of the step. Returns "captured", "lost" (its ids) or "unknown" (its slots, too)."""
        entry = Entry(number, version, rows, message)
        if not self.failure and rows <= self._max_rows and self._slots_free(self._next_slots):
            self._issue(entry, slots)
        if entry.ids < 0:
            self.lost += entry.slots >= 0
            self.unknown += entry.slots < 0
        self._queue.put(entry)
        return "captured" if entry.ids >= 0 else "lost" if entry.slots >= 0 else "unknown"

    def schedule(self, message: bytes) -> None:
        """A schedule without a forward."""
        self._queue.put(Entry(message=message))

    def drain(self, timeout: float) -> bool:
        """Whether the store was told everything within `timeout`."""
        reached = threading.Event()
        self._queue.put(Entry(reached=reached))
        return reached.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Whether the thread has ended. If not, a device hangs; the thread keeps the memory."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _ids_free(self, at: int) -> bool:
        return not self._ids_busy[at] and self._ids_read[at].free

    def _slots_free(self, at: int) -> bool:
        return not self._slots_busy[at]  # the store copies slots when it is told of them

    def _issue(self, entry: Entry, slots: torch.Tensor) -> None:
        rows, entry.slots = entry.rows, self._next_slots
        self._next_slots = (entry.slots + 1) % len(self._slots_busy)
        self._slots_busy[entry.slots] = True
        sources = [(slots, self._slots[entry.slots], self._host_slots[entry.slots])]
        if self._ids_free(self._next_ids):
            entry.ids = self._next_ids
            self._next_ids = (entry.ids + 1) % len(self._ids_busy)
            self._ids_busy[entry.ids] = True
            sources.append((self.buffer, self._ids[entry.ids], self._host_ids[entry.ids]))
        self._copy(sources, rows, self._events[entry.slots])

    def _copy(self, sources: list[tuple[torch.Tensor, ...]], rows: int, event: Any) -> None:
        # The next forward may overwrite what the routers wrote, and the slots, at once.
        for source, copy, _ in sources:
            copy[:rows].copy_(source[:rows])
        self._device.copy([(host[:rows], copy[:rows]) for _, copy, host in sources], event)

    # -- the thread that waits ------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._device.enter_thread()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        self._entered.set()
        while (entry := self._next()) is not None:
            if entry.reached is not None:
                entry.reached.set()
                continue
            if entry.slots >= 0 and not self.failure:
                try:
                    self._device.wait(self._events[entry.slots])
                except Exception as error:
                    self.failure = f"{type(error).__name__}: {error}"
            try:
                self._tell(entry)
            except Exception:
                self.refused += 1
                self._lose_all()
            # In this order with the step: `free` says from here on whether the store reads the ids.
            if entry.slots >= 0:
                self._slots_busy[entry.slots] = False
            if entry.ids >= 0:
                self._ids_busy[entry.ids] = False

    def _next(self) -> Entry | None:
        return self._queue.get()

    def _lose_all(self) -> None:
        # A step has written over rows, and nobody knows over which.
        try:
            self._capture.reset()
        except waymark.WaymarkError as error:  # it is closed: nobody reads it any more
            self.failure = self.failure or f"{type(error).__name__}: {error}"

    def _tell(self, entry: Entry) -> None:
        if entry.slots < 0 or self.failure:
            if entry.message is not None:
                self._capture.report_message(entry.message)
            if entry.number:
                self._lose_all()
            return
        slots = self._slots_read[entry.slots]
        ids = self._ids_read[entry.ids] if entry.ids >= 0 else None
        message = entry.message
        try:
            self._capture.step(
                entry.number, entry.version, slots, ids, count=entry.rows, message=message
            )
        except waymark.WaymarkError:
            if message is None:
                raise
            # The message was refused, and the store is poisoned: the step is told without it.
            self.refused += 1
            self._capture.step(entry.number, entry.version, slots, ids, count=entry.rows)
