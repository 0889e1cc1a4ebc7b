"""Parallel setups: sequence, context and data parallelism, micro-batches."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import logged, output_of, until
from rank_mesh import Mesh, run_ranks

L, K, E = 3, 2, 300
STEPS, SEQUENCES, BLOCK = 12, 7, 4
RANKS = 4
FAULT = 6


def ids_of(sequence: int, position: int) -> npt.NDArray[np.int16]:
    """What the routers choose: [L, K], distinct ids."""
    first = (sequence * 131 + position * 17 + np.arange(L) * 29) % E
    return np.stack([first, (first + 1 + position) % E], axis=1).astype(np.int16)


def engine(mesh: Mesh | None, fault: str = "") -> dict[str, Any]:
    """Every step computes one token of each sequence; a batch has 8 rows, one of them padding."""
    rank, size = (0, 1) if mesh is None else (mesh.rank, mesh.size)
    if fault == "missing" and rank == size - 1:
        return {}
    faulty = fault != "" and rank == size - 1
    blocks = -(-STEPS // BLOCK)
    store = waymark.Capture(
        num_layers=L, top_k=K, num_experts=E, num_blocks=SEQUENCES * blocks, page_tokens=BLOCK,
        row_gather=mesh,
    )  # fmt: skip
    store.bind(list(range(SEQUENCES * blocks)))
    slowest = 0.0
    for number in range(1, STEPS + 1):
        position = number - 1
        rows = np.stack([ids_of(s, position) for s in range(SEQUENCES)] + [ids_of(99, 0)])
        part = len(rows) // size
        rows = rows[rank * part : (rank + 1) * part]
        slots = [s * blocks * BLOCK + position for s in range(SEQUENCES)] + [-1]
        if fault == "late":
            time.sleep(0.1)
        start = time.monotonic()
        step = store.step(number, 1, slots)
        assert not step.dropped
        if faulty and number == FAULT:
            if fault == "dies":
                while mesh is not None and mesh.calls < number - 1:
                    time.sleep(0.01)
                time.sleep(0.3)
                os._exit(1)
            if fault == "late":
                time.sleep(3.0)
            if fault == "lost":
                step.lost()
                continue
        step.ids = rows
        assert not step.dropped
        if not faulty:
            slowest = max(slowest, time.monotonic() - start)
    taken = [
        store.take(list(range(s * blocks, (s + 1) * blocks)), STEPS) for s in range(SEQUENCES)
    ]
    read = [one.result(60) for one in taken]
    if fault == "late" and not faulty:
        logged("is late in call")
    result = {
        "ids": np.stack([rows.astype(np.int64) for rows in read]),
        "valid": np.stack([rows.valid for rows in read]),
        "reasons": np.array([[int(reason) for reason in rows.reasons] for rows in read]),
        "gathers": store.gather_stats(),
        "slowest": slowest,
        "sent": 0 if mesh is None else mesh.sent,
        "calls": 0 if mesh is None else mesh.calls,
    }
    store.close()
    return result


def check(result: dict[str, Any]) -> npt.NDArray[Any]:
    """No row is wrong; the reasons, [sequence, position], 0 where a row is there."""
    for s in range(SEQUENCES):
        for position in range(STEPS):
            if result["valid"][s, position]:
                assert (result["ids"][s, position] == ids_of(s, position)).all()
    reasons: npt.NDArray[Any] = result["reasons"]
    return reasons


def test_every_rank_has_the_rows_of_one_rank() -> None:
    alone = engine(None)
    assert not check(alone).any()
    for result in run_ranks(RANKS, engine):
        assert not check(result).any()
        assert (result["ids"] == alone["ids"]).all()
        assert result["gathers"] == (STEPS, 0, 0) and result["calls"] == STEPS
        # Uint16 ids and a verdict of two rows, and a header, each step.
        assert result["sent"] == STEPS * (72 + 2 * (1 + 2 * L * K))


def test_a_rank_that_loses_a_step() -> None:
    *others, faulty = run_ranks(RANKS, engine, "lost")
    want = np.zeros((SEQUENCES, STEPS), int)
    not_captured = int(waymark.Reason.NOT_CAPTURED)
    want[6, FAULT - 1] = not_captured  # the last rank has sequence 6, and the padding
    for result in others:
        assert (check(result) == want).all()
        assert result["gathers"][2] == 1
    want[:, FAULT - 1] = not_captured
    assert (check(faulty) == want).all()


def test_a_rank_past_the_deadline_loses_a_step_and_no_engine_waits() -> None:
    *others, late = run_ranks(RANKS, engine, "late", deadline=1.5)
    not_captured = int(waymark.Reason.NOT_CAPTURED)
    for result in others:
        reasons = check(result)
        assert (reasons[:, FAULT - 1] == not_captured).all()
        assert not reasons[:, : FAULT - 1].any()
        assert set(np.unique(reasons)) == {0, not_captured}
        assert result["slowest"] < 1.0
    check(late)


@pytest.mark.parametrize("fault", ["missing", "dies"])
def test_a_rank_that_is_gone(fault: str) -> None:
    *others, gone = run_ranks(RANKS, engine, fault, deadline=5.0)
    assert not gone
    last = 0 if fault == "missing" else FAULT - 1
    for result in others:
        reasons = check(result)
        assert not reasons[:, :last].any()
        assert (reasons[:, last:] == int(waymark.Reason.NOT_CAPTURED)).all()
        assert result["gathers"][:2] == (last, STEPS - last)


def capture_of(collective: Any = None, **options: Any) -> waymark.Capture:
    store = waymark.Capture(
        num_layers=L, top_k=K, num_experts=E, num_blocks=4, page_tokens=4, row_gather=collective,
        **options,
    )  # fmt: skip
    store.bind([0, 1, 2, 3])
    return store


def test_context_parallel_ranks() -> None:
    """Rank r routes positions r, r + size, ... of one sequence; slots are the same everywhere."""
    parts = []
    for rank in range(3):
        store = capture_of()
        mine = list(range(rank, 16, 3))
        store.step(1, 1, mine, np.stack([ids_of(0, p) for p in mine]))
        parts.append(store.take([0, 1, 2, 3], 16).result(20))
    rows = waymark.join(*parts)
    assert rows.valid.all()
    assert (rows.astype(np.int64) == np.stack([ids_of(0, p) for p in range(16)])).all()


def test_a_data_parallel_rank_pads_the_rows_of_the_others() -> None:
    store = capture_of()
    ids = np.stack([ids_of(5, row) for row in range(12)])
    store.step(1, 1, [-1] * 7 + [0, 1, 2] + [-1] * 2, ids)
    rows = store.take([0, 1, 2, 3], 4).result(20)
    assert (rows.ids[:3] == ids[7:10]).all() and rows.valid.tolist() == [True] * 3 + [False]


class OfTwo:
    """Rank 0 of two, whose collective is this function."""

    rank, size = 0, 2

    def __init__(self, all_gather: Any) -> None:
        self.all_gather = all_gather


def test_a_batch_that_is_not_split() -> None:
    store = capture_of(OfTwo(None))
    with pytest.raises(waymark.InvalidArgumentError, match="multiple of the 2 ranks; they are 3"):
        store.step(1, 1, [0, 1, 2])
    for rank, size in ((2, 2), (0, 0), (-1, 2)):
        wrong = OfTwo(None)
        wrong.rank, wrong.size = rank, size
        with pytest.raises((waymark.InvalidArgumentError, waymark.OutOfRangeError), match="rank"):
            capture_of(wrong)


@pytest.mark.parametrize("answer", [[b""], b"abc", None, ConnectionError("gone")])
def test_a_collective_that_answers_wrongly_loses_the_step(answer: Any) -> None:
    def all_gather(data: bytes) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    store = capture_of(OfTwo(all_gather))
    store.step(1, 1, [0, 1], ids_of(0, 0)[None])
    reasons = store.take([0], 2).result(20).reasons
    assert set(reasons) == {waymark.Reason.NOT_CAPTURED}
    assert store.gather_stats()[:2] == (0, 1)
    logged("all_gather")


def test_a_collective_that_hangs_ends_with_the_capture() -> None:
    release = threading.Event()

    def all_gather(data: bytes) -> bytes:
        release.wait(60)
        return data + data

    store = capture_of(OfTwo(all_gather), teardown_timeout=0.2)
    store.step(1, 1, [0, 1], ids_of(0, 0)[None])
    taken = store.take([0], 2)
    start = time.monotonic()
    store.close()
    assert time.monotonic() - start < 10
    assert set(taken.result(10).reasons) == {waymark.Reason.NOT_CAPTURED}
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


def told(collective: Any, teardown_timeout: float | None) -> tuple[Any, Any]:
    store = capture_of(collective, teardown_timeout=teardown_timeout)
    store.step(1, 1, [0, 1], ids_of(0, 0)[None])
    return store, store.take([0], 2)


def test_close_without_a_timeout_waits_for_the_collective() -> None:
    """None was so long that its sum with the clock overflowed, and nothing was waited for."""
    collective = Late()
    store, taken = told(collective, None)
    assert collective.entered.wait(60)
    threading.Timer(0.2, collective.may_return.set).start()
    store.close()
    reasons = [waymark.Reason.NONE, waymark.Reason.NOT_CAPTURED]
    assert list(taken.result(10).reasons) == reasons


def test_a_collective_goes_when_its_last_call_has_returned() -> None:
    for outlasts in (False, True):
        collective = Late()
        if not outlasts:
            collective.may_return.set()
        kept, may_return = weakref.ref(collective), collective.may_return
        store, taken = told(collective, 0.05 if outlasts else 60.0)
        assert collective.entered.wait(60)
        del collective
        store.close()
        del store
        gc.collect()
        assert (kept() is not None) == outlasts
        may_return.set()
        until(lambda: gc.collect() >= 0 and kept() is None)


LATE_ERROR = """
import gc, threading, time
import numpy, waymark

class Gone:
    rank, size = 0, 2
    def __init__(self):
        self.entered, self.may_raise = threading.Event(), threading.Event()
    def all_gather(self, data):
        self.entered.set()
        self.may_raise.wait()
        raise TimeoutError("a rank is late " + "x" * 64)

gone = Gone()
cap = waymark.Capture(num_layers=1, top_k=1, num_experts=8, num_blocks=1, teardown_timeout=.05,
                      row_gather=gone)
cap.step(1, 0, [0, 1], numpy.zeros((1, 1, 1), int))
gone.entered.wait()
cap.close()
del cap
gc.collect()
gone.may_raise.set()
def name(task):
    try:
        return open(f"/proc/self/task/{task}/comm").read()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
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
    assert output_of(LATE_ERROR, MALLOC_PERTURB_="1")[0] == "ended\n"
