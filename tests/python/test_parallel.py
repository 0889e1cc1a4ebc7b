"""Sequence parallelism: a collective that is a Python object. Ranks that are processes, and what
fails between them, are in tests/conformance/parallel."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import logged, output_of, until

L, K, E = 3, 2, 300


def ids_of(sequence: int, position: int) -> npt.NDArray[np.int16]:
    """What the routers choose: [L, K], distinct ids."""
    first = (sequence * 131 + position * 17 + np.arange(L) * 29) % E
    return np.stack([first, (first + 1 + position) % E], axis=1).astype(np.int16)


def capture_of(collective: Any = None, **options: Any) -> waymark.Capture:
    store = waymark.Capture(
        num_layers=L, top_k=K, num_experts=E, num_blocks=4, page_tokens=4, row_gather=collective,
        **options,
    )  # fmt: skip
    store.bind([0, 1, 2, 3])
    return store


class OfTwo:
    """Rank 0 of two, whose collective is this function."""

    rank, size = 0, 2

    def __init__(self, all_gather: Any) -> None:
        self.all_gather = all_gather


class Meeting:
    """A rank of two in one process."""

    size = 2

    def __init__(self, rank: int, meet: threading.Barrier, parts: list[bytes]) -> None:
        self.rank, self.meet, self.parts = rank, meet, parts
        self.sent = 0

    def all_gather(self, data: bytes, /) -> list[bytes]:
        self.sent += len(data)
        self.parts[self.rank] = data
        self.meet.wait(60)
        got = list(self.parts)
        self.meet.wait(60)
        return got


def test_every_rank_has_all_rows_and_a_step_that_one_loses_is_missing_there() -> None:
    meet, parts = threading.Barrier(2), [b"", b""]
    ranks = [Meeting(rank, meet, parts) for rank in range(2)]
    stores = [capture_of(rank) for rank in ranks]
    ids = np.stack([ids_of(0, position) for position in range(8)])
    for number in (1, 2):
        slots = range(4 * number - 4, 4 * number)
        for rank, store in enumerate(stores):
            step = store.step(number, 1, slots)
            if (number, rank) == (2, 1):
                step.lost()
            else:
                step.ids = ids[slots[2 * rank : 2 * rank + 2]]
    taken = [store.take([0, 1], 8) for store in stores]
    for rank, rows in enumerate(one.result(60) for one in taken):
        # The second rank has two rows of each step; of its own lost step a rank has nothing.
        assert rows.valid.tolist() == [True] * (4 if rank else 6) + [False] * (4 if rank else 2)
        assert (rows.ids[rows.valid] == ids[rows.valid]).all()
        assert set(rows.reasons[~rows.valid]) == {waymark.Reason.NOT_CAPTURED}
    assert [store.gather_stats() for store in stores] == [(2, 0, 1), (2, 0, 0)]
    assert ranks[0].sent == 2 * (72 + 2 * (1 + 2 * L * K))  # a header; a verdict and ids of a row
    closing = threading.Thread(target=stores[1].close)
    closing.start()
    stores[0].close()
    closing.join(60)


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
