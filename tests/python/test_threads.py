"""Readers in threads beside an engine's thread that never stops; objects that die anywhere."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import waymark
from conftest import Rig


def test_readers_beside_steps(seed: int) -> None:
    """Every snapshot is read by another thread, against what its steps wrote."""
    rng = np.random.default_rng(seed)
    rig = Rig(num_blocks=64, num_pages=1024, num_experts=200, top_k=4, num_layers=5)
    work: queue.Queue[Any] = queue.Queue(32)
    wrong: list[str] = []
    read_rows = [0]

    def reader() -> None:
        while (item := work.get()) is not None:
            snapshot, want = item
            try:
                snapshot.wait(20)
                for _ in range(2):
                    if not (snapshot.read(layout="LTK") == want).all():
                        wrong.append("read")
                    if not (snapshot.rows().ids == want.transpose(1, 0, 2)).all():
                        wrong.append("rows")
                read_rows[0] += len(snapshot)
                snapshot.release()
            except Exception as error:  # to the thread that asserts
                wrong.append(repr(error))

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        blocks = rng.permutation(64)[:3]
        rows = int(rng.integers(1, 13))
        slots = waymark.slots_of(blocks, 4, 0, rows)
        ids = rig.ids(rows)
        rig.step += 1
        rig.store.bind(blocks)
        if not rig.session.begin_step(rig.step, 1, slots):
            continue
        rig.session.view(rig.step).array[:, :rows] = ids
        snapshot = rig.store.snapshot(blocks, 0, rows)
        rig.session.submit(rig.step)
        work.put((snapshot, ids))
    for _ in threads:
        work.put(None)
    for thread in threads:
        thread.join(60)
    assert wrong == [] and read_rows[0] > 100
    assert rig.snapshots_live() == 0


def test_waiting_lets_other_threads_run(rig: Rig) -> None:
    """A wait holds the GIL for none of its time."""
    rig.begin([0], [0])
    snapshot = rig.store.snapshot([0], 0, 1)
    before = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # nobody is made to give the GIL up
    try:
        thread = threading.Thread(target=lambda: snapshot.wait(20))
        thread.start()
        start = time.monotonic()
        rig.session.submit(1)
        thread.join(20)
        assert not thread.is_alive() and time.monotonic() - start < 15
    finally:
        sys.setswitchinterval(before)


def test_one_snapshot_in_many_threads(rig: Rig) -> None:
    rows = 8
    ids = rig.write(waymark.slots_of([1, 2], 4, 0, rows), [1, 2])
    snapshot = rig.store.snapshot([1, 2], 0, rows)
    wrong: list[object] = []
    start = threading.Barrier(4)

    def use() -> None:
        try:
            start.wait()
            snapshot.wait(10)
            for _ in range(300):
                if not (snapshot.read(layout="LTK") == ids).all() or not snapshot.ready():
                    wrong.append("read")
                snapshot.coverage()
        except Exception as error:  # to the thread that asserts
            wrong.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


@pytest.mark.parametrize("blocks", [1, 4096])
def test_releasing_while_another_thread_reads(blocks: int) -> None:
    rig = Rig(num_blocks=blocks)
    rig.write([0], range(blocks))
    for _ in range(100):
        snapshot = rig.store.snapshot(range(blocks), 0, 4 * blocks)
        outcome: list[object] = []

        def read(snapshot: waymark.Snapshot = snapshot, outcome: list[object] = outcome) -> None:
            try:
                snapshot.wait(10)
                while True:
                    snapshot.read(dtype=np.int64)  # of many blocks without the GIL
                    outcome.append("read")
            except waymark.FailedPreconditionError as error:
                outcome.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while not outcome and blocks > 1:
            time.sleep(0)
        snapshot.release()
        thread.join(10)
        assert not thread.is_alive() and "released" in str(outcome[-1])


@pytest.mark.parametrize("wait", [True, False])
def test_objects_may_die_in_any_thread_and_order(wait: bool) -> None:
    for turn in range(60):
        rig = Rig()
        rig.write([0], [0])
        snapshot = rig.store.snapshot([0], 0, 1)
        rig.begin([1])
        keep: list[Any] = [rig.store, rig.session, snapshot, rig.session.view(2),
                           rig.session.view(2).array]  # fmt: skip
        if wait:
            snapshot.wait(10)
        del snapshot
        order = np.random.default_rng(turn).permutation(len(keep))
        del rig

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
store = waymark.Store(num_layers=2, top_k=2, num_experts=8, num_blocks=4, landing_cpus=[cpu],
                      recorder=waymark.RecorderOptions(cpus=[cpu]))
publisher = waymark.Publisher(waymark.MemorySource(), store.shape, cpus=[cpu])
threads = {(task / "comm").read_text().strip(): os.sched_getaffinity(int(task.name))
           for task in pathlib.Path("/proc/self/task").iterdir()}
assert os.sched_getaffinity(0) == mine
print(*(name for name, cpus in sorted(threads.items()) if cpus == {cpu} and name[:3] == "wm-"))
"""


def test_threads_have_names_and_cpus() -> None:
    # In a process of its own, which has no other stores' threads.
    ran = subprocess.run([sys.executable, "-c", NAMES_AND_CPUS], capture_output=True, text=True)
    assert ran.stdout.split() == ["wm-flight", "wm-landing", "wm-publish"], ran.stderr
