"""Leaves out one hook of the plugin, to see that the comparison or the audit notices. Only tests import it.

The entry point `waymark_faults` (entry_point/) calls register() in every process of the engine, before the plugin's
own; the environment variable WAYMARK_TEST_FAULT names the fault, one of FAULTS. Waymark's own code knows nothing of
it. What a fault patches has to be there, else the engine does not start; and when a fault has done something for the
first time, it writes the file WAYMARK_TEST_FAULT_FILE: a run without that file proves nothing, and fails.
"""
import functools
import os
import pathlib

# Events that are not sent: methods of ScheduleWriter. The plugin never sends a truncation: it seals only
# tokens that are accepted, and behind a load only when its output is there.
EVENTS = ("bind", "retain", "release", "seal", "copy", "reset")
# Snapshots that are not requested, and the method of SchedulerHalf that requests them.
SNAPSHOTS = {"preempt_snapshot": "preempted", "finish_snapshot": "finished"}
# Methods of vLLM that are not wrapped, and the scenario that reaches each.
HOOKS = {
    "init_device": "preempt",
    "__init__": "preempt", "schedule": "preempt", "_preempt_request": "weights_preempt", "_free_request": "preempt",
    "update_from_output": "preempt", "has_finished_requests": "pause",
    "reset_prefix_cache": "reset_files", "set_weight_version": "weights", "collective_rpc": "weights", "_apply_cow": "copy_on_write",
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
    "step": "preempt",         # no step is begun and submitted
    "layer": "preempt",        # the last router's capture slot stays empty
    "clear": "warm_up",        # a forward that was no step is not forgotten
    "operator": "compile",     # the compiled model's operator does nothing
    "stage": "pp2",            # the first pipeline stage sends no rows
} | HOOKS
def did():
    """The fault has done something."""
    pathlib.Path(os.environ["WAYMARK_TEST_FAULT_FILE"]).touch()


def without_event(writer, event):
    """A class like ScheduleWriter, `writer`, that leaves out one kind of events."""
    getattr(writer, event)
    return type("Faulty", (writer,), {event: lambda self, *given: did()})


def without_snapshot(method):
    """A method of SchedulerHalf that requests no snapshot."""
    def call(half, *given):
        leave = half._writer.leave

        def leave_without(request, rows, tag):
            if tag is not None:
                did()
            leave(request, 0, None)

        half._writer.leave = leave_without
        try:
            method(half, *given)
        finally:
            del half._writer.leave

    return call


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
    from waymark.vllm import _capture, _front_end, _hooks, _scheduler, _scheduler_hooks, _stages, _weights, _worker, _writer
    if getattr(_hooks, "_faulty", False):
        return
    _hooks._faulty = True
    if fault in HOOKS:
        for module in (_hooks,) if fault == "init_device" else (_front_end, _scheduler_hooks, _weights, _worker):
            replace(module, "wrap", lambda wrap: without(wrap, fault))
    elif fault in EVENTS:
        _writer.ScheduleWriter = without_event(_writer.ScheduleWriter, fault)
    elif fault in SNAPSHOTS:
        replace(_scheduler.SchedulerHalf, SNAPSHOTS[fault], without_snapshot)
    elif fault in ("message", "message_cut"):
        tenth = Tenth(fault)
        replace(_worker.Capture, "report_message", tenth.report)
        replace(_worker.Capture, "step", tenth.step)
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
