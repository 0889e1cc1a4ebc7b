"""Capture: what an engine calls."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import output_of, refused, until
from waymark import Capture, Cause, FailedPreconditionError, InvalidArgumentError, Reason

BLOCK, LAYERS, K = 4, 3, 2


def make(**options: Any) -> Capture:
    shape: dict[str, Any] = {
        "num_layers": LAYERS, "top_k": K, "num_experts": 256, "num_blocks": 16,
        "block_tokens": BLOCK, "page_tokens": BLOCK, "null_blocks": [0],
    }  # fmt: skip
    return Capture(**{**shape, **options})


@pytest.fixture
def cap() -> Iterator[Capture]:
    with make() as made:
        yield made


def ids_of(first: int, rows: int, dtype: str = "int32") -> npt.NDArray[Any]:
    """The ids of layer l of token t are t + 50 l and the next one."""
    token = first + np.arange(rows)[:, None, None]
    layer = 50 * np.arange(LAYERS)[None, :, None]
    return (token + layer + np.arange(K)[None, None, :]).astype(dtype)


def slots(block: int, first: int, last: int) -> npt.NDArray[np.int64]:
    return np.arange(block * BLOCK + first, block * BLOCK + last)


def test_a_whole_step_is_one_call(cap: Capture) -> None:
    cap.bind([3, 5])
    step = cap.step(None, None, np.concatenate([slots(3, 0, 4), slots(5, 0, 1)]), ids_of(0, 5))
    assert step.number == 1 and not step.dropped
    taken = cap.take([3, 5], 5)
    cap.release([3, 5])
    cap.bind([3, 5])  # somebody else's, before anything was read
    rows = taken.result(timeout=10)
    assert (rows.ids == ids_of(0, 5)).all() and rows.valid.all()
    assert cap.take([3, 5], 5).result(10).reasons.tolist() == [Reason.NEVER_WRITTEN] * 5
    assert step.done


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_of_padding_and_null_blocks_no_id_counts(late: bool, records: bool) -> None:
    """The ids of padding were counted where they were fetched ahead or recorded."""
    with make(recorder=waymark.RecorderOptions() if records else None) as cap:
        cap.bind([3, 4])
        first = cap.step(1, 1, slots(3, 0, 1))
        if not late:
            first.ids = ids_of(0, 1)
        ids = np.concatenate([ids_of(9, 2), np.zeros((2, LAYERS, K), np.int32)])
        cap.step(2, 1, np.concatenate([slots(4, 0, 2), [-1, 1]]), ids)
        if late:
            until(lambda: cap.stats().steps_ahead)
            first.ids = ids_of(0, 1)
        assert cap.take(4, 2).result(10).valid.all()
        assert {(layer.rows_silent, layer.rows_invalid) for layer in cap.layer_stats()} == {(0, 0)}


def test_no_ids_are_lost_ids(cap: Capture) -> None:
    """Setting None raised, in the error path of an engine."""
    cap.bind(3)
    step = cap.step(None, 7, slots(3, 0, 2))
    step.ids = None
    assert cap.take(3, 2).result(10).reasons.tolist() == [Reason.NOT_CAPTURED] * 2
    with pytest.raises(FailedPreconditionError, match="has ended"):
        step.ids = None


def test_what_is_late_names_the_step_that_it_waits_for(cap: Capture) -> None:
    cap.bind(3)
    step = cap.step(30, 7, slots(3, 0, 2))
    taken = cap.take(3, 2)
    until(lambda: "step 30" in str(late(taken)))
    assert str(late(taken)) == (
        "the rows have not been read after 0.01 s: step 30 has no ids yet, and all behind it waits"
    )
    with pytest.raises(TimeoutError, match="after 0.01 s: step 30 has no ids yet"):
        cap.wait_idle(0.01)
    step.ids = ids_of(0, 2)
    assert taken.result(10).valid.all()


def late(taken: waymark.Taken) -> BaseException:
    with pytest.raises(TimeoutError) as error:
        taken.result(0.01)
    return error.value


def test_a_step_is_a_guard_of_the_forward(cap: Capture) -> None:
    cap.bind(3)
    with cap.step(None, 7, slots(3, 0, 2)) as step:
        step.ids = ids_of(0, 2)
    with pytest.raises(KeyError):
        with cap.step(None, None, slots(3, 2, 3)):
            raise KeyError
    with cap.step(None, None, slots(3, 3, 4)) as step:
        step.not_run()
    rows = cap.take(3, 4).result(10)
    assert rows.reasons.tolist() == [0, 0, Reason.NOT_CAPTURED, Reason.NEVER_WRITTEN]
    assert [run.version for run in rows.coverage()][0] == 7


def test_a_guard_that_is_left_without_ids_says_that_they_are_lost(cap: Capture) -> None:
    cap.bind(3)
    with cap.step(None, None, slots(3, 0, 2)):
        pass
    step = cap.step(None, None, slots(3, 2, 4))
    taken = cap.take(3, 4)
    assert not taken.done()
    del step  # nobody can end it any more
    gc.collect()
    assert taken.result(10).reasons.tolist() == [Reason.NOT_CAPTURED] * 4


def test_steps_are_told_before_the_ids_of_earlier_ones_exist(cap: Capture) -> None:
    cap.bind([3, 5])
    first = cap.step(None, None, slots(3, 0, 2))
    second = cap.step(None, None, slots(5, 0, 2))
    second.ids = ids_of(9, 2)
    taken = cap.take([5], 2)
    assert not taken.done()
    first.ids = ids_of(0, 2)
    assert (taken.result(10).ids == ids_of(9, 2)).all()
    for end in (first.lost, first.not_run, lambda: setattr(first, "ids", ids_of(0, 2))):
        with pytest.raises(FailedPreconditionError, match="step 1 has ended"):
            end()


@pytest.mark.parametrize("layout", ["NLK", "LNK"])
def test_the_layout_is_said_and_never_inferred(layout: Any) -> None:
    """As many rows as layers: an array of either layout has the same shape."""
    ids = ids_of(0, LAYERS)
    given = ids if layout == "NLK" else np.ascontiguousarray(ids.transpose(1, 0, 2))
    with make(ids_layout=layout) as cap:
        cap.bind(3)
        cap.step(None, None, slots(3, 0, LAYERS), given)
        assert (cap.take(3, LAYERS).result(10).ids == ids).all()
    with make() as cap:
        cap.bind(3)
        cap.step(None, None, slots(3, 0, LAYERS), given, layout=layout)
        assert (cap.take(3, LAYERS).result(10).ids == ids).all()
        with pytest.raises(InvalidArgumentError, match="layout: one of NLK, LNK; got 'TLK'"):
            cap.step(None, None, slots(3, 3, 4), ids_of(0, 1), layout="TLK")


def test_arrays_that_are_used_again_are_longer_than_the_step(cap: Capture) -> None:
    kept, padded = np.zeros(32, np.int64), np.zeros((8, LAYERS, K), np.int16)
    kept[:2], padded[:2], padded[2:] = slots(3, 0, 2), ids_of(0, 2), -1
    cap.bind(3)
    step = cap.step(None, None, kept, padded, count=2)
    until(lambda: step.done)
    kept[:2], padded[:2] = slots(3, 2, 4), ids_of(2, 2)
    cap.step(None, None, (kept // BLOCK, kept % BLOCK), padded, count=2)
    assert (cap.take(3, 4).result(10).ids == ids_of(0, 4)).all()
    for count in (-1, 33):
        with pytest.raises(InvalidArgumentError, match=rf"count: in \[0, 32\].*got {count}"):
            cap.step(None, None, kept, padded, count=count)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (ids_of(0, 3), r"ids: \[2, 3, 2\], got \[3, 3, 2\]"),
        (ids_of(0, 2)[:, :2], "layers"),
        (ids_of(0, 2)[:, :, :1], "columns"),
        (ids_of(0, 2)[0], "ids: .*dimensions"),
        (ids_of(0, 2).astype(np.float32), "ids"),
    ],
)
def test_ids_that_are_refused_are_lost(cap: Capture, ids: Any, text: str) -> None:
    """The forward has run, whatever its ids are: the rows before must not be taken for its own."""
    cap.bind(3)
    cap.step(None, None, slots(3, 0, 2), ids_of(7, 2))
    with pytest.raises((InvalidArgumentError, TypeError), match=text):
        cap.step(None, None, slots(3, 0, 2), ids)
    assert cap.take(3, 2).result(10).reasons.tolist() == [Reason.NOT_CAPTURED] * 2
    with pytest.raises((InvalidArgumentError, TypeError), match=text):
        with cap.step(None, None, slots(3, 2, 4)) as step:
            step.ids = ids
    assert cap.take(3, 4).result(10).reasons.tolist() == [Reason.NOT_CAPTURED] * 4


def test_what_is_refused_is_no_step_and_has_no_number(cap: Capture) -> None:
    with pytest.raises(InvalidArgumentError, match="events"):
        cap.step(None, None, slots(3, 0, 1), ids_of(0, 1), events=b"nonsense")
    assert cap.last_step == 0
    assert cap.step(5, None, slots(3, 0, 1), ids_of(0, 1)).number == 5
    assert cap.step(None, None, slots(3, 1, 2), ids_of(1, 1)).number == 6
    with pytest.raises(InvalidArgumentError):
        cap.step(6, None, slots(3, 2, 3), ids_of(2, 1))


def test_a_step_without_room_is_dropped() -> None:
    with make(max_steps_in_flight=2) as cap:
        cap.bind(3)
        told = [cap.step(None, None, slots(3, i, i + 1)) for i in range(3)]
        assert [step.dropped for step in told] == [False, False, True]
        told[2].ids = ids_of(2, 1)  # the engine need not look, and goes on
        told[2].lost()
        told[2].not_run()
        with cap.step(None, None, slots(3, 3, 4)) as step:
            step.ids = ids_of(3, 1)
        assert step.dropped and step.done
        for i, step in enumerate(told[:2]):
            step.ids = ids_of(i, 1)
        rows = cap.take(3, 4).result(10)
        assert rows.reasons.tolist() == [0, 0] + [Reason.CAPACITY] * 2
        assert rows.causes.tolist() == [0, 0] + [Cause.NO_BUFFER] * 2
        assert rows.coverage()[-1].why == "capacity: no buffer was free"


def test_rows_of_the_next_owner_are_released(cap: Capture) -> None:
    def take(**owner: object) -> list[str]:
        runs = cap.take(3, 4, **owner).result(10).coverage()  # type: ignore[arg-type]
        return [run.why for run in runs for _ in range(run.begin, run.end)]

    cap.bind(3)
    cap.seal(3, b"first")
    cap.step(1, 1, slots(3, 0, 4), ids_of(0, 4))
    cap.release(3)
    assert take() == ["released"] * 4  # once "valid", whoever had written them
    assert take(last_step=1) == take(last_step=1, keys=[b"first"]) == ["valid"] * 4
    cap.bind(3)
    assert take(last_step=1) == ["released"] * 4
    cap.step(2, 1, slots(3, 0, 2), ids_of(4, 2))
    assert take() == ["valid"] * 2 + ["never written"] * 2
    assert take(last_step=1) == take(last_step=1, keys=[b"first"]) == ["released"] * 4
    assert cap.stats().blocks_without_users == 1
    with pytest.raises(InvalidArgumentError, match="at most as many as blocks, got 2 keys of 1"):
        take(last_step=2, keys=[b"a", b"b"])
    # They do not say whose the last block is, which is not full: its next owner's rows were given.
    with pytest.raises(InvalidArgumentError, match="keys: only with last_step above 0, got 1 keys"):
        take(keys=[b"first"])


def test_what_was_taken_is_a_future(cap: Capture) -> None:
    cap.bind(3)
    step = cap.step(None, None, slots(3, 0, 2))
    taken = cap.take(3, 2)
    called: list[Any] = []
    ran = threading.Event()
    taken.add_done_callback(lambda one: (called.append(one), ran.set()))
    with pytest.raises(TimeoutError):
        taken.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        taken.exception(timeout=0)
    assert not called and not taken.done()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(taken.result, 10) for _ in range(2)]
        time.sleep(0.01)
        step.ids = ids_of(0, 2)
        assert all((future.result().ids == ids_of(0, 2)).all() for future in waiting)
    assert ran.wait(10) and called == [taken] and taken.done() and taken.exception() is None
    taken.add_done_callback(called.append)
    assert called == [taken, taken]


def test_a_callback_that_raises_is_logged(cap: Capture, caplog: pytest.LogCaptureFixture) -> None:
    cap.bind(3)
    taken = cap.take(3, 2)
    taken.result(10)
    taken.add_done_callback(lambda one: 1 / 0)
    assert "a callback of rows failed" in caplog.text


LAST = """
import gc, os, sys, threading, time, numpy, waymark

