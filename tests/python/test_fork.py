"""What has threads, in a forked child of its process; and the CPUs of a capture's thread."""

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
        "wait_idle": lambda: cap.wait_idle(),
        "step": lambda: cap.step(3, 1, [7]),
        "ids": lambda: setattr(last, "ids", ids[:1]),
        "wait": lambda: waiting.result(),
        "publish": lambda: publisher.publish(fetcher.fetch(handle)),
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
    sys.exit(0)  # as a child that ends by itself: the interpreter is finalised
status = os.waitpid(child, 0)[1]
assert status == 0, status
cap.check()
last.lost()
assert len(waiting.result(20)) == 3
assert len(fetcher.fetch(handle)) == 2
"""


def test_a_forked_child_is_refused_and_ends() -> None:
    """Pins a bug: the exit of a child of a process with a publisher hung for ever."""
    output_of(CHILD)


ENDS = """
import gc, os, signal, sys, numpy, waymark

ids = numpy.array([[[1, 2]] * 2] * 2)

class Ranks:
    rank, size = 0, 2
    def all_gather(self, part):
        return [part, part]

def capture(**options):
    shape = dict(num_layers=2, top_k=2, num_experts=8, page_tokens=4)
    return waymark.Capture(**shape, num_blocks=8, **options)

def use(it):
    if isinstance(it, waymark.Publisher):
        return it.publish(rows).wait(20)
    if isinstance(it, waymark.Fetcher):
        return it.fetch(handle)
    number = it.last_step + 1
    it.bind([number])
    it.step(number, 1, list(range(4 * number, 4 * number + slots)), ids)
    assert len(it.take([number], 2).result(20)) == 2

def end_former():
    global it
    if end == "close":
        it.close()
    elif end == "drop":
        it = None
    gc.collect()

kind, slots = sys.argv[1], 2 + 2 * (sys.argv[1] == "gather")
source = waymark.MemorySource()
makers = {
    "capture": capture,
    "tier": lambda: capture(tier=waymark.Tier(waymark.MemorySource())),
    "recorder": lambda: capture(recorder=waymark.RecorderOptions()),
    "gather": lambda: capture(row_gather=Ranks()),
    "publisher": lambda: waymark.Publisher(source, rows.shape),
    "fetcher": lambda: waymark.Fetcher(source),
}
first = capture()
first.bind([1])
first.step(1, 1, [4, 5], ids)
rows = first.take([1], 2).result(20)
first.close()
handle = waymark.Publisher(source, rows.shape).publish(rows).wait(20)
for end in ("close", "drop", "rebind"):
    if end == "close" and not hasattr(makers[kind](), "close"):
        continue
    for own_first in (False, True):
        it = makers[kind]()
        use(it)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            if not own_first:
                end_former()
            own = makers[kind]()
            use(own)
            if own_first:
                end_former()
            if end == "rebind":
                it = own
                gc.collect()
            use(own)
            del own
            it = None
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status == 0, (end, own_first, status)
        use(it)
"""


@pytest.mark.parametrize(
    "kind", ["capture", "tier", "recorder", "gather", "publisher", "fetcher"]
)
def test_a_forked_child_ends_what_it_was_given_and_has_its_own(kind: str) -> None:
    """Pins a bug: the parent's capture ended in a child with one of its own: SIGABRT."""
    output_of(ENDS, kind)


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
