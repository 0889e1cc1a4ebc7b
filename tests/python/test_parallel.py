"""Parallel setups: sequence, context and data parallelism, micro-batches."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from rank_mesh import Mesh, run_ranks

L, K, E = 3, 2, 300
STEPS, SEQUENCES, BLOCK = 12, 7, 4
RANKS = 4
FAULT = 6


def ids_of(sequence: int, position: int) -> npt.NDArray[np.int16]:
    """What the routers choose: [L, K], distinct ids."""
    first = (sequence * 131 + position * 17 + np.arange(L) * 29) % E
    return np.stack([first, (first + 1 + position) % E], axis=1).astype(np.int16)


def engine(mesh: Mesh | None, way: str, fault: str = "") -> dict[str, Any]:
    """Every step computes one token of each sequence; a batch has 8 rows, one of them padding."""
    rank, size = (0, 1) if mesh is None else (mesh.rank, mesh.size)
    if fault == "missing" and rank == size - 1:
        return {}
    faulty = fault != "" and rank == size - 1
    blocks = -(-STEPS // BLOCK)
    store = waymark.Store(
        num_layers=L, top_k=K, num_experts=E, num_blocks=SEQUENCES * blocks, page_tokens=BLOCK
    )
    store.bind(list(range(SEQUENCES * blocks)))
    session = waymark.CaptureSession(store, max_rows=8, num_buffers=STEPS, row_gather=mesh)
    slowest = 0.0
    for step in range(1, STEPS + 1):
        position = step - 1
        rows = np.stack([ids_of(s, position) for s in range(SEQUENCES)] + [ids_of(99, 0)])
        part = len(rows) // size
        rows = rows[rank * part : (rank + 1) * part]
        slots = [s * blocks * BLOCK + position for s in range(SEQUENCES)] + [-1]
        if fault == "late":
            time.sleep(0.1)
        start = time.monotonic()
        if way == "ids":
            assert session.begin_ids_step(step, 1, slots)
        else:
            assert session.begin_step(step, 1, slots)
            session.view(step).array[:, :part] = rows.swapaxes(0, 1)
        if faulty and step == FAULT:
            if fault == "dies":
                while mesh is not None and mesh.calls < step - 1:
                    time.sleep(0.01)
                time.sleep(0.3)
                os._exit(1)
            if fault == "late":
                time.sleep(3.0)
            if fault == "drop":
                session.drop(step)
                continue
        if way == "ids":
            assert session.submit_ids(step, rows)
        else:
            session.submit(step)
        if not faulty:
            slowest = max(slowest, time.monotonic() - start)
    ids, valid, reasons = [], [], []
    for s in range(SEQUENCES):
        with store.snapshot(list(range(s * blocks, (s + 1) * blocks)), 0, STEPS) as snapshot:
            snapshot.wait(60)
            read = snapshot.rows()
        ids.append(read.astype(np.int64))
        valid.append(read.valid)
        reasons.append([int(reason) for reason in read.reasons])
    result = {
        "ids": np.stack(ids),
        "valid": np.stack(valid),
        "reasons": np.array(reasons),
        "stats": session.stats().as_dict(),
        "log": [line.text for line in store.take_log()],
        "slowest": slowest,
        "sent": 0 if mesh is None else mesh.sent,
        "calls": 0 if mesh is None else mesh.calls,
    }
    session.close()
    return result


def check(result: dict[str, Any]) -> npt.NDArray[Any]:
    """No row is wrong; the reasons, [sequence, position], 0 where a row is there."""
    for s in range(SEQUENCES):
        for position in range(STEPS):
            if result["valid"][s, position]:
                assert (result["ids"][s, position] == ids_of(s, position)).all()
    reasons: npt.NDArray[Any] = result["reasons"]
    return reasons


@pytest.mark.parametrize("way", ["view", "ids"])
def test_every_rank_has_the_rows_of_one_rank(way: str) -> None:
    alone = engine(None, way)
    assert not check(alone).any()
    for result in run_ranks(RANKS, engine, way):
        assert not check(result).any()
        assert (result["ids"] == alone["ids"]).all()
        assert result["stats"]["gathers"] == STEPS == result["calls"]
        assert result["stats"]["gathers_failed"] == result["stats"]["parts_missing"] == 0
        # Uint16 ids and a verdict of two rows, and a header, each step.
        assert result["sent"] == STEPS * (72 + 2 * (1 + 2 * L * K))


def test_a_rank_that_drops_a_step() -> None:
    *others, faulty = run_ranks(RANKS, engine, "view", "drop")
    capacity = int(waymark.Reason.CAPACITY)
    want = np.zeros((SEQUENCES, STEPS), int)
    want[6, FAULT - 1] = capacity  # the last rank has sequence 6, and the padding
    for result in others:
        assert (check(result) == want).all()
        assert result["stats"]["parts_missing"] == 1
    want[:, FAULT - 1] = capacity
    assert (check(faulty) == want).all()


def test_a_rank_past_the_deadline_loses_a_step_and_no_engine_waits() -> None:
    *others, late = run_ranks(RANKS, engine, "view", "late", deadline=1.5)
    not_captured = int(waymark.Reason.NOT_CAPTURED)
    for result in others:
        reasons = check(result)
        assert (reasons[:, FAULT - 1] == not_captured).all()
        assert not reasons[:, : FAULT - 1].any()
        assert set(np.unique(reasons)) == {0, not_captured}
        assert result["slowest"] < 1.0
        assert any("is late in call" in line for line in result["log"]), result["log"]
    check(late)


@pytest.mark.parametrize("fault", ["missing", "dies"])
def test_a_rank_that_is_gone(fault: str) -> None:
    *others, gone = run_ranks(RANKS, engine, "ids", fault, deadline=5.0)
    assert not gone
    last = 0 if fault == "missing" else FAULT - 1
    for result in others:
        reasons = check(result)
        assert not reasons[:, :last].any()
        assert (reasons[:, last:] == int(waymark.Reason.NOT_CAPTURED)).all()
        assert result["stats"]["gathers"] == last
        assert result["stats"]["gathers_failed"] == STEPS - last


def context_rank(mesh: Mesh, fault: str = "") -> Any:
    """Rank r routes positions r, r + size, ... of one sequence; slots are the same everywhere."""
    store = waymark.Store(num_layers=L, top_k=K, num_experts=E, num_blocks=4, page_tokens=4)
    store.bind([0, 1, 2, 3])
    session = waymark.CaptureSession(store, max_rows=8)
    mine = list(range(mesh.rank, 16, mesh.size))
    assert session.begin_step(1, 1, mine)
    session.view(1).array[:, : len(mine)] = np.stack([ids_of(0, p) for p in mine], axis=1)
    session.submit(1)
    with store.snapshot([0, 1, 2, 3], 0, 16) as snapshot:
        snapshot.wait(60)
        part = snapshot.rows()
    if fault == "dies" and mesh.rank == 2:
        os._exit(1)
    try:
        rows = part.join_ranks(mesh)
    except ConnectionError as error:
        return str(error)
    return rows.valid, rows.astype(np.int64)


def test_rows_of_context_parallel_ranks() -> None:
    for valid, ids in run_ranks(3, context_rank):
        assert valid.all()
        assert (ids == np.stack([ids_of(0, p) for p in range(16)])).all()
    answers = run_ranks(3, context_rank, "dies")
    assert answers[2] is None
    assert all("gone" in answer for answer in answers[:2])


def session_of(rows: int) -> tuple[waymark.Store, waymark.CaptureSession]:
    store = waymark.Store(num_layers=L, top_k=K, num_experts=E, num_blocks=4, page_tokens=4)
    store.bind([0, 1, 2, 3])
    return store, waymark.CaptureSession(store, max_rows=rows)


def read_all(store: waymark.Store, rows: int) -> waymark.Rows:
    with store.snapshot([0, 1, 2, 3], 0, rows) as snapshot:
        snapshot.wait(20)
        return snapshot.rows()


def test_a_data_parallel_rank_pads_the_rows_of_the_others() -> None:
    """A step of its own rows alone left the ids of the others in the view: a layer of the next step
    that stayed silent came back with them."""
    store, session = session_of(12)
    assert session.begin_step(1, 1, [-1] * 7 + [0, 1, 2] + [-1] * 2)
    session.view(1).array[:] = np.stack([ids_of(5, row) for row in range(12)], axis=1)
    session.submit(1)
    rows = read_all(store, 3)
    assert (rows.astype(np.int64) == np.stack([ids_of(5, row) for row in (7, 8, 9)])).all()

    for step in range(2, 10):  # every buffer again
        assert session.begin_step(step, 1, list(range(3, 15)))
        view = session.view(step).array
        assert (view == -1).all()
        view[1:] = np.stack([ids_of(5, row) for row in range(12)], axis=1)[1:]
        session.submit(step)
        store.wait_idle(20)
    reasons = read_all(store, 15).reasons
    assert (reasons[3:] == waymark.Reason.NOT_CAPTURED).all()


def test_micro_batches_hand_over_their_rows() -> None:
    store, session = session_of(8)
    assert session.begin_step(1, 1, list(range(8)))
    want = np.stack([ids_of(1, row) for row in range(8)])
    for layer in range(L):
        for first, last in ((5, 8), (0, 5)):
            session.hand_over(1, layer, np.ascontiguousarray(want[first:last, layer]), first_row=first)
    with pytest.raises(waymark.InvalidArgumentError, match="rows"):
        session.hand_over(1, 0, np.ascontiguousarray(want[:4, 0]), first_row=5)
    session.submit(1)
    assert (read_all(store, 8).astype(np.int64) == want).all()


def test_a_batch_that_is_not_split() -> None:
    store, _ = session_of(8)

    class Alone:
        rank, size = 0, 2

        def all_gather(self, data: bytes, /) -> bytes:
            raise ConnectionError("nobody there")

    session = waymark.CaptureSession(store, max_rows=8, row_gather=Alone())
    with pytest.raises(waymark.InvalidArgumentError, match="multiple of the 2 ranks; they are 3"):
        session.begin_step(1, 1, [0, 1, 2])
    for rank, size in ((2, 2), (0, 0), (-1, 2)):
        wrong = Alone()
        wrong.rank, wrong.size = rank, size
        with pytest.raises((waymark.InvalidArgumentError, waymark.OutOfRangeError)):
            waymark.CaptureSession(store, max_rows=8, row_gather=wrong)
    session.close()


def test_a_collective_that_hangs_ends_with_the_session() -> None:
    release = threading.Event()

    class Hung:
        rank, size = 0, 2

        def all_gather(self, data: bytes, /) -> bytes:
            release.wait(60)
            return data + data

    store = waymark.Store(
        num_layers=L, top_k=K, num_experts=E, num_blocks=4, page_tokens=4, teardown_timeout=0.2
    )
    store.bind([0])
    session = waymark.CaptureSession(store, max_rows=8, row_gather=Hung())
    assert session.begin_step(1, 1, [0, 1])
    session.submit(1)
    start = time.monotonic()
    session.close()
    assert time.monotonic() - start < 10
    assert set(read_all(store, 2).reasons) == {waymark.Reason.NOT_CAPTURED}
    release.set()


class Late:
    """Rank 0 of two; the other one is damaged. Returns from its calls when it may."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.entered, self.may_return = threading.Event(), threading.Event()

    def all_gather(self, data: bytes, /) -> list[bytes]:
        self.entered.set()
        self.may_return.wait(60)
        return [data, bytes(len(data))]


