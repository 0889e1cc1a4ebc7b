"""Leaves out one hook of the plugin, to see that the comparison or the audit notices. Only tests import it.

The entry point `waymark_faults` (entry_point/) calls register() in every process of the engine; the environment
variable WAYMARK_TEST_FAULT names the hook, one of FAULTS. Waymark's own code knows nothing of it: messages are
taken apart and written again without the events of one kind (docs/schedule-message.md has the format); "message"
loses every tenth message.
"""
import os
import struct

EVENTS = {"bind": 1, "retain": 2, "release": 3, "seal": 4, "copy": 5, "truncate": 7, "reset": 8}
# The scenario that reaches each; None: no scenario does (a copy needs hits that end inside a block, a truncation drafts
# that are rejected late; a release that is left out changes nothing while every block has a page, which is the default).
FAULTS = {"bind": "preempt", "retain": "preempt", "release": None, "seal": "preempt", "copy": None, "truncate": None, "reset": "reset",
          "preempt_snapshot": "preempt", "finish_snapshot": "preempt", "message": "preempt", "step": "preempt", "layer": "preempt",
          "external": "kv_files"}
HEADER = 56
SNAPSHOT, FORGET = 9, 10


def items(message):
    """(kind, arguments of ScheduleWriter's method) of each item of a message."""
    at = HEADER
    while at < len(message) - 8:
        kind, detail = message[at], message[at + 1]
        at += 4
        if kind in (1, 4):
            block, = struct.unpack_from("<i", message, at)
            at += 4
            step = ()
            if kind == 4:
                step = struct.unpack_from("<Q", message, at)
                at += 8
            key = bytes(message[at:at + detail]) or None
            at += detail
            yield kind, ([block], [key], *((step[0] or None,) if step else ()))
        elif kind in (2, 3):
            yield kind, (list(struct.unpack_from("<i", message, at)),)
            at += 4
        elif kind == 5:
            block, source, rows = struct.unpack_from("<iii", message, at)
            at += 12
            yield kind, ([source], [block], rows)
        elif kind == 7:
            block, row, step = struct.unpack_from("<iiQ", message, at)
            at += 16
            yield kind, ([block], row, step)
        elif kind == 8:
            yield kind, ()
        elif kind == SNAPSHOT:
            count, tag, first, last = struct.unpack_from("<IQqq", message, at)
            at += 28
            yield kind, (tag, list(struct.unpack_from(f"<{count}i", message, at)), first, last)
            at += 4 * count
        elif kind == FORGET:
            yield kind, struct.unpack_from("<Q", message, at)
            at += 8
        else:
            raise ValueError(f"an item of kind {kind}, which vLLM does not have")


METHODS = {1: "bind", 2: "retain", 3: "release", 4: "seal", 5: "copy", 7: "truncate", 8: "reset", SNAPSHOT: "snapshot", FORGET: "forget"}


def faulty(make, writer, fault):
    """A class like VllmScheduler, `make`, that leaves the fault's hook out."""
    class Faulty:
        def __init__(self, num_blocks, block_tokens, *more):
            self._inner = make(num_blocks, block_tokens, *more)
            self._writer = writer(num_blocks, block_tokens)
            self._messages = 0

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def preempt(self, request, rows, tag):
            left_out = fault == "preempt_snapshot"
            self._inner.preempt(request, 0 if left_out else rows, None if left_out else tag)

        def finish(self, request, rows, tag):
            left_out = fault == "finish_snapshot"
            self._inner.finish(request, 0 if left_out else rows, None if left_out else tag)

        def finish_message(self):
            message = self._inner.finish_message()
            step, version = struct.unpack_from("<QQ", message, 24)
            self._writer.begin(step, version)
            for kind, arguments in items(message):
                if kind != EVENTS.get(fault):
                    getattr(self._writer, METHODS[kind])(*arguments)
            rewritten = self._writer.finish()
            self._messages += 1
            return b"" if fault == "message" and self._messages % 10 == 0 else rewritten

    return Faulty


def register():
    fault = os.environ.get("WAYMARK_TEST_FAULT")
    if not fault:
        return
    from waymark import ScheduleWriter
    from waymark.vllm import _scheduler, _worker
    if getattr(_scheduler, "_faulty", False):
        return
    _scheduler._faulty = True
    _scheduler.VllmScheduler = faulty(_scheduler.VllmScheduler, ScheduleWriter, fault)
    if fault == "step":
        _worker.WorkerHalf.end_step = lambda self: None
    if fault == "external":
        _scheduler.SchedulerHalf.loads = lambda self, *args: None
    if fault == "layer":
        attach = _worker.WorkerHalf.attach

        def without_the_last(self):
            attach(self)
            self._routers[-1].set_capture_fn(None)

        _worker.WorkerHalf.attach = without_the_last
