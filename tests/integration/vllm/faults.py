"""Leaves out one hook of the plugin, to see that the comparison or the audit notices. Only tests import it.

The entry point `waymark_faults` (entry_point/) calls register() in every process of the engine, before the plugin's
own; the environment variable WAYMARK_TEST_FAULT names the fault, one of FAULTS. Waymark's own code knows nothing of
it. What a fault patches has to be there, else the engine does not start; and when a fault has done something for the
first time, it writes the file WAYMARK_TEST_FAULT_FILE: a run without that file proves nothing, and fails.
"""
import functools
import os
import pathlib
import struct

# Events that are not sent: messages are taken apart and written again without those of one kind
# (docs/schedule-message.md has the format). The plugin never sends a truncation: it seals only tokens that
# are accepted, and behind a load only when its output is there.
EVENTS = {"bind": 1, "retain": 2, "release": 3, "seal": 4, "copy": 5, "reset": 8}
# Methods of vLLM that are not wrapped, and the scenario that reaches each.
HOOKS = {
    "init_device": "preempt",
    "__init__": "preempt", "schedule": "preempt", "_preempt_request": "weights_preempt", "_free_request": "preempt",
    "update_from_output": "preempt", "has_finished_requests": "pause",
    "reset_prefix_cache": "reset_files", "set_weight_version": "weights", "_apply_cow": "copy_on_write",
    "allocate_slots": "async_loads", "free": "async_loads",
    "load_model": "preempt", "initialize_kv_cache": "preempt", "execute_model": "preempt", "sample_tokens": "preempt",
    "init_routed_experts_capturer": "beside_peer", "_dummy_run": "warm_up",
    "process_outputs": "kv_files", "add": "streaming_late",
    "add_request": "stop_strings", "make_request_output": "stop_strings", "_finish_request": "stop_strings"}
# Every fault: the scenario in which it has to be noticed.
FAULTS = {
    "bind": "preempt", "retain": "preempt", "release": "few_pages", "seal": "kv_files", "copy": "copy_on_write", "reset": "reset_files",
    # Not requested. Rows that are computed again after a preemption differ only if the weights changed.
    "preempt_snapshot": "weights_preempt", "finish_snapshot": "preempt",
    "message": "preempt",      # every tenth is lost on its way to the worker
    "message_cut": "preempt",  # every tenth arrives without its last bytes
    "decodes": "preempt",      # the store does not derive the events of decodes
    "step": "preempt",         # no step is begun and submitted
    "layer": "preempt",        # the last router's capture slot stays empty
    "clear": "warm_up",        # a forward that was no step is not forgotten
    "operator": "compile",     # the compiled model's operator does nothing
    "stage": "pp2",            # the first pipeline stage sends no rows
} | HOOKS
SNAPSHOT, FORGET = "snapshot", "forget"


def schedule(message):
    """(step, version) of a message; zeros without a step."""
    size, kind, step, version = struct.unpack_from("<IHxxQQ", message.ljust(48, b"\0"), 24)
    return (step, version) if len(message) > 32 and kind == 1 else (0, 0)


def items(message):
    """(kind, arguments of ScheduleWriter's method) of each event, snapshot and forget of a message."""
    record = 24
    while record < len(message) - 8:
        size, kind = struct.unpack_from("<IH", message, record)
        at = record + 8
        if kind == 2:
            count, = struct.unpack_from("<Q", message, at)
            yield from events(message, at + 8, at + 8 + count)
        elif kind == 4:
            tag, first, last, count, before = struct.unpack_from("<8xQqqII", message, at)
            blocks = struct.unpack_from(f"<{count}i", message, at + 40)
            yield SNAPSHOT, (tag, [-1] * before + list(blocks), first, last)
        elif kind == 6:
            yield FORGET, struct.unpack_from("<Q", message, at)
        record += size


def events(message, at, end):
    while at < end:
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
        elif kind == 8:
            yield kind, ()
        else:
            raise ValueError(f"an event of kind {kind}, which vLLM does not have")


METHODS = {1: "bind", 2: "retain", 3: "release", 4: "seal", 5: "copy", 8: "reset", SNAPSHOT: "snapshot", FORGET: "forget"}


