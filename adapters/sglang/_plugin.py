"""Where the plugin begins, in every process of SGLang: what is hooked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .._hooks import Function, ends, module
from . import _checks
from ._table import Forward, Table

_SRT = "sglang.srt."
_CAPTURE, _PARTS = _SRT + "state_capturer.", _SRT + "managers.scheduler_components."
_STREAMER = _PARTS + "output_streamer.SchedulerOutputStreamer"
_UPDATES = ("update_weights_from_disk", "update_weights_from_distributed",
            "update_weights_from_tensor", "update_weights_from_ipc", "end_weight_update",
            "resume_memory_occupation")  # fmt: skip


def register() -> None:
    """The entry point. Without WAYMARK_SGLANG=1 everything is SGLang's own."""
    if _checks.options() is None:
        return
    base, hooks = module(_CAPTURE + "base"), module(_SRT + "plugins.hook_registry")
    Table.own, Forward.own = base.BaseHostCache, base.TopkCaptureOutput
    for kind, target, function in _hooks():
        hooks.HookRegistry.register(target, function, hooks.HookType(kind))
    module(_PARTS + "output_streamer").SchedulerOutputStreamer.has_additional_customized_info = True


def _told(tell: Callable[..., object]) -> Function:
    """A hook that tells the table of this process of a call; behind it, with its result first. What
    fails ends the capture, and nothing is raised."""
    guarded = ends(tell)

    def hook(*args: Any, **more: Any) -> None:
        if Table.current is not None:
            guarded(Table.current, *args, **more)

    return hook


def _hooks() -> Iterator[tuple[str, str, Any]]:
    """How, of what, by what. Arguments have SGLang's names, as some calls name them."""
    yield "replace", _CAPTURE + "base.BaseHostCache", Table
    yield "replace", _CAPTURE + "base.TopkCaptureOutput", Forward
    yield "around", _CAPTURE + "base.BaseTopkCapturer.on_forward_end", _forward_end
    yield "before", _CAPTURE + "routed_experts.RoutedExpertsCapturer.create", _model
    bind = _told(lambda t, slots, *_, **__: t.happened("bind", slots))
    reset = _told(lambda t, _, allocator: t.happened("reset", allocator.free_pages[:0]))
    for allocator in _checks.ALLOCATORS:
        for name in ("alloc", "alloc_extend", "alloc_decode"):
            yield "after", f"{allocator}.{name}", bind
        yield "after", allocator + ".clear", reset
    hicache = _checks.CONTROLLER
    yield "after", _SRT + "mem_cache.pool_host.base.HostKVCache.alloc", _told(
        lambda t, slots, pool, *_, **__: slots is not None and pool is t.host_pool
        and t.hosts.allocated(slots))  # fmt: skip
    yield "after", hicache + ".write", _told(
        lambda t, host, _, device_indices, *__, **___: host is not None
        and t.happened("seal", device_indices, t.hosts.written(host)))  # fmt: skip
    yield "after", hicache + ".load", _told(  # behind the bind of its alloc()
        lambda t, slots, _, host_indices, *__, **___: slots is not None
        and t.happened("bind", slots, t.hosts.loaded(host_indices)))  # fmt: skip
    for name in _UPDATES:
        target = f"{_PARTS}weight_updater.SchedulerWeightUpdaterManager.{name}"
        yield "before", target, _told(lambda t, *_, **__: t.updated())
    results = _PARTS + "batch_result_processor.SchedulerBatchResultProcessor"
    yield "around", results + "._maybe_collect_routed_experts", _collect
    yield "before", _STREAMER + "._stream_output_generation", _told(_answer)
    yield "after", _STREAMER + ".build_additional_customized_info", _inform
    yield "after", _SRT + "managers.scheduler.Scheduler.__init__", _open


def _model(*, model: Any, model_config: Any, **more: Any) -> None:
    """The experts of the model, and its layers that have a router."""
    config, topk = model_config.hf_text_config, module(_SRT + "layers.moe.topk").TopK
    counts = [getattr(config, name, None) for name in
              ("num_experts", "n_routed_experts", "num_local_experts")]  # fmt: skip
    routers = [one for one in model.modules() if isinstance(one, topk)]
    captured = {one.layer_id for one in routers if one.topk_config.allow_routed_experts_capture}
    Table.model = next(filter(None, counts), 0), sorted(captured)


def _open(result: Any, scheduler: Any, *args: Any, **more: Any) -> None:
    """The scheduler is complete. What is raised here ends the engine."""
    if (table := Table.current) is None:
        Table.log.warning("waymark: nothing is captured without --enable-return-routed-experts")
        return
    _checks.check(scheduler)
    capturer = module(_CAPTURE + "routed_experts").get_global_experts_capturer()
    controller = getattr(scheduler.tree_cache, "cache_controller", None)
    table.opened(
        scheduler.token_to_kv_pool_allocator.page_size,
        len(capturer.device_cache.buffer),
        controller and controller.mem_pool_host.anchor_entry.host_pool,
        _checks.options() or {},
    )


def _forward_end(function: Function, capturer: Any, *args: Any, **more: Any) -> Any:
    """A forward has been captured."""
    output = function(capturer, *args, **more)
    if isinstance(capturer.host_cache, Table):
        # A layer that writes nothing in the next forward has nothing: this one left its ids there.
        capturer.device_cache.buffer.fill_(-1)
    return output


def _collect(function: Function, processor: Any, req: Any) -> None:
    """A request has finished: its rows are taken, and read by a thread of the library."""
    table = Table.current
    if table is None or not req.return_routed_experts:
        function(processor, req)
        return
    last = len(req.origin_input_ids) + len(req.output_ids_through_stop) - 1
    first = min(req.routed_experts_start_len, last)
    slots = processor.req_to_token_pool.req_to_token[req.kv.req_pool_idx, first:last]
    req.waymark = first, last - first, table.taken(slots)


def _answer(table: Table, streamer: Any, reqs: Any, *args: Any, **more: Any) -> None:
    """What a step of the scheduler returns is put together."""
    for req in reqs:
        if req.routed_experts is None and hasattr(req, "waymark"):
            ids, req.waymark_info = table.answer(*req.waymark)
            req.routed_experts = module("torch").from_numpy(ids)


def _inform(result: Any, streamer: Any, reqs: Any) -> dict[str, list[Any]] | None:
    told = [[info] if (info := getattr(req, "waymark_info", None)) else [] for req in reqs]
    return {**result, "waymark": told} if any(told) else None
