"""Leaves out a part of the adapter, to see that the comparison or the store notices. Only tests import it.

The entry point `waymark_faults` (entry_point/) calls register() in every process of the engine, before the plugin's
own; the environment variable WAYMARK_TEST_FAULT names the fault, one of FAULTS. Waymark's own code knows nothing of
it. What a fault patches has to be there, else the engine does not start; and when a fault has done something for the
first time, it writes the file WAYMARK_TEST_FAULT_FILE: a run without that file proves nothing, and fails.
"""
import functools
import os
import pathlib

# Every fault: the scenario in which it has to be noticed.
FAULTS = {
    "bind": "preempt", "copy": "copy_on_write", "release": "few_pages",  # events that the store is not told
    "schedule": "preempt",       # a schedule's message is lost
    "grown": "preempt",          # the worker does not hear that requests got blocks
    "output": "preempt",         # every tenth output of a step is lost
    "rejected": "spec",          # drafts that were rejected are taken for accepted
    "layer": "preempt",          # the last router writes no ids
    "scheduler": "preempt",      # the scheduler's connector is vLLM's own
    "order": "async_preempt",    # a schedule is told before the ids of the forward in front of it
}


def did():
    """The fault has done something."""
    pathlib.Path(os.environ["WAYMARK_TEST_FAULT_FILE"]).touch()


def without(owner, name, result=None, each=1):
    """Replaces every call of a method, or every n-th, by nothing."""
    method, calls = getattr(owner, name), [0]

    @functools.wraps(method)
    def call(*given, **named):
        calls[0] += 1
        if calls[0] % each:
            return method(*given, **named)
        did()
        return result

    setattr(owner, name, call)


def around(owner, name, change):
    """Calls a method with what `change` makes of its arguments."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*given, **named):
        did()
        return method(*change(*given, **named))

    setattr(owner, name, call)


def out_of_order(worker, schedule):
    """Of WorkerConnector._begin."""
    worker._hear(schedule)
    return worker, type(schedule)(schedule.generation, schedule.version, schedule.rows)


def silent(model, vllm_config, kv_cache_config, options):
    """Of the arguments of a WorkerConnector: the last layer's ids go nowhere."""
    from vllm.model_executor.layers.fused_moe import routed_experts_capturer
    bind = routed_experts_capturer.bind_routed_experts_capturer

    def bind_all_but_the_last(model, capturer):
        bind(model, capturer)
        from waymark.vllm import _routers
        last = _routers.moe_layers(model)[-1].name
        dict(model.named_modules())[last].router.set_capture_fn(lambda ids: None)

    routed_experts_capturer.bind_routed_experts_capturer = bind_all_but_the_last
    return model, vllm_config, kv_cache_config, options


def register():
    fault = os.environ.get("WAYMARK_TEST_FAULT")
    if not fault:
        return
    from waymark.vllm import _plugin, _scheduler, _worker
    if fault in ("bind", "copy", "release"):
        without(_worker.Capture, fault)
    elif fault == "schedule":
        without(_scheduler.SchedulerConnector, "build_connector_meta", each=10)
    elif fault == "grown":
        around(_worker.WorkerConnector, "_hear", lambda worker, schedule: (schedule.grown.clear(), (worker, schedule))[1])
    elif fault == "output":
        without(_worker.WorkerConnector, "process_output", each=10)
    elif fault == "rejected":
        around(_worker.Pending, "enqueue_cpu_copy", lambda pending, num_sampled, num_rejected: (pending, num_sampled, num_rejected * 0))
    elif fault == "layer":
        make = _worker.WorkerConnector.__init__
        around(_worker.WorkerConnector, "__init__", lambda self, *given: (self, *silent(*given)))
        assert make is not _worker.WorkerConnector.__init__
    elif fault == "scheduler":
        _plugin._make_scheduler = lambda function, *given, **named: (did(), function(*given, **named))[1]
    elif fault == "order":
        around(_worker.WorkerConnector, "_begin", out_of_order)