def submitted(collective: Any, teardown_timeout: float | None) -> tuple[waymark.Store, Any]:
    store = waymark.Store(
        num_layers=L, top_k=K, num_experts=E, num_blocks=4, page_tokens=4,
        teardown_timeout=teardown_timeout,
    )
    store.bind([0])
    session = waymark.CaptureSession(store, max_rows=8, row_gather=collective)
    assert session.begin_step(1, 1, [0, 1])
    session.view(1).array[:, :1] = ids_of(0, 0)[:, None]
    session.submit(1)
    return store, session


def test_close_without_a_timeout_waits_for_the_collective() -> None:
    """None was so long that its sum with the clock overflowed, and nothing was waited for."""
    collective = Late()
    store, session = submitted(collective, None)
    assert collective.entered.wait(60)
    threading.Timer(0.2, collective.may_return.set).start()
    session.close()
    assert list(read_all(store, 2).reasons) == [waymark.Reason.NONE, waymark.Reason.NOT_CAPTURED]


def test_a_collective_goes_when_its_last_call_has_returned() -> None:
    for outlasts in (False, True):
        collective = Late()
        if not outlasts:
            collective.may_return.set()
        kept, may_return = weakref.ref(collective), collective.may_return
        store, session = submitted(collective, 0.05 if outlasts else 60.0)
        assert collective.entered.wait(60)
        del collective
        session.close()
        store.close()
        del session, store
        gc.collect()
        assert (kept() is not None) == outlasts
        may_return.set()
        deadline = time.monotonic() + 20
        while kept() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
            gc.collect()
        assert kept() is None


