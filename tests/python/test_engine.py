"""A small random engine against an oracle: what Python says in every form that the API has, with
steps that end late and in any order. (The rules of blocks have engines of their own in
tests/conformance.)

Requests grow by chunks, fork (full blocks shared, the last one copied in part), and end; steps are
lost or did not run; layers fall silent. The oracle is one array in which the same happens to rows,
in the order told: which step wrote each row of each block, and which row of it.
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

BLOCK, NUM_BLOCKS = 8, 48


@dataclass
class Request:
    blocks: list[int] = field(default_factory=list)
    rows: int = 0


@dataclass
class Flight:
    """A step on its way."""

    step: waymark.Step
    layout: str
    slots: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int16]  # [rows, L, K]
    reasons: npt.NDArray[np.uint8]  # of each row, once it has landed
    owner: Request
    runs: bool = True


class Engine:
    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.shape = (*(int(n) for n in rng.integers(1, 5, 2)), int(rng.choice([8, 256, 300])))
        page_tokens = int(rng.choice([2, 4, 8]))
        self.store = waymark.Capture(
            num_layers=self.shape[0], top_k=self.shape[1], num_experts=self.shape[2],
            num_blocks=NUM_BLOCKS, block_tokens=BLOCK, page_tokens=page_tokens,
            num_pages=16 * NUM_BLOCKS * BLOCK // page_tokens,  # enough for what is being read
            max_steps_in_flight=64,
        )  # fmt: skip
        self.free = list(range(NUM_BLOCKS))
        self.users = np.zeros(NUM_BLOCKS, int)
        self.requests: list[Request] = []
        self.flights: list[Flight] = []
        self.steps: dict[int, Flight] = {}
        self.rows_read = 0
        # The oracle: (step, row of the step) of each row, and what happens to it when all steps
        # have ended.
        self.wrote = np.zeros((NUM_BLOCKS, BLOCK, 2), np.int64)
        self.told: list[Callable[[], None]] = []

    def take(self, told: bool = True) -> int:
        block = self.free.pop(int(self.rng.integers(len(self.free))))
        self.users[block] = 1
        self.told.append(lambda: self.wrote[block].fill(0))
        if told:
            self.store.bind(block)
        return block

    def fork(self, parent: Request) -> None:
        full, rest = divmod(parent.rows, BLOCK)
        child = Request(parent.blocks[:full], parent.rows)
        if child.blocks:
            self.store.retain(child.blocks)
            self.users[child.blocks] += 1
        if rest:
            src, block = parent.blocks[full], self.take()
            self.store.copy(src, block, rest)
            self.told.append(lambda: self.wrote[block, :rest].__setitem__(..., self.wrote[src, :rest]))
            child.blocks.append(block)
        self.requests.append(child)

    def end_request(self, request: Request) -> None:
        if any(flight.owner is request for flight in self.flights):
            return
        self.requests.remove(request)
        self.store.release(np.array(request.blocks, np.int32))
        np.subtract.at(self.users, request.blocks, 1)
        self.free += [block for block in request.blocks if self.users[block] == 0]

    def grow(self, request: Request) -> None:
        """A step that runs the next rows of a request."""
        rng, rows = self.rng, int(self.rng.integers(1, 20))
        at_once = bool(rng.random() < 0.5)  # new blocks are bound by the call that tells the step
        more = -(-(request.rows + rows) // BLOCK) - len(request.blocks)
        if more > len(self.free):
            return
        new = [self.take(not at_once) for _ in range(more)]
        request.blocks += new
        slots = waymark.slots_of(request.blocks, BLOCK, request.rows, request.rows + rows)
        request.rows += rows
        ids = distinct_ids(rng, rows, *self.shape)
        reasons = np.zeros(rows, np.uint8)
        silent = rng.random(rows) < 0.1
        ids[silent, int(rng.integers(self.shape[0]))] = -1
        reasons[silent] = Reason.NOT_CAPTURED
        if self.shape[2] == 300:
            invalid = (rng.random(rows) < 0.05) & ~silent
            ids[invalid, 0, 0] = 300
            reasons[invalid] = Reason.INVALID_ID
        asked = rng.random(rows) > 0.1
        reasons[~asked] = Reason.NOT_CAPTURED
        layout = str(rng.choice(["NLK", "LNK"]))
        events = np.zeros(len(new) if at_once else 0, waymark.event_dtype)
        events["type"], events["block"] = waymark.EventType.BIND, new if at_once else []
        step = self.tell(slots, asked, events, layout)
        flight = self.steps[step.number] = Flight(step, layout, slots, ids, reasons, request)

        def write() -> None:
            if flight.runs:
                at = self.wrote.reshape(-1, 2)
                at[slots, 0], at[slots, 1] = step.number, np.arange(rows)

        self.told.append(write)
        self.flights.append(flight)
        if rng.random() < 0.3:  # a whole step in one go
            self.end(len(self.flights) - 1, 1.0)

    def tell(
        self, slots: npt.NDArray[np.int64], asked: npt.NDArray[np.bool_], events: Any, layout: str
    ) -> waymark.Step:
        rng = self.rng
        of = {"events": events if rng.random() < 0.5 else events.tobytes(), "layout": layout}
        form = rng.integers(4)
        if form < 2:
            sent = np.where(asked, slots, waymark.NOT_ASKED(slots))
            return self.store.step(None, 1, sent if form else sent.tolist(), **of)
        size = BLOCK if form == 2 else BLOCK // 2
        dtype = rng.choice([np.int32, np.int64])  # type: ignore[arg-type]
        pairs = (slots // size).astype(dtype), (slots % size).astype(dtype)
        return self.store.step(
            None, 1, pairs, asked=asked.view(np.uint8) if form == 2 else asked,
            block_tokens=size, **of,
        )  # fmt: skip

    def end(self, index: int, how: float) -> None:
        flight = self.flights.pop(index)
        if how < 0.1:
            if self.rng.random() < 0.5:
                flight.step.lost()
            else:
                with flight.step:
                    pass
            flight.reasons[:] = Reason.NOT_CAPTURED
        elif how < 0.2:
            flight.step.not_run()
            flight.runs = False
        else:
            dtype = self.rng.choice([np.int16, np.int32, np.int64])  # type: ignore[arg-type]
            ids = flight.ids.astype(dtype)
            if self.rng.random() < 0.5:
                ids = np.repeat(ids, 2, axis=2)[:, :, ::2]
            flight.step.ids = ids if flight.layout == "NLK" else ids.transpose(1, 0, 2)

    def settle(self) -> None:
        """All steps end; then every request is read and compared."""
        while self.flights:
            self.end(int(self.rng.integers(len(self.flights))), self.rng.random())
        for tell in self.told:
            tell()
        self.told.clear()
        for request in self.requests:
            self.compare(request)

    def compare(self, request: Request) -> None:
        first, last = np.sort(self.rng.integers(0, request.rows + 1, 2))
        rows = self.store.take(request.blocks, int(last), int(first)).result(20)
        at = np.arange(first, last)
        wrote = self.wrote[np.asarray(request.blocks, np.int64)[at // BLOCK], at % BLOCK]
        want = np.full((len(at), *self.shape[:2]), -1)
        reasons = np.full(len(at), int(Reason.NEVER_WRITTEN))
        for i, (step, row) in enumerate(wrote):
            if step:
                reasons[i] = self.steps[step].reasons[row]
                if reasons[i] == 0:
                    want[i] = self.steps[step].ids[row]
        told = rows.infos["reason"]
        # A page of rows that did not ask alone has one reason for all of its rows.
        reasons[(wrote[:, 0] == 0) & (told == Reason.NOT_CAPTURED)] = Reason.NOT_CAPTURED
        assert (rows.first, rows.last) == (first, last) and (told == reasons).all()
        layout: Any = self.rng.choice(["TLK", "LTK"])
        got = rows.astype(self.rng.choice([np.int16, np.int64]), layout=layout)  # type: ignore
        assert ((got if layout == "TLK" else got.transpose(1, 0, 2)) == want).all()
        assert (rows.infos["step"] == np.where(reasons == 0, wrote[:, 0], 0)).all()
        by_runs = [run.reason for run in rows.coverage() for _ in range(run.begin, run.end)]
        assert by_runs == told.tolist()
        self.rows_read += len(at)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            action = self.rng.random()
            some = self.requests[int(self.rng.integers(len(self.requests)))] if self.requests else None
            if some is None or (action < 0.1 and len(self.requests) < 8):
                self.requests.append(Request())
            elif action < 0.6:
                self.grow(some)
            elif action < 0.7 and self.free:
                self.fork(some)
            elif action < 0.75:
                self.end_request(some)
            elif self.flights:
                self.end(int(self.rng.integers(len(self.flights))), self.rng.random())
            if len(self.flights) > 12:
                self.settle()
        self.settle()


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
