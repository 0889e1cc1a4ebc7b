"""waymark.late: steps whose ids are on their way from a device, which a test is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import waymark
from late_device import SPOILED, LateDevice, array
from waymark import late
from waymark.late import _late_ids

L, K, E, ROWS = 2, 1, 128, 8


class Rig:
    """A store of one slot a row, and steps that write it: the ids of slot s in step n are n + s."""

    def __init__(self, depth: int = 4, slots_depth: int = 8, seconds: float = 60.0) -> None:
        self.device = LateDevice()
        self.memory = late.Memory(self.device, ROWS, L, K, depth, slots_depth)
        self.slots = array(ROWS, np.int64)
        self.store = waymark.Capture(
            num_layers=L, top_k=K, num_experts=E, num_blocks=8, page_tokens=4, max_step_rows=ROWS,
            max_steps_in_flight=64,
        )  # fmt: skip
        self.store.bind(list(range(8)))
        self.late = late.LateIds(self.memory, self.store, seconds)
        self.step = 0
        self.told: list[tuple[int, bool, bool]] = []

    def issue(self, *slots: int, silent: bool = False) -> None:
        self.step = number = self.step + 1
        self.late.begin()
        self.slots[: len(slots)] = slots
        for layer in range(L - silent):
            self.memory.buffer[: len(slots), layer, 0] = np.array(slots) + number
        self.late.issued(self.slots, len(slots), lambda *given: self.tell(number, len(slots), *given))
        self.slots.fill_(SPOILED)  # the next step's, or the drafter's

    def follow(self) -> None:
        """The engine runs two steps ahead, and not more."""
        deadline = time.monotonic() + 5
        ids = self.late._ids_read
        while self.device.pending > 2 or sum(not buffer.free for buffer in ids) + sum(
            self.late._ids_taken) > 2:  # fmt: skip
            assert time.monotonic() < deadline
            self.device.look()
            time.sleep(1e-4)

    def tell(self, number: int, rows: int, slots: Any, ids: Any) -> None:
        self.told.append((number, slots is not None, ids is not None))
        if slots is None:
            late.lose_rows(self.store)
        else:
            self.store.step(number, 1, slots, ids, count=rows)

    def rows(self) -> Any:
        """What the store has, of all 32 slots; -1: missing."""
        assert self.late.drain(10)
        rows = self.store.take(list(range(8)), 32).result(10)
        return np.where(rows.valid, rows.astype(np.int16, layout="TLK")[:, 0, 0], -1)


@pytest.fixture(autouse=True)
def rigs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rig]]:
    monkeypatch.setattr(_late_ids, "_PAUSE_SECONDS", 1e-4)
    monkeypatch.setattr(_late_ids, "_LOOK_AGAIN_SECONDS", 1e-3)
    made: list[Rig] = []

    def make(*args: Any, **more: Any) -> Rig:
        made.append(Rig(*args, **more))
        return made[-1]

    yield make
    for rig in made:
        rig.device.held = False
        rig.late.close(10)
        rig.store.close()


def test_steps_are_told_in_order_with_their_own_ids(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    for n in range(40):
        rig.follow()
        rig.issue(*range(n % 4 * 8, n % 4 * 8 + 1 + n % 8))
    assert rig.late.drain(10) and [told[0] for told in rig.told] == list(range(1, 41))
    assert not rig.late.lost and not rig.late.unknown and not rig.late.given_up
    rows = rig.rows()
    expected = np.full(32, -1)
    for n in range(40):
        for slot in range(n % 4 * 8, n % 4 * 8 + 1 + n % 8):
            expected[slot] = n + 1 + slot
    assert (rows == expected).all()


def test_a_step_that_finds_no_buffer_loses_its_ids_and_no_others(rigs: Callable[..., Rig]) -> None:
    rig = rigs(depth=2)
    rig.issue(0, 1, 2)
    assert rig.rows()[:3].tolist() == [1, 2, 3]
    rig.device.held = True
    begin = time.monotonic()
    for slot in (10, 11, 0):
        rig.issue(slot)
    assert time.monotonic() - begin < 1 and rig.late.lost == 1
    rig.device.held = False
    assert rig.rows()[[10, 11, 0, 1, 2]].tolist() == [12, 14, -1, 2, 3]


def test_a_step_whose_slots_find_no_buffer_costs_all_rows(rigs: Callable[..., Rig]) -> None:
    rig = rigs(slots_depth=1)
    rig.issue(0)
    rig.rows()
    rig.device.held = True
    rig.issue(1)
    rig.issue(2)
    rig.device.held = False
    assert (rig.rows() == -1).all() and rig.late.unknown == 1
    rig.issue(3)
    assert rig.rows()[3] == 3 + 4
    rig.store.release(list(range(8)))  # blocks have kept their users
    rig.store.wait_idle(10)
    assert rig.store.stats().releases_below_zero == 0


def test_a_silent_layer_is_missing_whatever_was_there_before(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    rig.issue(*range(8))
    rig.issue(8, silent=True)
    assert rig.rows()[8] == -1 and rig.rows()[7] == 8


def test_schedules_without_a_forward_come_in_their_turn(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    rig.device.held = True
    rig.issue(0)
    rig.late.later(lambda slots, ids: rig.told.append((99, False, False)))
    rig.issue(1)
    time.sleep(0.01)
    assert not rig.told
    rig.device.held = False
    assert rig.late.drain(10) and [told[0] for told in rig.told] == [1, 99, 2]


def test_an_idle_engine_needs_no_next_step(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    rig.issue(0)
    while not rig.told:
        time.sleep(1e-3)
    assert rig.told == [(1, True, True)]


def test_a_forward_that_throws_costs_all_rows(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    rig.issue(0)
    rig.late.issued(None, 0, lambda *given: rig.tell(2, 0, *given))
    assert (rig.rows() == -1).all() and rig.told[1] == (2, False, False)


def test_a_step_in_time_is_told_and_one_that_is_given_up_keeps_its_buffers(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(depth=1, seconds=0.05)
    rig.device.held = True
    rig.issue(0)
    assert rig.late.drain(10) and rig.told == [(1, False, False)] and rig.late.given_up == 1
    rig.issue(1)  # the copy of step 1 still goes into the one buffer
    assert rig.late.lost == 1 and rig.late.drain(10)
    rig.device.held = False
    deadline = time.monotonic() + 10
    while any(rig.late._slots_taken):
        assert time.monotonic() < deadline
        time.sleep(1e-3)
    rig.issue(2)
    assert rig.rows()[[0, 1, 2]].tolist() == [-1, -1, 5]


@pytest.mark.parametrize("where", ["done", "copy"])
def test_an_error_of_the_device_ends_it_and_raises_nowhere(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    rig = rigs()
    rig.issue(0)
    rig.rows()
    if where == "done":
        rig.device.error = RuntimeError("a test")
    else:
        monkeypatch.setattr(rig.device, "copy", lambda pairs: 1 / 0)
    rig.issue(1)
    rig.issue(2)
    assert rig.late.drain(10) and rig.late.failure and rig.told[1:] == [
        (2, False, False), (3, False, False)]  # fmt: skip
    assert (rig.rows() == -1).all()


def test_its_thread_ends_while_the_device_hangs(rigs: Callable[..., Rig]) -> None:
    """And keeps nothing of the engine's."""
    rig = rigs()
    rig.device.held = True
    rig.issue(0)
    rig.issue(1)
    begin = time.monotonic()
    assert not rig.late.close(0.05) and time.monotonic() - begin < 5
    assert not rig.told and not rig.late.drain(0.1)
    assert "waymark-late" not in {
        thread.name for thread in threading.enumerate() if thread is rig.late._thread
    }


