"""Where the plugin begins, in every process of SGLang: its classes and functions that are hooked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from .._hooks import Function, module
from . import _checks
from ._table import Forward, Table, logger

_SRT = "sglang.srt."
_PARTS = _SRT + "managers.scheduler_components."
_UPDATES = ("update_weights_from_disk", "update_weights_from_distributed", "end_weight_update",
            "update_weights_from_tensor", "update_weights_from_ipc", "resume_memory_occupation")  # fmt: skip


def register() -> None:
    """The entry point. Without WAYMARK_SGLANG=1 everything is SGLang's own."""
    if os.environ.get("WAYMARK_SGLANG", "0").lower() not in ("1", "true", "yes", "on"):
        return
    _checks.check_version()
    base = module(_SRT + "state_capturer.base")
    Table.own, Forward.own = base.BaseHostCache, base.TopkCaptureOutput
    token, paged = _checks.ALLOCATORS
    hicache, streamer = _checks.CONTROLLER, _PARTS + "output_streamer.SchedulerOutputStreamer"
    for kind, target, function in (
        ("replace", base.__name__ + ".BaseHostCache", Table),
        ("replace", base.__name__ + ".TopkCaptureOutput", Forward),
        ("around", base.__name__ + ".BaseTopkCapturer.on_forward_end", _forward_end),
        ("before", _SRT + "state_capturer.routed_experts.RoutedExpertsCapturer.create", _model),
        ("after", token + ".alloc", _allocated),
        ("after", paged + ".alloc", _allocated),
        ("after", paged + ".alloc_extend", _allocated),
        ("after", paged + ".alloc_decode", _allocated),
        ("after", token + ".clear", _told(lambda table, *_: table.happened("reset"))),
        ("after", paged + ".clear", _told(lambda table, *_: table.happened("reset"))),
        ("after", _SRT + "mem_cache.pool_host.base.HostKVCache.alloc", _host_allocated),
        ("after", hicache + ".write", _written),
        ("after", hicache + ".load", _loaded),
        ("after", hicache + ".write_storage", _stored),
        ("after", hicache + ".allocate_storage_hit", _fetched),
        ("after", hicache + ".clear_storage_backend", _told(lambda table, *_: table.hosts.clear())),
        *(("before", f"{_PARTS}weight_updater.SchedulerWeightUpdaterManager.{name}",
           _told(lambda table, *_: table.updated())) for name in _UPDATES),
        ("around", _PARTS + "batch_result_processor.SchedulerBatchResultProcessor."
         "_maybe_collect_routed_experts", _collect),
        ("before", streamer + "._stream_output_generation", _answer),
        ("after", streamer + ".build_additional_customized_info", _inform),
        ("after", _SRT + "managers.scheduler.Scheduler.__init__", _open),
    ):  # fmt: skip
        registry = module(_SRT + "plugins.hook_registry")
        registry.HookRegistry.register(target, function, registry.HookType(kind))
    module(_PARTS + "output_streamer").SchedulerOutputStreamer.has_additional_customized_info = True


def _told(tell: Callable[..., None]) -> Function:
    """A hook that tells the table of this process, if there is one, what was called, with its result
    first if it is told behind the call. What fails ends the capture, and nothing is raised."""

    def hook(*args: Any, **more: Any) -> None:
        table = Table.current
        if table is not None:
            try:
                tell(table, *args, **more)
            except Exception as error:
                table.fail(error)

    hook.__module__ = __name__
    return hook


def _model(*args: Any, model: Any, model_config: Any, **more: Any) -> None:
    """The experts of the model, and its layers that have a router."""
    config, topk = model_config.hf_text_config, module(_SRT + "layers.moe.topk").TopK
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    routers = [one for one in model.modules() if isinstance(one, topk)]
    Table.model = (
        next((getattr(config, name) for name in names if getattr(config, name, None)), 0),
        sorted({one.layer_id for one in routers if one.topk_config.allow_routed_experts_capture}),
    )


