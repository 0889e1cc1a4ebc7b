"""Nothing is left behind by a long life: references, memory, pages."""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig


def resident() -> int:
    """Bytes; 0 under AddressSanitizer, which keeps what is freed."""
    with open("/proc/self/maps") as maps:
        if "libasan" in maps.read():
            return 0
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_hundred_thousand_steps(request: pytest.FixtureRequest) -> None:
    """Tell, set the ids, take, read: what is alive afterwards is what was before."""
    cycles = int(request.config.getoption("--cycles"))
    rig = Rig()
    store = rig.store
    slots = np.arange(4, dtype=np.int64)
    events = np.zeros(1, waymark.event_dtype)
    events["type"] = waymark.EventType.BIND
    pairs = (np.zeros(4, np.int32), np.arange(4, dtype=np.int32))
    out = np.empty((4, 3, 2), np.int16)
    ids = rig.ids(4)
    blocks = [0]
    kept = store.buffer(slots), store.buffer(ids)
    shared: list[Any] = [slots, events, *pairs, out, ids, blocks, store, *kept, kept[1].step]

    def cycle(step: int) -> None:
        how = step % 4
        if how == 0:
            store.step(step, 1, slots, ids, events=events)
        elif how == 1:
            store.bind(blocks)
            store.step(step, 1, pairs).ids = ids
        elif how == 2:
            with store.step(step, 1, slots, events=events.tobytes()):
                pass
        else:
            while not kept[1].free:
                time.sleep(0)
            store.step(step, 1, *kept)
        if step % 8:
            return
        rows = store.take(blocks, 4).result(20)
        rows.astype(out=out)
        assert len(rows) == 4 and rows.ids is not None and store.stats().steps_begun
        try:
            store.step(step, 1, slots, ids)
        except waymark.InvalidArgumentError:
            pass

    def measure() -> tuple[list[int], int, int]:
        store.wait_idle(20)
        _ = store.last_step  # gives back the last ids
        gc.collect()
        return [sys.getrefcount(thing) for thing in shared], len(gc.get_objects()), resident()

    for step in range(1, cycles // 5):
        cycle(step)
    before = measure()
    for step in range(cycles // 5, cycles + 1):
        cycle(step)
    after = measure()
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) < 50
    assert after[2] - before[2] < 2 << 20
    stats = store.stats()
    assert stats.steps_begun == cycles and stats.snapshots_live <= 1


@pytest.mark.parametrize("closed", [False, True])
def test_captures_come_and_go(closed: bool) -> None:
    def life() -> None:
        rig = Rig(recorder=waymark.RecorderOptions(ring_bytes=1 << 16))
        rig.store.bind([0], [b"key"])
        rig.write([0])
        taken = rig.store.take([0], 1)
        keep = [rig.store.buffer(np.zeros(1, np.int64)), rig.begin([1])]
        behind = rig.write([2])  # its ids are read, if ever, when the capture is gone
        if closed:
            rig.store.close()
        del rig, behind
        taken.result(10)
        assert keep

    for _ in range(20):
        life()
    gc.collect()
    objects, before, threads = len(gc.get_objects()), resident(), len(os.listdir("/proc/self/task"))
    for _ in range(200):
        life()
    gc.collect()
    assert abs(len(gc.get_objects()) - objects) < 50
    assert resident() - before < 8 << 20
    assert len(os.listdir("/proc/self/task")) == threads


def test_rows_of_a_result_that_python_has_no_memory_for() -> None:
    """They were leaked."""
    memory = pytest.importorskip("_testcapi")
    rows = 1024
    rig = Rig(num_layers=32, top_k=8, num_experts=256, page_tokens=rows)
    rig.write(range(rows), bind=[0])

    def read(allocations: int) -> bool:
        """Python has memory for so many allocations. Whether that was enough."""
        taken = rig.store._take([0], rows, 0, 0, None, None)
        rig.store.wait_idle(10)
        memory.set_nomemory(allocations)
        try:
            return bool(taken._result(10.0))
        except MemoryError:
            return False
        finally:
            memory.remove_mem_hooks()

    enough = next(allocations for allocations in range(100) if read(allocations))
    assert enough > 1  # some are after the rows were read
    gc.collect()
    before = resident()
    for _ in range(32):
        for allocations in range(enough):
            read(allocations)
    gc.collect()
    assert resident() - before < 8 << 20
