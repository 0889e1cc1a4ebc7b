"""Readers in threads beside an engine's thread that never stops; objects that die anywhere."""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig, in_threads, output_of


def test_readers_beside_steps(seed: int) -> None:
    """What is taken is read by other threads, against what its steps wrote."""
    rng = np.random.default_rng(seed)
    rig = Rig(num_blocks=64, num_pages=1024, num_experts=200, top_k=4, num_layers=5)
    work: queue.Queue[Any] = queue.Queue(32)
    wrong: list[str] = []
    read_rows = [0]

    def reader() -> None:
        while (item := work.get()) is not None:
            taken, want = item
            try:
                rows = taken.result(20)
                if not (rows.ids == want).all() or not (rows.astype() == want).all():
                    wrong.append("rows")
                read_rows[0] += len(rows)
            except Exception as error:  # to the thread that asserts
                wrong.append(repr(error))

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        blocks = rng.permutation(64)[:3]
        rows = int(rng.integers(1, 13))
        ids = rig.ids(rows)
        step = rig.begin(waymark.slots_of(blocks, 4, 0, rows), blocks)
        taken = rig.store.take(blocks, rows)
        step.ids = ids
        if not step.dropped:
            work.put((taken, ids))
    for _ in threads:
        work.put(None)
    for thread in threads:
        thread.join(60)
    assert wrong == [] and read_rows[0] > 100
    deadline = time.monotonic() + 10
    while rig.store.stats().snapshots_live and time.monotonic() < deadline:
        rig.write([])
        rig.store.wait_idle(10)
    assert rig.store.stats().snapshots_live == 0  # nothing is pinned longer than reading takes


def test_waiting_lets_other_threads_run(rig: Rig) -> None:
    """A wait holds the GIL for none of its time."""
    step = rig.begin([0], [0])
    taken = rig.store.take([0], 1)
    ids = rig.ids(1)
    before = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # nobody is made to give the GIL up
    try:
        thread = threading.Thread(target=lambda: taken.result(20))
        thread.start()
        start = time.monotonic()
        step.ids = ids
        thread.join(20)
        assert not thread.is_alive() and time.monotonic() - start < 15
    finally:
        sys.setswitchinterval(before)


def test_what_was_taken_in_many_threads(rig: Rig) -> None:
    """They wait before the rows are there, and all get the same object."""
    step = rig.begin(waymark.slots_of([1, 2], 4, 0, 8), [1, 2])
    taken = rig.store.take([1, 2], 8)
    ids = rig.ids(8)

    def use() -> waymark.Rows:
        rows = taken.result(10)
        for _ in range(300):
            assert (rows.astype(layout="LTK") == ids.transpose(1, 0, 2)).all()
            assert taken.done() and not taken.exception() and len(rows.coverage()) == 1
        return rows

    threading.Timer(0.05, lambda: setattr(step, "ids", ids)).start()
    found = in_threads(4, use)
    assert all(rows is found[0] for rows in found)


@pytest.mark.parametrize("wait", [True, False])
def test_objects_may_die_in_any_thread_and_order(wait: bool) -> None:
    for turn in range(60):
        rig = Rig()
        ids = rig.write([0], [0])
        taken = rig.store.take([0], 1)
        open_step = rig.begin([1])
        behind = rig.store.take([0], 2)
        buffer = rig.store.buffer(np.zeros((1, 3, 2), np.int16))
        rows = taken.result(10).ids if wait else None
        keep: list[Any] = [rig.store, open_step, taken, behind, buffer, ids, rows]
        order = np.random.default_rng(turn).permutation(len(keep))
        del rig, open_step, taken, behind, buffer, ids, rows

        def drop(keep: list[Any] = keep, order: Any = order) -> None:
            for i in order:
                keep[i] = None

        thread = threading.Thread(target=drop)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()


NAMES_AND_CPUS = """
import os, pathlib
import waymark
mine = os.sched_getaffinity(0)
cpu = max(mine)
store = waymark.Capture(num_layers=2, top_k=2, num_experts=8, num_blocks=4, landing_cpus=[cpu],
                        recorder=waymark.RecorderOptions(cpus=[cpu]))
publisher = waymark.Publisher(waymark.MemorySource(), store.shape, cpus=[cpu])
threads = {(task / "comm").read_text().strip(): os.sched_getaffinity(int(task.name))
           for task in pathlib.Path("/proc/self/task").iterdir()}
assert os.sched_getaffinity(0) == mine
print(*(name for name, cpus in sorted(threads.items()) if cpus == {cpu} and name[:3] == "wm-"))
"""


def test_threads_have_names_and_cpus() -> None:
    # In a process of its own, which has no other captures' threads.
    assert output_of(NAMES_AND_CPUS)[0].split() == ["wm-flight", "wm-landing", "wm-publish"]