LATE_ERROR = """
import gc, threading, time
import waymark

class Gone:
    rank, size = 0, 2
    def __init__(self):
        self.entered, self.may_raise = threading.Event(), threading.Event()
    def all_gather(self, data):
        self.entered.set()
        self.may_raise.wait()
        raise TimeoutError("a rank is late " + "x" * 64)

gone = Gone()
store = waymark.Store(num_layers=1, top_k=1, num_experts=8, num_blocks=1, teardown_timeout=.05)
session = waymark.CaptureSession(store, max_rows=8, row_gather=gone)
assert session.begin_step(1, 0, [0, 1])
session.submit(1)
gone.entered.wait()
session.close()
store.close()
del session, store
gc.collect()
gone.may_raise.set()
def name(task):
    try:
        return open(f"/proc/self/task/{task}/comm").read()
    except FileNotFoundError:  # it has ended
        return ""
def gathers():
    tasks = __import__("os").listdir("/proc/self/task")
    return [t for t in tasks if name(t) == "wm-gather\\n"]
while gathers():
    time.sleep(.01)
print("ended")
"""


def test_an_exception_behind_the_end_of_the_store_is_logged_nowhere() -> None:
    """The line went to the log of the store, which was freed: its mutex, of the bytes that glibc
    writes over freed memory, was never free."""
    result = subprocess.run(
        [sys.executable, "-c", LATE_ERROR], capture_output=True, text=True, timeout=60,
        env={**os.environ, "MALLOC_PERTURB_": "1"},
    )
    assert result.stdout == "ended\n", result.stderr
