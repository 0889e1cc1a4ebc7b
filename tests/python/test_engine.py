"""A small random engine against an oracle: every row of every request, in every way to say it.

The engine has a pool of blocks. Its requests grow by chunks, fork (full blocks shared, the last one
copied in part), take back rejected drafts, are preempted to other blocks (moves) and end; steps end
late and in any order, are lost or did not run; layers fall silent. The oracle is three arrays in
which the same happens to rows, in the order told. Events, slots, ids and reads take every form that
the API has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import distinct_ids
from waymark import Reason

BLOCK = 8
NUM_BLOCKS = 48


@dataclass
class Request:
    blocks: list[int] = field(default_factory=list)
    rows: int = 0
    copied: int = 0  # the last step that was begun before its last block was copied


@dataclass
class Flight:
    """A step on its way."""

    step: waymark.Step
    layout: str
    slots: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int16]  # [rows, L, K]
    reasons: npt.NDArray[np.uint8]  # of each row, once it has landed
    not_asked: npt.NDArray[np.bool_]
    owner: Request
    first: int  # row of the owner
    not_run: bool = False

    @property
    def number(self) -> int:
        return self.step.number


@dataclass
class Look:
    """Rows that were taken, and what they have to be."""

    taken: waymark.Taken
    blocks: list[int]
    first: int
    last: int
    steps: Any = None
    rows: Any = None
    passed: Any = None


class Oracle:
    """What each row of each block is: the step that wrote it, and which row of it. What it is told
    is applied in that order, once all steps have ended; a step that did not run does nothing."""

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.step = np.zeros((NUM_BLOCKS, BLOCK), np.int64)  # 0: none
        self.row = np.zeros((NUM_BLOCKS, BLOCK), np.int64)
        # Rows up to one that did not ask, of a page: a page of such rows alone has one reason for
        # all of them, so that one that no step wrote, or that was taken back, may be not captured.
        self.passed = np.zeros((NUM_BLOCKS, BLOCK), np.bool_)
        self.flights: dict[int, Flight] = {}
        self.told: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def tell(self, what: Callable[..., None], *args: Any) -> None:
        self.told.append((what, args))

    def apply(self) -> None:
        for what, args in self.told:
            what(*args)
        self.told.clear()

    def write(self, flight: Flight) -> None:
        if flight.not_run:
            return
        self.flights[flight.number] = flight
        self.step.reshape(-1)[flight.slots] = flight.number
        self.row.reshape(-1)[flight.slots] = np.arange(len(flight.slots))
        for slot in flight.slots[flight.not_asked]:
            self.passed.reshape(-1)[slot - slot % self.page_tokens : slot + 1] = True

    def bind(self, block: int) -> None:
        self.step[block] = 0
        self.passed[block] = False

    def copy(self, src: int, dst: int, rows: int) -> None:
        self.step[dst] = 0
        self.step[dst, :rows] = self.step[src, :rows]
        self.row[dst] = self.row[src]
        self.passed[dst] = False
        self.passed[dst, :rows] = self.passed[src, :rows]

    def move(self, src: list[int], dst: list[int]) -> None:
        step, row, passed = self.step[src], self.row[src], self.passed[src]
        self.step[dst], self.row[dst], self.passed[dst] = step, row, passed

    def truncate(self, block: int, row: int, step: int) -> None:
        tail = self.step[block, row:]
        tail[tail <= step] = 0

    def look(self, look: Look) -> None:
        at = np.arange(look.first, look.last)
        where = np.asarray(look.blocks, np.int64)[at // BLOCK], at % BLOCK
        look.steps, look.rows, look.passed = self.step[where], self.row[where], self.passed[where]


class Engine:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        rng = self.rng
        self.num_layers, self.top_k = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        self.num_experts = int(rng.choice([8, 256, 300]))
        page_tokens = int(rng.choice([2, 4, 8]))
        self.store = waymark.Capture(
            num_layers=self.num_layers,
            top_k=self.top_k,
            num_experts=self.num_experts,
            num_blocks=NUM_BLOCKS,
            page_tokens=page_tokens,
            num_pages=16 * NUM_BLOCKS * BLOCK // page_tokens,  # enough for what is being read
            block_tokens=BLOCK,
            max_steps_in_flight=64,
        )
        self.oracle = Oracle(page_tokens)
        self.free = list(range(NUM_BLOCKS))
        self.users = np.zeros(NUM_BLOCKS, int)
        self.requests: list[Request] = []
        self.flights: list[Flight] = []
        self.step = 0
        self.rows_read = 0
        self.looks: list[Look] = []

    # ---- what an engine does to blocks ----

    def take(self) -> int | None:
        if not self.free:
            return None
        block = self.free.pop(int(self.rng.integers(len(self.free))))
        self.users[block] = 1
        self.oracle.tell(self.oracle.bind, block)
        return block

    def take_and_bind(self) -> int | None:
        block = self.take()
        if block is not None:
            self.store.bind(block)
        return block

    def give(self, blocks: list[int]) -> None:
        self.store.release(np.array(blocks, np.int32))
        for block in blocks:
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free.append(block)

    def fork(self, parent: Request) -> None:
        full = parent.rows // BLOCK
        child = Request(parent.blocks[:full], parent.rows)
        if parent.rows % BLOCK:
            block = self.take_and_bind()
            if block is None:
                return
            src = parent.blocks[full]
            self.store.copy(src, block, parent.rows % BLOCK)
            self.oracle.tell(self.oracle.copy, src, block, parent.rows % BLOCK)
            child.blocks.append(block)
            child.copied = self.step
        if child.blocks[:full]:
            self.store.retain(child.blocks[:full])
            self.users[child.blocks[:full]] += 1
        self.requests.append(child)

    def reject(self, request: Request) -> None:
        """The last rows were drafts."""
        if any(flight.owner is request for flight in self.flights) or not request.rows:
            return
        if request.copied == self.step:
            return  # a truncation right behind a copy is about the block's former life
        rows = request.rows - int(self.rng.integers(1, min(request.rows, 4) + 1))
        for index in range(rows // BLOCK, len(request.blocks)):
            block = request.blocks[index]
            if self.users[block] > 1:
                return
        for index in range(rows // BLOCK, len(request.blocks)):
            row = max(rows - index * BLOCK, 0)
            self.store.truncate(request.blocks[index], row, self.step)
            self.oracle.tell(self.oracle.truncate, request.blocks[index], row, self.step)
        keep = -(-rows // BLOCK)
        if request.blocks[keep:]:
            self.give(request.blocks[keep:])
        del request.blocks[keep:]
        request.rows = rows

    def swap(self, request: Request) -> None:
        """Offload: the blocks of a request go elsewhere, one of them where another one was."""
        mine = [b for b in dict.fromkeys(request.blocks) if self.users[b] == 1]
        if len(mine) < 2 or not self.free:
            return
        spare = self.free.pop()
        dst = [*mine[1:], spare]
        self.store.move(mine, np.array(dst))
        self.oracle.tell(self.oracle.move, mine, dst)
        where = dict(zip(mine, dst))
        request.blocks = [where.get(b, b) for b in request.blocks]
        self.users[spare], self.users[mine[0]] = 1, 0
        self.free.append(mine[0])

    # ---- steps ----

    def grow(self, request: Request) -> None:
        """A step that runs the next rows of a request."""
        rng = self.rng
        rows = int(rng.integers(1, 20))
        # A copied block of a shared prefix is the request's own, so its rows may be written.
        at_once = bool(rng.random() < 0.5)  # new blocks are bound by the call that begins the step
        new: list[int] = []
        while len(request.blocks) * BLOCK < request.rows + rows:
            block = self.take() if at_once else self.take_and_bind()
            if block is None:
                self.store.bind(new)
                return
            request.blocks.append(block)
            if at_once:
                new.append(block)
        self.step += 1
        first, step = request.rows, self.step
        slots = waymark.slots_of(request.blocks, BLOCK, first, first + rows)
        ids = distinct_ids(rng, rows, self.num_layers, self.top_k, self.num_experts)
        reasons = np.zeros(rows, np.uint8)
        silent = rng.random(rows) < 0.1
        ids[silent, int(rng.integers(self.num_layers))] = -1
        reasons[silent] = Reason.NOT_CAPTURED
        part = (rng.random(rows) < 0.05) & ~silent & (self.top_k > 1)
        ids[part, int(rng.integers(self.num_layers)), 0] = -1
        reasons[part] = Reason.INVALID_ID
        if self.num_experts == 300:
            invalid = (rng.random(rows) < 0.05) & ~silent
            ids[invalid, 0, 0] = 300
            reasons[invalid] = Reason.INVALID_ID
        not_asked = rng.random(rows) < 0.1
        sent = np.where(not_asked, waymark.NOT_ASKED(slots), slots)
        reasons[not_asked] = Reason.NOT_CAPTURED
        events = np.zeros(len(new), waymark.event_dtype)
        events["type"], events["block"] = waymark.EventType.BIND, new
        layout = str(rng.choice(["NLK", "LNK"]))
        at = self.begin(step, sent, events, layout)
        flight = Flight(at, layout, slots, ids, reasons, not_asked, request, first)
        self.oracle.tell(self.oracle.write, flight)
        request.rows += rows
        if rng.random() < 0.3:  # a whole step in one go
            at.ids = self.form_of(flight)
        else:
            self.flights.append(flight)

    def begin(
        self, step: int, slots: npt.NDArray[np.int64], new: npt.NDArray[np.void], layout: str
    ) -> waymark.Step:
        rng = self.rng
        of: dict[str, Any] = {"events": new if rng.random() < 0.5 else new.tobytes()}
        of["layout"] = layout
        form = rng.integers(4)
        if form == 0:
            return self.store.step(step, 1, slots, **of)
        if form == 1:
            return self.store.step(step, 1, slots.tolist(), **of)
        asked = slots >= 0
        where = np.where(asked, slots, -2 - slots)  # what NOT_ASKED did
        dtype = rng.choice([np.int32, np.int64])  # type: ignore[arg-type]
        if form == 2:
            pairs = ((where // BLOCK).astype(dtype), (where % BLOCK).astype(dtype))
            return self.store.step(step, 1, pairs, asked=asked, **of)
        # In blocks of half the size.
        size = BLOCK // 2
        half = (where // size).astype(dtype), (where % size).astype(dtype)
        return self.store.step(step, 1, half, asked=asked.view(np.uint8), block_tokens=size, **of)

    def form_of(self, flight: Flight) -> npt.NDArray[Any]:
        """The ids of a step, in any type and strides."""
        dtype = self.rng.choice([np.int16, np.int32, np.int64])  # type: ignore[arg-type]
        ids = flight.ids.astype(dtype)
        if self.rng.random() < 0.5:
            ids = np.repeat(ids, 2, axis=2)[:, :, ::2]
        return ids if flight.layout == "NLK" else ids.transpose(1, 0, 2)

    def end(self) -> None:
        """Of the steps on their way, one ends."""
        rng = self.rng
        flight = self.flights.pop(int(rng.integers(len(self.flights))))
        how = rng.random()
        later = any(f.owner is flight.owner for f in self.flights)
        last = flight.owner.rows == flight.first + len(flight.reasons)
        if how < 0.1:
            if rng.random() < 0.5:
                flight.step.lost()
            else:
                with flight.step:
                    pass
            flight.reasons[:] = Reason.NOT_CAPTURED
        elif how < 0.2 and not later and last:
            flight.step.not_run()
            flight.not_run = True
            flight.owner.rows = flight.first
        else:
            flight.step.ids = self.form_of(flight)

    # ---- reading ----

    def look(self, request: Request) -> None:
        first = int(self.rng.integers(request.rows + 1))
        last = int(self.rng.integers(first, request.rows + 1))
        taken = self.store.take(request.blocks, last, first)
        self.looks.append(Look(taken, list(request.blocks), first, last))
        self.oracle.tell(self.oracle.look, self.looks[-1])

    def settle(self) -> None:
        while self.flights:
            self.end()
        self.store.wait_idle(20)

    def compare(self) -> None:
        rng = self.rng
        self.oracle.apply()
        for look in self.looks:
            rows, steps = look.taken.result(20), look.steps
            count = len(steps)
            assert (rows.first, rows.last) == (look.first, look.last)
            want = np.full((count, self.num_layers, self.top_k), -1, np.int64)
            reasons = np.full(count, int(Reason.NEVER_WRITTEN))
            for i, (step, row) in enumerate(zip(steps, look.rows)):
                if step:
                    flight = self.oracle.flights[int(step)]
                    reasons[i] = flight.reasons[row]
                    if reasons[i] == 0:
                        want[i] = flight.ids[row]
            told = rows.infos["reason"]
            unsure = (steps == 0) & look.passed & (told == Reason.NOT_CAPTURED)
            reasons[unsure] = Reason.NOT_CAPTURED
            assert (told == reasons).all(), (told, reasons, steps)
            layout = str(rng.choice(["TLK", "LTK"]))
            dtype = rng.choice([np.int16, np.int32, np.int64])  # type: ignore[arg-type]
            got = rows.astype(dtype, layout=layout)  # type: ignore[arg-type]
            assert ((got if layout == "TLK" else got.transpose(1, 0, 2)) == want).all()
            valid = reasons == 0
            assert (rows.ids[valid] == want[valid]).all() and not rows.ids[~valid].any()
            assert (rows.infos["step"] == np.where(valid, steps, 0)).all()
            by_runs = [r.reason for r in rows.coverage() for _ in range(r.begin, r.end)]
            assert by_runs == told.tolist()
            self.rows_read += count
        self.looks.clear()

    def run(self, turns: int) -> None:
        rng = self.rng
        for _ in range(turns):
            action = rng.random()
            chosen = int(rng.integers(len(self.requests) or 1))
            request = self.requests[chosen] if self.requests else None
            if request is None or (action < 0.1 and len(self.requests) < 8):
                self.requests.append(Request())
            elif action < 0.5:
                self.grow(request)
            elif action < 0.6:
                self.fork(request)
            elif action < 0.65:
                self.reject(request)
            elif action < 0.7:
                self.swap(request)
            elif action < 0.85 and self.flights:
                self.end()
            elif action < 0.92:
                self.look(request)
            elif action < 0.95 and not any(f.owner is request for f in self.flights):
                self.requests.remove(request)
                if request.blocks:
                    self.give(request.blocks)
            if len(self.looks) > 6 or len(self.flights) > 12:
                self.settle()
                self.compare()
        self.settle()
        for request in self.requests:
            self.look(request)
        self.compare()


def test_random_engines(seed: int, request: pytest.FixtureRequest) -> None:
    rows = 0
    for number in range(int(request.config.getoption("--engines"))):
        engine = Engine(seed + number)
        try:
            engine.run(150)
        except BaseException:
            print(f"engine {number}: --seed={seed + number} --engines=1")
            raise
        rows += engine.rows_read
    print(f"{rows} rows compared")
    assert rows > 0