class Source(dict):
    def get(self, names, seconds):
        return [None for _ in names]
    def put(self, objects, seconds):
        told.wait()
        self.pop("publisher", None)
        called.set()

def tell(how):
    cap = waymark.Capture(num_layers=1, top_k=1, num_experts=8, num_blocks=4, page_tokens=4)
    cap.bind([1])
    step = cap.step(1, 1, [4, 5, 6, 7])
    taken = cap.take([1], 4)
    taken.add_done_callback(lambda _: how == "publisher" or told.wait())
    if how == "last":
        taken.add_done_callback(lambda _, cap=cap: called.set())
    elif how == "close":
        taken.add_done_callback(lambda _, cap=cap: (cap.close(), called.set()))
    elif how == "cycle":  # nobody names the capture in the callback: the collector runs there
        cycle = [cap]
        cycle.append(cycle)
        taken.add_done_callback(lambda _: (gc.collect(), called.set()))
    step.ids = numpy.array([[[1]]] * 4)
    if how == "publisher":
        source = Source()
        source["publisher"] = publisher = waymark.Publisher(source, taken.result(20).shape)
        publisher.publish(taken.result(20))

called, told = threading.Event(), threading.Event()
waymark.Capture(num_layers=1, top_k=1, num_experts=8, num_blocks=4).close()
threads = len(os.listdir("/proc/self/task"))
gc.disable()
tell(sys.argv[1])
told.set()
assert called.wait(20)
while len(os.listdir("/proc/self/task")) > threads:  # or it hangs
    time.sleep(0.01)
