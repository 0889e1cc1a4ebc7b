"""Nothing is left behind by a long life: references, memory, pages."""

from __future__ import annotations

import gc
import os
import sys
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
    """Begin, submit, snapshot, read, release: what is alive afterwards is what was before."""
    cycles = int(request.config.getoption("--cycles"))
    rig = Rig(landing="caller")
    slots = np.arange(4, dtype=np.int64)
    events = np.zeros(1, waymark.event_dtype)
    events["type"] = waymark.EventType.BIND
    pairs = [np.zeros(4, np.int32), np.arange(4, dtype=np.int32)]
    out = np.empty((4, 3, 2), np.int16)
    ids = np.ascontiguousarray(rig.ids(4).transpose(1, 0, 2))
    blocks = [0]
    shared: list[Any] = [slots, events, *pairs, out, ids, blocks, rig.store, rig.session]

    def cycle(step: int) -> None:
        if step % 4:
            if step % 2:
                rig.session.begin_step(step, 1, slots, events=events)
            else:
                rig.store.bind(blocks)
                rig.session.begin_step(step, 1, pairs=(pairs[0], pairs[1]))
            rig.session.view(step).array[:, :4] = 1
            rig.session.submit(step)
        else:
            rig.session.begin_ids_step(step, 1, slots, events=events.tobytes())
            rig.session.submit_ids(step, ids)
        snapshot = rig.store.snapshot(blocks, 0, 4)
        rig.store.land(step)
        snapshot.read(out=out)
        if step % 8 == 0:
            rows = snapshot.rows()
            assert len(rows) == 4 and rows.ids is not None and rig.store.stats().steps_begun
            try:
                rig.session.submit(step)
            except waymark.NotFoundError:
                pass
        snapshot.release()

    for step in range(1, cycles // 5):
        cycle(step)
    gc.collect()
    before = [sys.getrefcount(thing) for thing in shared], len(gc.get_objects()), resident()
    for step in range(cycles // 5, cycles + 1):
        cycle(step)
    rig.store.last_step  # gives back the last ids
    gc.collect()
    after = [sys.getrefcount(thing) for thing in shared], len(gc.get_objects()), resident()
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) < 50
    assert after[2] - before[2] < 2 << 20
    stats = rig.store.stats()
    assert stats.steps_begun == cycles and stats.snapshots_live <= 1


def test_stores_and_sessions_come_and_go() -> None:
    def life() -> None:
        rig = Rig(recorder=waymark.RecorderOptions(ring_bytes=1 << 16))
        rig.store.bind([0], [b"key"])
        rig.write([0])
        snapshot = rig.store.snapshot([0], 0, 1)
        keep = [rig.session.view(1).array, snapshot, rig.store.recorder]
        rig.begin([1])
        del rig
        snapshot.wait(10)
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
    rows, tags = 1024, (1, 2)
    rig = Rig(num_layers=32, top_k=8, num_experts=256, page_tokens=rows, max_rows=rows)
    rig.write(range(rows), bind=[0])
    writer = waymark.ScheduleWriter(32, rows)

    def read(allocations: int) -> bool:
        """Python has memory for so many allocations. Whether that was enough."""
        writer.begin(2, 1)
        for tag in tags:
            writer.forget(tag)  # of a call that failed before it took them
            writer.snapshot(tag, [0], 0, rows)
        rig.store._report_message(writer.finish())
        rig.store.wait_idle(10)
        memory.set_nomemory(allocations)
        try:
            return bool(rig.store._results(10.0))
        except MemoryError:
            return False
        finally:
            memory.remove_mem_hooks()

    enough = next(allocations for allocations in range(100) if read(allocations))
    assert enough > 3  # some are after the rows were read
    gc.collect()
    before = resident()
    for _ in range(32):
        for allocations in range(enough):
            read(allocations)
    gc.collect()
    assert resident() - before < 8 << 20
