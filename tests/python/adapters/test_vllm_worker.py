"""VllmWorker: a step of an engine like vLLM in one call."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from waymark import (
    CaptureSession,
    FailedPreconditionError,
    InvalidArgumentError,
    LayerCapture,
    Reason,
    Store,
    _core,
)
from waymark.vllm import VllmScheduler, VllmWorker

BLOCK, LAYERS, K = 4, 2, 2


class Worker:
    """A worker of two layers. The ids of layer l at position p are p + 50 l and the next one."""

    def __init__(self, derive: bool = True) -> None:
        self.store = Store(
            num_layers=LAYERS, top_k=K, num_experts=256, num_blocks=16, block_tokens=BLOCK,
            page_tokens=BLOCK, null_blocks=[0],
        )  # fmt: skip
        self.session = CaptureSession(self.store, max_rows=32, num_buffers=1)
        for layer in range(LAYERS):
            self.session.bind_layer(layer, f"layer{layer}", LayerCapture.HANDS_OVER)
        self.slots = np.zeros(32, np.int64)
        self.worker = VllmWorker(self.session, self.slots, derive)
        self.memory: list[Any] = []
        self.buffer = self.add_buffer()
        self.scheduler = VllmScheduler(16, BLOCK)

    def add_buffer(self) -> int:
        self.memory.append(np.zeros(LAYERS * 32 * K, np.int32))
        return self.worker.add_buffer(self.memory[-1], K)

    def put(self, positions: list[int], forward_rows: int = 0) -> int:
        forward_rows = forward_rows or len(positions)
        ids = self.memory[self.buffer][: LAYERS * forward_rows * K]
        ids = ids.reshape(LAYERS, forward_rows, K)
        ids[:] = 255
        for layer in range(LAYERS):
            for row, position in enumerate(positions):
                ids[layer, row] = position + 50 * layer, position + 50 * layer + 1
        return forward_rows

    def step(self, number: int, rows: list[tuple[int, int]], message: bytes | None = None) -> int:
        """rows: (slot, position)."""
        self.slots[: len(rows)] = [slot for slot, _ in rows]
        forward_rows = self.put([position for _, position in rows])
        free = self.worker.step(number, 1, len(rows), self.buffer, forward_rows, message)
        self.buffer = free if free >= 0 else self.add_buffer()
        return free

    def message(self, step: int) -> bytes:
        self.scheduler.begin(step, 1)
        self.scheduler.new(1, [5], 0, 0, ())
        return self.scheduler.finish_message()

    def read(self, blocks: list[int], rows: int) -> Any:
        with self.store.snapshot(blocks, 0, rows) as snapshot:
            snapshot.wait(10)
            return snapshot.rows()


def expected(rows: int) -> Any:
    return np.array([[[p + 50 * layer + k for k in range(K)] for layer in range(LAYERS)]
                     for p in range(rows)])  # fmt: skip


def test_decodes_begin_blocks_without_a_message() -> None:
    worker = Worker()
    worker.step(1, [(5 * BLOCK + p, p) for p in range(4)], worker.message(1))
    for p in range(4, 10):
        worker.step(p, [((7 if p < 8 else 3) * BLOCK + p % BLOCK, p)])
    rows = worker.read([5, 7, 3], 10)
    assert rows.valid.all()
    assert (rows.ids == expected(10)).all()


def test_a_decode_begins_the_life_of_a_block_that_had_rows() -> None:
    worker = Worker()
    worker.step(1, [(5 * BLOCK + p, p) for p in range(4)], worker.message(1))
    worker.step(2, [(5 * BLOCK, 8)])  # the block is another request's now
    rows = worker.read([5], 4)
    assert list(rows.valid) == [True, False, False, False]
    assert (rows.ids[0] == np.array([[8, 9], [58, 59]])).all()


def test_without_derived_events_a_block_needs_its_message() -> None:
    worker = Worker(derive=False)
    worker.step(1, [(5 * BLOCK + p, p) for p in range(4)], worker.message(1))
    worker.step(2, [(5 * BLOCK, 8)])
    assert worker.read([5], 4).valid.all()  # the block goes on


def test_rows_of_a_forward_with_padding() -> None:
    worker = Worker()
    worker.slots[:3] = [5 * BLOCK, 5 * BLOCK + 1, 5 * BLOCK + 2]
    forward_rows = worker.put([0, 1, 2], forward_rows=8)
    worker.worker.step(1, 1, 3, worker.buffer, forward_rows, worker.message(1))
    assert (worker.read([5], 3).ids == expected(3)).all()


def test_a_step_without_ids_loses_its_rows() -> None:
    worker = Worker()
    worker.slots[:2] = [5 * BLOCK, 5 * BLOCK + 1]
    worker.worker.step(1, 1, 2, -1, 0, worker.message(1))
    worker.step(2, [(5 * BLOCK + 2, 2)])
    rows = worker.read([5], 3)
    assert list(rows.reasons) == [Reason.CAPACITY, Reason.CAPACITY, 0]
    assert worker.session.stats().steps_dropped == 1


def test_a_buffer_that_is_read_is_not_given_again() -> None:
    store = Store(num_layers=1, top_k=1, num_experts=8, num_blocks=4, block_tokens=BLOCK,
                  page_tokens=BLOCK, landing="caller")  # fmt: skip
    session = CaptureSession(store, max_rows=4, num_buffers=1)
    session.bind_layer(0, "layer", LayerCapture.HANDS_OVER)
    worker = VllmWorker(session, np.zeros(4, np.int64), True)
    assert [worker.add_buffer(np.zeros(4, np.int32), 1) for _ in range(2)] == [0, 1]
    assert worker.step(1, 1, 1, 0, 1) == 1
    assert worker.step(2, 1, 1, 1, 1) == -1
    with pytest.raises(FailedPreconditionError, match="free, got 1"):
        worker.step(3, 1, 1, 1, 1)
    store.wait_idle(10)
    assert worker.step(3, 1, 1, 1, 1) == 0


def test_a_message_that_is_refused_begins_no_step() -> None:
    worker = Worker()
    worker.slots[0] = 5 * BLOCK
    forward_rows = worker.put([0])
    with pytest.raises(InvalidArgumentError, match="message"):
        worker.worker.step(1, 1, 1, worker.buffer, forward_rows, b"nonsense")
    assert worker.session.stats().steps_begun == 0
    worker.worker.step(1, 1, 1, worker.buffer, forward_rows)
    assert worker.session.stats().steps_submitted == 1


@pytest.mark.parametrize(
    ("rows", "buffer", "forward_rows", "text"),
    [
        (33, 0, 33, r"rows: in \[0, 32\], got 33"),
        (-1, 0, 1, "rows"),
        (2, 0, 1, r"forward_rows: in \[2, 32\], got 1"),
        (2, 0, 33, "forward_rows"),
        (2, 1, 2, "buffer: below 1, got 1"),
    ],
)
def test_what_is_wrong_with_a_step_is_named(
    rows: int, buffer: int, forward_rows: int, text: str
) -> None:
    worker = Worker()
    with pytest.raises(InvalidArgumentError, match=text):
        worker.worker.step(1, 1, rows, buffer, forward_rows)
    assert worker.session.stats().steps_begun == 0


def test_memory_must_be_what_the_worker_can_read() -> None:
    worker = Worker()
    for slots in (np.zeros(4, np.int32), np.zeros(8, np.int64)[::2], [1, 2]):
        with pytest.raises(InvalidArgumentError, match="slots"):
            VllmWorker(worker.session, slots, True)
    with pytest.raises(InvalidArgumentError, match="buffer"):
        worker.worker.add_buffer(np.zeros((4, 4), np.int32), K)
    with pytest.raises(InvalidArgumentError, match="columns: at least K, 2, got 1"):
        worker.worker.add_buffer(np.zeros(64, np.int32), 1)
    with pytest.raises(TypeError, match="buffer"):
        worker.worker.add_buffer(np.zeros(64, np.float32), K)


def test_tagged_snapshots_are_read_together() -> None:
    worker = Worker()
    worker.step(1, [(5 * BLOCK + p, p) for p in range(4)], worker.message(1))
    worker.scheduler.snapshot(1, 0, 3, 21)
    worker.scheduler.finish(1, 4, 22)
    worker.scheduler.begin(2, 1)
    worker.store.report_message(worker.scheduler.finish_message())
    read = _core._read_tagged(worker.store, (21, 20, 22), 10)
    (first, runs, complete, failure), missing, (whole, *_) = read
    assert first is not None and whole is not None
    assert (first.ids == expected(3)).all() and (whole.ids == expected(4)).all()
    assert json.loads(runs) == [[0, 3, 0, 1, 0]] and complete and not failure
    assert missing[0] is None and not missing[2] and "20" in missing[3]
    assert _core._read_tagged(worker.store, (), 10) == []
    with pytest.raises(TypeError, match="tags"):
        _core._read_tagged(worker.store, "21", 10)


def test_a_tagged_snapshot_with_missing_rows_is_not_complete() -> None:
    worker = Worker()
    worker.slots[0] = 5 * BLOCK
    worker.worker.step(1, 1, 1, -1, 0, worker.message(1))  # its ids are lost
    worker.step(2, [(5 * BLOCK + 1, 1)])
    worker.scheduler.finish(1, 2, 21)
    worker.scheduler.begin(3, 1)
    worker.store.report_message(worker.scheduler.finish_message())
    [(rows, runs, complete, failure)] = _core._read_tagged(worker.store, (21,), 10)
    assert rows is not None and not complete and not failure
    assert [run[2] for run in json.loads(runs)] == [Reason.CAPACITY, 0]


def test_one_timeout_is_for_all_tagged_snapshots() -> None:
    """Each was waited for in its turn: a step that did not end held the reader once for each."""
    worker = Worker()
    worker.step(1, [(5 * BLOCK + p, p) for p in range(4)], worker.message(1))
    worker.session.begin_ids_step(2, 1, np.full(1, 5 * BLOCK, np.int64))  # is not submitted
    for tag in range(8):
        worker.scheduler.snapshot(1, 0, 4, tag)
    worker.scheduler.begin(3, 1)
    worker.store.report_message(worker.scheduler.finish_message())
    start = time.monotonic()
    read = _core._read_tagged(worker.store, range(8), 0.25)
    assert 0.25 <= time.monotonic() - start < 1.5
    assert [one[0] for one in read] == [None] * 8 and all(one[3] for one in read)
