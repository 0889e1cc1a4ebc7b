"""The rows of KV slots, of an engine that knows its KV by slots: slot // block_tokens is the block.

What happens to slots (allocations, copies to a host pool and back, a flush) waits for the next
forward that is launched, and the store is told of it when the ids of that forward land. So it is
told everything in order by engines, too, that allocate for forward N + 1 before the ids of forward
N have come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._capture import Capture, Taken
from ._hooks import Part, ends, guarded
from ._versions import WeightVersions

Integers = npt.NDArray[np.int64]
_READ_SECONDS = 5.0
_UNKNOWN = 1 << 62  # and a block: a key that no block was sealed with


class Event(NamedTuple):
    """What happened to slots."""

    what: str  # bind, seal or reset
    slots: Any  # a tensor, maybe on the device
    keys: Integers | None = None  # of the blocks that begin in them


class Launch(NamedTuple):
    """A forward that was launched, and what happened before it."""

    number: int
    version: int
    events: list[Event]

    def copied(self, copy: Callable[[Any], Any]) -> Launch:
        """With the slots of the events copied to the host."""
        events = [event._replace(slots=copy(event.slots)) for event in self.events]
        return self._replace(events=events)


class HostKeys:
    """Keys of the blocks of a host pool, under which the store finds the rows of the KV in them. A
    block that KV is written to from the device gets one, which ends when the block is allocated
    again: KV that comes there from elsewhere has no rows."""

    def __init__(self, slots: int, block_tokens: int) -> None:
        self._block_tokens, self._next = block_tokens, 1
        self._keys = np.zeros(slots // block_tokens + 1, np.int64)

    def _blocks(self, slots: Any) -> Integers:
        first = slots.cpu().numpy()[:: self._block_tokens]
        return np.asarray(first, np.int64) // self._block_tokens

    def allocated(self, slots: Any) -> None:
        """Slots of the pool have a new owner, whose KV is not known."""
        self._keys[self._blocks(slots)] = 0

    def written(self, slots: Any) -> Integers:
        """KV goes from the device to slots of the pool: keys to seal its blocks with."""
        blocks = self._blocks(slots)
        self._keys[blocks] = np.arange(self._next, self._next + len(blocks))
        self._next += len(blocks)
        return self._keys[blocks]

    def loaded(self, slots: Any) -> Integers:
        """KV goes from slots of the pool to the device: keys to bind its blocks with."""
        blocks = self._blocks(slots)
        return np.where(self._keys[blocks] != 0, self._keys[blocks], _UNKNOWN + blocks)


class Slots(Part):
    """The store of an engine's slots. One thread at a time; nothing but open() raises."""

    def __init__(self) -> None:
        self.store: Capture | None = None
        self.weights, self._weights, self._version = WeightVersions(), (0, ""), 0
        self._updates = self._launched = self._landed = self._failed = 0
        self._pending: list[Event] = []
        self._block_tokens = 1

    def open(self, block_tokens: int, **arguments: Any) -> None:
        """Makes the store. arguments: of Capture. Block 0 is padding."""
        self._block_tokens = block_tokens
        self.store = Capture(block_tokens=block_tokens, null_blocks=[0], **arguments)

    def close(self) -> None:
        """Ends the store."""
        if self.store is not None:
            self.store.close()
            self.store = None

    def fail(self, error: BaseException) -> None:
        """Ends the capture until a reset that happens after this: slots have no past then."""
        self._failed = self._launched
        self._pending.clear()
        super().fail(error)

    def happened(self, what: str, slots: Any, keys: Integers | None = None) -> None:
        """An event, behind those before it. slots: None if the call that gives them has failed."""
        if slots is not None and (len(slots) or what == "reset"):
            self._pending.append(Event(what, slots, keys))

    def updated(self) -> None:
        """Weights are about to change."""
        self._updates += 1

    @ends
    def launch(self, weights: str) -> Launch:
        """Of a forward, under weights of this name: in the order in which forwards run."""
        if self._weights != (self._updates, weights):
            self._weights, new = (self._updates, weights), weights not in self.weights.names
            self._version = self.weights.number(weights) if new else self.weights.unnamed()
        events, self._pending = self._pending, []
        self._launched += 1
        return Launch(self._launched, self._version, events)

    @ends
    def land(self, launch: Launch, slots: Integers, ids: npt.NDArray[Any]) -> None:
        """The ids of a forward are on the host, and what happened before it: in the order of
        launches. slots: [rows]; ids: [rows, captured layers, K]."""
        expected, self._landed = self._landed + 1, launch.number
        if launch.number != expected and not self.failure:
            raise RuntimeError("a forward has no output: nobody knows which KV it wrote")
        if self.store is None:
            return
        for event in launch.events:
            self._tell(self.store, launch, event)
        if not self.failure:
            slots = np.where(slots < self._block_tokens, -1, slots)
            self.store.step(None, launch.version, slots, ids)

    def _tell(self, store: Capture, launch: Launch, event: Event) -> None:
        if event.what == "reset":
            if self.failure and launch.number > self._failed:
                self.log.warning("waymark: capture begins again: the cache was flushed")
                self.failure = ""
            store.reset()
        elif not self.failure:
            slots = event.slots.cpu().numpy()
            blocks = slots[slots % self._block_tokens == 0] // self._block_tokens
            if event.what == "bind":
                store.bind(blocks, event.keys)
            elif store.last_step:  # else no block has rows
                store.seal(blocks, event.keys, store.last_step)

    @guarded
    def take(self, slots: Integers) -> Taken | None:
        """The rows of a sequence in these slots, which may begin within a block, once the forwards
        that wrote them have landed. A thread of the library reads them."""
        if self.store is None or not len(slots):
            return None
        size, count = self._block_tokens, len(slots)
        first = int(slots[0]) % size
        starts = np.concatenate([[0], np.arange(size - first, count, size)])
        blocks, at = slots[starts] // size, np.arange(first, first + count)
        if (blocks[at // size] * size + at % size != slots).any():
            raise RuntimeError("slots of a request are not in blocks")
        return self.store.take(blocks, first + count, first)

    def read(
        self, begin: int, out: npt.NDArray[Any], columns: Any, taken: Taken | None
    ) -> tuple[list[list[Any]], list[list[Any]]]:
        """Rows [begin, begin + len(out)) of a sequence into out, integers [rows, layers, K], which
        is -1: captured layers into these columns, 0 into the others of rows that are there. Returns
        [begin, end, reason] of those that are missing, and [begin, end, name of the weights] of
        the others."""
        missing, weights, why = [], [], self.failure or "nothing was captured"
        try:
            rows = taken.result(_READ_SECONDS) if taken is not None else None
        except Exception as error:
            rows, why = None, str(error)
        if rows is not None:
            out[rows.valid] = 0
            out[:, columns] = rows.astype(np.int32, fill="minus_one")
            for run in rows.coverage(self.weights):
                place = run.begin + begin - rows.first, run.end + begin - rows.first
                weights += [[*place, run.version_name]] if run.valid else []
                missing += [[*place, run.why]] if not run.valid else []
        elif len(out):
            missing = [[begin, begin + len(out), why]]
        return missing, weights