def _open(result: Any, scheduler: Any, *args: Any, **more: Any) -> None:
    """The scheduler is complete. What is raised here ends the engine."""
    table = Table.current
    if table is None:
        logger.warning("waymark: nothing is captured: --enable-return-routed-experts is not set")
        return
    _checks.check(scheduler)
    capturer = module(_SRT + "state_capturer.routed_experts").get_global_experts_capturer()
    controller = getattr(scheduler.tree_cache, "cache_controller", None)
    options = json.loads(os.environ.get("WAYMARK_SGLANG_OPTIONS", "{}"))
    table.answers = module(_SRT + "runtime_context").get_parallel().attn_tp_rank == 0
    table.open(
        scheduler.token_to_kv_pool_allocator.page_size,
        len(capturer.device_cache.buffer),
        controller and controller.mem_pool_host.anchor_entry.host_pool,
        options,
    )


def _forward_end(function: Function, capturer: Any, *args: Any, **more: Any) -> Any:
    if not isinstance(capturer.host_cache, Table):
        return function(capturer, *args, **more)
    if not capturer.host_cache.answers:
        return None  # another rank has the rows
    output = function(capturer, *args, **more)
    # A layer that writes nothing in the next forward has nothing: this one left its ids there.
    capturer.device_cache.buffer.fill_(-1)
    return output


@_told
def _allocated(table: Table, slots: Any, *args: Any, **more: Any) -> None:
    if slots is not None and len(slots):
        table.happened("bind", slots)


@_told
def _host_allocated(table: Table, slots: Any, pool: Any, *args: Any, **more: Any) -> None:
    if slots is not None and table.hosts is not None and pool is table.hosts.pool:
        table.hosts.allocated(slots)


@_told
def _written(table: Table, host: Any, controller: Any, device_indices: Any, *args: Any, **more: Any) -> None:
    if host is not None and len(host):
        table.happened("seal", device_indices, table.hosts.written(host))


@_told
def _loaded(table: Table, slots: Any, controller: Any, host_indices: Any, *args: Any, **more: Any) -> None:
    if slots is not None and len(slots):  # behind the bind that its alloc() told, if it called that
        table.happened("bind", slots, table.hosts.loaded(host_indices))


@_told
def _stored(table: Table, result: Any, controller: Any, host_indices: Any, token_ids: Any,
            hash_value: Any = None, *args: Any, **more: Any) -> None:  # fmt: skip
    table.hosts.stored(host_indices, hash_value or [])


@_told
def _fetched(table: Table, result: Any, controller: Any, operation: Any, *args: Any, **more: Any) -> None:
    if result[0] is not None:
        table.hosts.fetched(result[0], operation.hash_value or [])


def _collect(function: Function, processor: Any, req: Any) -> None:
    """A request has finished: its rows are taken, and read by a thread of the library."""
    table = Table.current
    if table is None or not req.return_routed_experts:
        function(processor, req)
    elif table.answers:
        last = len(req.origin_input_ids) + len(req.output_ids_through_stop) - 1
        first = min(req.routed_experts_start_len, last)
        slots = processor.req_to_token_pool.req_to_token[req.kv.req_pool_idx, first:last]
        req.waymark = first, last - first, table.take(slots)


def _answer(streamer: Any, reqs: Any, *args: Any, **more: Any) -> None:
    """What a step of the scheduler returns is put together."""
    for req in reqs:
        if req.routed_experts is None and hasattr(req, "waymark") and Table.current is not None:
            ids, req.waymark_info = Table.current.answer(*req.waymark)
            req.routed_experts = module("torch").from_numpy(ids)


def _inform(result: Any, streamer: Any, reqs: Any) -> dict[str, list[Any]] | None:
    told = [[info] if (info := getattr(req, "waymark_info", None)) else [] for req in reqs]
    return {**result, "waymark": told} if any(told) else None
