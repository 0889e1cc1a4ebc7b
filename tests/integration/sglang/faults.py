"""Leaves out a part of the adapter, to see that the comparison notices. A plugin of SGLang, under WAYMARK_TEST_FAULT=NAME.

Waymark's own code knows nothing of it. A fault writes the file WAYMARK_TEST_FAULT_FILE when it has done something: a run without that file
proves nothing, and fails.
"""
import functools
import os
import pathlib

# A hook that is not set, by the end of its target: the scenario in which that has to be noticed.
HOOKS = {
    "TokenToKVPoolAllocator.alloc": "small_pool",
    "PagedTokenToKVPoolAllocator.alloc_extend": "page16",
    "PagedTokenToKVPoolAllocator.alloc_decode": "page16",
    "HybridCacheController.write": "hicache16",
    "HybridCacheController.load": "hicache16",
    "HostKVCache.alloc": "storage",
    "SchedulerWeightUpdaterManager.update_weights_from_disk": "weights",
    "BaseTopkCapturer.on_forward_end": "page16",  # with a router that writes nothing
    "SchedulerBatchResultProcessor._maybe_collect_routed_experts": "page16",
    "SchedulerOutputStreamer._stream_output_generation": "page16",
    "SchedulerOutputStreamer.build_additional_customized_info": "page16",
    "RoutedExpertsCapturer.create": "page16",
    "Scheduler.__init__": "page16",
    "base.BaseHostCache": "page16",
    "base.TopkCaptureOutput": "page16",
}
OTHERS = {
    "order": "overlap",       # what happens is told at once, and does not travel with the forward that is launched next
    "output": "overlap",      # every tenth output of a forward is lost
    "taken": "hicache16",     # rows are taken by SGLang's slots of the token behind
}
FAULTS = HOOKS | OTHERS


def did():
    """The fault has done something."""
    pathlib.Path(os.environ["WAYMARK_TEST_FAULT_FILE"]).touch()


def around(owner, name, call):
    """Replaces a method by call(method, *args)."""
    method = getattr(owner, name)
    setattr(owner, name, functools.wraps(method)(lambda *args: call(method, *args)))


def at_once(happened, table, *event):
    from waymark._slots import Event, Launch
    did()
    if table.store is not None and not table.failure:
        table._tell(table.store, Launch(0, 0, []), Event(*event))


def every_tenth(method, *args, calls=[0]):  # noqa: B006, it counts
    calls[0] += 1
    if calls[0] % 10:
        return method(*args)
    did()


def unhook(end):
    from sglang.srt.plugins.hook_registry import HookRegistry
    for target in list(HookRegistry._hooks):
        if target.endswith(end) and any(hook.__module__.startswith("waymark") for _, hook, _ in HookRegistry._hooks[target]):
            del HookRegistry._hooks[target]
            did()


def silent_router():
    """The last router writes no ids."""
    from sglang.srt.state_capturer.routed_experts import RoutedExpertsCapturer
    around(RoutedExpertsCapturer, "capture", lambda method, self, layer, ids: None if layer == 3 else method(self, layer, ids))


def install():
    fault = os.environ.get("WAYMARK_TEST_FAULT")
    if not fault:
        return
    from waymark.sglang import _table
    if fault in HOOKS:
        unhook(fault)
        if fault == "BaseTopkCapturer.on_forward_end":
            silent_router()
    elif fault == "order":
        around(_table.Table, "happened", at_once)
    elif fault == "output":
        around(_table.Table, "land", every_tenth)
    elif fault == "taken":
        around(_table.Table, "take", lambda method, table, slots: (did(), method(table, slots + 1))[1])
