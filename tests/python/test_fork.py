"""A store in a forked child of its process, and the CPUs of its thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import waymark
from conftest import Rig

CHILD = """
import os, sys, waymark

store = waymark.Store(num_layers=2, top_k=2, num_experts=8, num_blocks=8, page_tokens=4)
session = waymark.CaptureSession(store, max_rows=8)
store.bind([1])
session.begin_step(1, 1, [4, 5])
session.view(1).array[:] = [[[1, 2]] * 8] * 2
session.submit(1)
ready = store.snapshot([1], 0, 2)
ready.wait(20)
session.begin_step(2, 1, [6])
waiting = store.snapshot([1], 0, 3)

child = os.fork()
if child == 0:
    calls = {
        "bind": lambda: store.bind([2]),
        "schedule": lambda: store.schedule(9, 1),
        "snapshot": lambda: store.snapshot([1], 0, 2),
        "covered_prefix": lambda: store.covered_prefix([1], 4),
        "wait_idle": lambda: store.wait_idle(),
        "last_step": lambda: store.last_step,
        "stats": lambda: store.stats(),
        "check": lambda: store.check(),
        "begin_step": lambda: session.begin_step(3, 1, [7]),
        "submit": lambda: session.submit(2),
        "wait": lambda: waiting.wait(),
    }
    for name, call in calls.items():
        try:
            call()
        except waymark.FailedPreconditionError:
            continue
        print("not refused:", name)
        os._exit(1)
    if ready.rows().ids.tolist() != [[[1, 2]] * 2] * 2:
        os._exit(2)
    del waiting, ready, session, store, calls, call
    sys.exit(0)  # as a child that ends by itself
assert os.waitpid(child, 0)[1] == 0
store.check()
session.drop(2)
waiting.wait(20)
"""


def test_a_forked_child_is_refused_and_ends() -> None:
    subprocess.run([sys.executable, "-c", CHILD], check=True, timeout=60)


def test_the_stores_thread_is_not_pinned_with_its_creator() -> None:
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("this process may use one CPU only")
    os.sched_setaffinity(0, {min(mine)})
    try:
        rig = Rig(landing="thread")
        threads = {
            name.strip(): os.sched_getaffinity(int(task))
            for task in os.listdir("/proc/self/task")
            for name in [open(f"/proc/self/task/{task}/comm").read()]
        }
        assert threads["wm-landing"] == mine
        rig.store.close()
    finally:
        os.sched_setaffinity(0, mine)


def test_check_of_a_store_that_has_not_failed() -> None:
    store = Rig().store
    store.check()
    assert store.stats().exceptions == 0
    store.close()
    with pytest.raises(waymark.FailedPreconditionError):
        store.check()
