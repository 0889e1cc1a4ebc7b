"""Rows by key: where they are, and under which weights. Nobody said so means unknown: weights that
may have changed since they were named have no name, and other engines never find their rows."""

from __future__ import annotations

from typing import Any

from .._capture import Capture
from .._hooks import Function
from .._weights import digest
from ._events import Schedule

# The calls of workers with a model that keep the weights, of vLLM 0.32 and 0.33. Any other call,
# a function or a method of a worker extension too, may have changed them.
_KEEPS = frozenset(
    "execute_model sample_tokens execute_dummy_batch take_draft_token_ids check_health profile "
    "add_lora remove_lora pin_lora list_loras reset_mm_cache reset_encoder_cache shutdown "
    "synchronize_device wake_up discard update_max_model_len save_sharded_state "
    "get_supported_tasks get_model_inspection get_encoder_timing_stats "
    "get_kv_cache_spec get_supported_kv_cache_layouts set_kv_cache_layout "
    "determine_available_memory get_simple_cpu_offload_num_cpu_blocks "
    "initialize_from_config compile_or_warm_up_model "
    "get_kv_connector_handshake_metadata compute_weight_checksums checkpoint_prepare "
    "init_weight_transfer_engine shutdown_weight_transfer_engine".split()
)
_SLEEP = {"kwargs": {"level": 1}}  # keeps them, too; deeper ones do not
_changes = 0


def changes() -> int:
    """How often the workers of this process's engines may have got other weights."""
    return _changes


def counted(function: Function, executor: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
    """collective_rpc of an executor."""
    global _changes
    keeps = isinstance(method, str) and method in _KEEPS
    if not keeps and (method != "sleep" or args or kwargs != _SLEEP):
        _changes += 1
    return function(executor, method, *args, **kwargs)


def named(function: Function, core: Any, weight_version: str) -> Any:
    """EngineCore.set_weight_version."""
    result = function(core, weight_version)
    name = getattr(core.scheduler.aux_output_connector, "name_weights", None)
    if name is not None:
        name(weight_version)
    return result


class Weights:
    """The version of a worker's rows: the scheduler's, and how often the weights have changed since
    without a call, which their digest shows."""

    def __init__(self, store: Capture, model: Any, name: str) -> None:
        self._store, self._model = store, model
        self._generation, self._scheduled, self._changes = 0, 1, 0
        self._digest = self._sums()
        if name:
            store.name_weights(1 << 20, name)

    def version(self, schedule: Schedule, idle: bool) -> int:
        """Of a schedule that comes next. The weights are looked at if they may have changed: when
        the engine was idle, and at a reset."""
        named = schedule.version != self._scheduled
        if named or schedule.starts and idle or schedule.generation > self._generation:
            before, self._digest = self._digest, self._sums()
            self._changes = 0 if named else self._changes + (self._digest != before)
            self._scheduled, self._generation = schedule.version, schedule.generation
        version = (self._scheduled << 20) + self._changes
        if named and schedule.weights:
            self._store.name_weights(version, schedule.weights)
        return version

    def _sums(self) -> list[int]:
        """Of the routers, and of all vectors: a trainer may keep the routers."""
        experts = self._store.shape.num_experts
        return digest(one for one in self._model.parameters()
                      if one.ndim == 1 or one.ndim == 2 and one.shape[0] == experts)  # fmt: skip