"""


@pytest.mark.parametrize("how", ["last", "close", "cycle", "publisher"])
def test_the_last_reference_may_go_away_on_any_thread(how: str) -> None:
    """Pins a bug: on a thread of the library it ended the process (SIGABRT)."""
    output_of(LAST, how)


CALLBACK_AT_EXIT = """
import time, numpy, waymark
cap = waymark.Capture(num_layers=1, top_k=1, num_experts=8, num_blocks=4, page_tokens=4)
cap.bind([1])
step = cap.step(1, 1, [4, 5, 6, 7])
taken = cap.take([1], 4)
taken.add_done_callback(lambda _, sleep=time.sleep, write=print: (sleep(0.3), write("called")))
step.ids = numpy.array([[[1]]] * 4)
taken.result(20)
del taken, step
"""


def test_the_exit_waits_for_a_callback() -> None:
    """Pins a bug: the callback waited for the GIL for ever, and the end of the capture for it."""
    assert output_of(CALLBACK_AT_EXIT)[0] == "called\n"


def test_memory_that_is_used_again_is_looked_into_once() -> None:
    with make(ids_layout="LNK") as cap:
        cap.bind([3, 5])
        kept = np.zeros(32, np.int64)
        arrays = [np.full((LAYERS, 8, K), -1, np.int16) for _ in range(2)]
        rows, ids = cap.buffer(kept), [cap.buffer(array) for array in arrays]
        for number in range(4):
            array, buffer = arrays[number % 2], ids[number % 2]
            until(lambda: buffer.free)  # noqa: B023
            kept[:2] = slots(3 if number < 2 else 5, number % 2 * 2, number % 2 * 2 + 2)
            array[:, :2] = ids_of(10 * number, 2).transpose(1, 0, 2)
            step = cap.step(None, None, rows, buffer, count=2)
            assert step is buffer.step and step.number == number + 1 and not step.dropped
        expected = np.concatenate([ids_of(10 * number, 2) for number in range(4)])
        assert (cap.take([3, 5], 8).result(10).ids == expected).all()
        assert all(buffer.free for buffer in ids)


def test_a_buffer_that_is_read_is_not_given_again() -> None:
    with make(ahead_bytes=0) as cap:
        cap.bind([3, 5])
        first = cap.step(None, None, slots(5, 0, 1))  # what is told behind it waits
        rows, ids = cap.buffer(slots(3, 0, 2)), cap.buffer(ids_of(0, 2))
        cap.step(None, None, rows, ids)
        assert not ids.free
        with pytest.raises(FailedPreconditionError, match="that of step 2"):
            cap.step(None, None, rows, ids)
        del ids  # its memory stays as long as it is read
        gc.collect()
        first.lost()
        assert (cap.take(3, 2).result(10).ids == ids_of(0, 2)).all()


def test_buffers_that_are_refused(cap: Capture) -> None:
    cap.bind(3)
    rows, ids = cap.buffer(slots(3, 0, 2)), cap.buffer(ids_of(0, 2))
    cap.step(None, None, rows, ids)
    for bad in (ids_of(0, 1), ids_of(0, 2)[:, :2], ids_of(0, 2)[0]):
        assert cap.take(3, 2).result(10).valid.all()
        with pytest.raises(InvalidArgumentError):
            cap.step(None, None, rows, cap.buffer(bad))
        assert cap.take(3, 2).result(10).reasons.tolist() == [Reason.NOT_CAPTURED] * 2
        cap.step(None, None, rows, ids)
    cap.wait_idle(10)
    for count in (-1, 3):
        with pytest.raises((InvalidArgumentError, waymark.OutOfRangeError), match="count"):
            cap.step(None, None, rows, ids, count=count)
    for wrong in (np.zeros(2, np.int32), np.zeros((2, 2), np.int64), np.zeros(4, np.int64)[::2]):
        with pytest.raises(InvalidArgumentError, match="rows"):
            cap.step(None, None, cap.buffer(wrong), ids)
    with pytest.raises((InvalidArgumentError, TypeError)):
        cap.buffer(np.zeros(2, np.float32))
    assert (cap.take(3, 2).result(10).ids == ids_of(0, 2)).all()
    pairs = np.array([3, 3], np.int32), np.array([2, 3], np.int32)
    cap.step(None, None, pairs, ids)  # as its array
    cap.wait_idle(10)
    cap.step(None, None, rows, None)
    assert cap.take(3, 4).result(10).reasons.tolist() == [Reason.NOT_CAPTURED] * 2 + [0, 0]


def test_errors_name_what_was_given(cap: Capture) -> None:
    taken: Any = cap.take(3, 2)
    refused(
        TypeError,
        ("recorder: RecorderOptions or None, got True", lambda: make(recorder=True)),
        ("of Taken: its result.*, got Taken", lambda: waymark.join(taken)),
    )
    with pytest.raises(InvalidArgumentError, match="layer_names: one for each layer, got 1"):
        make(layer_names=["gate"])