class Mistake(late.LateIds):
    """LateIds with one of them."""

    what = ""

    def begin(self) -> None:
        if self.what not in ("not reset", "reset behind the step"):
            super().begin()

    def issued(self, slots: Any, rows: int, tell: Any) -> None:
        super().issued(slots, rows, tell)
        if self.what == "reset behind the step":
            self._memory.buffer.fill_(-1)

    def _copy(self, entry: Any, slots: Any, rows: int) -> None:
        if self.what != "no copy on the device":
            return super()._copy(entry, slots, rows)
        entry.slots = self._take(self._slots_taken, self._slots_read)
        entry.ids = self._take(self._ids_taken, self._ids_read)
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
        entry = super()._next()
        if self.what == "out of order" and entry is not None and entry.event is not None:
            held, entry = entry, super()._next()
            self._queue.put(held)
        return entry


@pytest.mark.parametrize("what", [
    "", "no copy on the device", "used again early", "no event", "out of order", "not reset",
    "reset behind the step",
])  # fmt: skip
def test_mistakes_are_noticed(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(late, "LateIds", Mistake)
    monkeypatch.setattr(Mistake, "what", what)
    rig = rigs(slots_depth=32)
    rig.device.most_looks = 20
    wrong = False
    for n in range(60):
        rig.follow()
        silent = n % 7 == 3
        if n % 5 == 2:  # a dummy batch
            rig.memory.buffer[:] = n % 3
        first = n % 4 * 8
        rig.issue(*range(first, first + 8), silent=silent)
        if n % 4 == 3:
            rows = rig.rows()
            for m in range(n - 3, n + 1):
                at = slice(m % 4 * 8, m % 4 * 8 + 8)
                right = np.arange(32)[at] + m + 1 if m % 7 != 3 else np.full(8, -1)
                wrong |= bool((rows[at] != right).any())
    told = [one[0] for one in rig.told]
    assert (wrong or told != sorted(told)) == bool(what)