def did():
    """The fault has done something."""
    pathlib.Path(os.environ["WAYMARK_TEST_FAULT_FILE"]).touch()


def faulty(make, writer, fault):
    """A class like VllmScheduler, `make`, that leaves out an event or a snapshot."""
    class Faulty:
        def __init__(self, num_blocks, block_tokens, *more):
            self._inner = make(num_blocks, block_tokens, *more)
            self._writer = writer(num_blocks, block_tokens)

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def preempt(self, request, rows, tag):
            self._inner.preempt(request, *self._snapshot("preempt_snapshot", rows, tag))

        def finish(self, request, rows, tag):
            self._inner.finish(request, *self._snapshot("finish_snapshot", rows, tag))

        @staticmethod
        def _snapshot(name, rows, tag):
            if fault != name or tag is None:
                return rows, tag
            did()
            return 0, None

        def finish_message(self):
            message = self._inner.finish_message()
            self._writer.begin(*schedule(message))
            for kind, arguments in items(message):
                if kind == EVENTS.get(fault):
                    did()
                else:
                    getattr(self._writer, METHODS[kind])(*arguments)
            return self._writer.finish()

    return Faulty


class Tenth:
    """Loses or cuts every tenth message."""

    def __init__(self, fault):
        self.count = 0
        self.cut = fault == "message_cut"

    def __call__(self, message):
        self.count += message is not None
        if message is None or self.count % 10:
            return message
        did()
        return message[:-8] if self.cut else None

    def report(self, report):
        """Capture.report_message with it."""
        def call(store, message):
            message = self(message)
            return () if message is None else report(store, message)

        return call

    def step(self, step):
        """Capture.step with it."""
        def call(store, *args, message=None, **more):
            return step(store, *args, message=self(message), **more)

        return call


def without(wrap, fault):
    """A function like the plugin's wrap() that leaves one method as it is."""
    def call(owner, name, make):
        if name == fault:
            did()
        else:
            wrap(owner, name, make)

    return call


def replace(owner, name, make):
    """Replaces a function by make(function). AttributeError if it is not there."""
    function = getattr(owner, name)
    setattr(owner, name, functools.wraps(function)(make(function)))


def nothing(function):
    def call(*args, **more):
        did()

    return call


def register():
    fault = os.environ.get("WAYMARK_TEST_FAULT")
    if not fault:
        return
    from waymark import ScheduleWriter
    from waymark.vllm import _capture, _front_end, _hooks, _scheduler, _stages, _worker
    if getattr(_hooks, "_faulty", False):
        return
    _hooks._faulty = True
    if fault in HOOKS:
        for module in (_hooks,) if fault == "init_device" else (_front_end, _scheduler, _worker):
            replace(module, "wrap", lambda wrap: without(wrap, fault))
    elif fault in EVENTS or fault in ("preempt_snapshot", "finish_snapshot"):
        _scheduler.VllmScheduler = faulty(_scheduler.VllmScheduler, ScheduleWriter, fault)
    elif fault in ("message", "message_cut"):
        tenth = Tenth(fault)
        replace(_worker.Capture, "report_message", tenth.report)
        replace(_worker.Capture, "step", tenth.step)
    elif fault == "decodes":
        replace(_worker.Capture, "step", without_decodes)
    elif fault == "step":
        replace(_worker.HostHalf, "end_step", nothing)
    elif fault == "layer":
        replace(_capture.Ids, "attach", without_the_last)
    elif fault == "clear":
        replace(_capture.Ids, "clear", nothing)
    elif fault == "operator":
        replace(_capture, "_take_copy", nothing)
    elif fault == "stage":
        replace(_stages.Stages, "joined", without_the_first)
    else:
        raise ValueError(f"no fault {fault!r}")


def without_decodes(step):
    def call(store, *args, derive_events=False, **more):
        if derive_events:
            did()
        return step(store, *args, derive_events=False, **more)

    return call


def without_the_last(attach):
    def call(self):
        attach(self)
        router = self.layers[-1].slot
        if router.capture_fn is None:
            raise RuntimeError("the last router has no capture")
        router.set_capture_fn(None)
        did()

    return call


def without_the_first(joined):
    def call(self, tag, rows):
        if not self.returns:
            did()
            rows = None
        return joined(self, tag, rows)

    return call
