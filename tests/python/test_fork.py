"""A capture in a forked child of its process, and the CPUs of its thread."""

from __future__ import annotations

import os

import pytest
from conftest import Rig, output_of

CHILD = """
import os, sys, time, numpy, waymark

cap = waymark.Capture(num_layers=2, top_k=2, num_experts=8, num_blocks=8, page_tokens=4)
source = waymark.MemorySource()
publisher = waymark.Publisher(source, cap.shape)
fetcher = waymark.Fetcher(source)
ids = numpy.array([[[1, 2]] * 2] * 2)
cap.bind([1])
cap.step(1, 1, [4, 5], ids)
rows = cap.take([1], 2).result(20)
handle = publisher.publish(rows).wait(20)
last = cap.step(2, 1, [6])
waiting = cap.take([1], 3)
time.sleep(0.2)  # no thread holds a lock of a sanitizer's allocator at the fork

child = os.fork()
if child == 0:
    calls = {
        "bind": lambda: cap.bind([2]),
        "schedule": lambda: cap.schedule(9, 1),
        "take": lambda: cap.take([1], 2),
        "covered_prefix": lambda: cap.covered_prefix([1], 4),
        "wait_idle": lambda: cap.wait_idle(),
        "last_step": lambda: cap.last_step,
        "stats": lambda: cap.stats(),
        "layer_stats": lambda: cap.layer_stats(),
        "check": lambda: cap.check(),
        "step": lambda: cap.step(3, 1, [7]),
        "ids": lambda: setattr(last, "ids", ids[:1]),
        "wait": lambda: waiting.result(),
        "publish": lambda: publisher.publish(fetcher.fetch(handle)),
        "publisher.stats": lambda: publisher.stats(),
        "publisher.forget": lambda: publisher.forget("a"),
    }
    for name, call in calls.items():
        try:
            call()
        except waymark.FailedPreconditionError:
            continue
        print("not refused:", name)
        os._exit(1)
    if (rows.ids != ids).any():
        os._exit(2)
    if sys.argv[1] == "close":
        cap.close()
    elif sys.argv[1] == "references":
        del waiting, last, cap, publisher, fetcher, calls, call
    sys.exit(0)  # as a child that ends by itself: the interpreter is finalised
status = os.waitpid(child, 0)[1]
assert status == 0, status
cap.check()
last.lost()
assert len(waiting.result(20)) == 3
assert len(fetcher.fetch(handle)) == 2
"""


@pytest.mark.parametrize("end", ["exit", "references", "close"])
def test_a_forked_child_is_refused_and_ends(end: str) -> None:
    """Pins a bug: the exit of a child of a process with a publisher hung for ever."""
    output_of(CHILD, end)


def test_the_stores_thread_is_not_pinned_with_its_creator() -> None:
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("this process may use one CPU only")
    os.sched_setaffinity(0, {min(mine)})
    try:
        rig = Rig()
        threads = {
            name.strip(): os.sched_getaffinity(int(task))
            for task in os.listdir("/proc/self/task")
            for name in [open(f"/proc/self/task/{task}/comm").read()]
        }
        assert threads["wm-landing"] == mine
        rig.store.close()
    finally:
        os.sched_setaffinity(0, mine)
