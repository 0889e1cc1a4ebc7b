"""Model runner V1 on a CPU, which has no seam for outputs beside tokens: makes the calls there that
model runner V2 makes by itself."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from .._hooks import Function, put
from . import _options
from ._worker import Pending, WorkerConnector


def hook(runner: type) -> None:
    """Wraps the methods of CPUModelRunner."""
    put(runner, "initialize_kv_cache", _initialize_kv_cache)
    put(runner, "execute_model", _execute_model)
    put(runner, "sample_tokens", _sample_tokens)


def _initialize_kv_cache(
    function: Function, runner: Any, kv_cache_config: Any, is_profiling: bool = False, **more: Any
) -> Any:
    result = function(runner, kv_cache_config, is_profiling, **more)
    options = _options.of(runner.vllm_config)
    if options is not None and not is_profiling:
        runner.aux_output_connector = WorkerConnector(
            runner.get_model(), runner.vllm_config, kv_cache_config, options
        )
        runner._waymark_pending = None
    return result


def _execute_model(
    function: Function, runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
) -> Any:
    half: WorkerConnector | None = getattr(runner, "aux_output_connector", None)
    if half is not None:
        half.begin_step(scheduler_output.aux_output_connector_metadata)
    result = function(runner, scheduler_output, *args, **kwargs)
    if half is not None and scheduler_output.total_num_scheduled_tokens and result is None:
        batch, count = runner.input_batch, runner.input_batch.num_reqs
        pending = half.prepare_output(types.SimpleNamespace(  # of V2's InputBatch
            req_ids=batch.req_ids[:count],
            num_computed_tokens_np=batch.num_computed_tokens_cpu[:count],
            query_start_loc_np=runner.query_start_loc.np[: count + 1]))  # fmt: skip
        runner._waymark_pending = scheduler_output, pending
    return result


def _sample_tokens(function: Function, runner: Any, *args: Any, **kwargs: Any) -> Any:
    result = function(runner, *args, **kwargs)
    half: WorkerConnector | None = getattr(runner, "aux_output_connector", None)
    if half is None or runner._waymark_pending is None:
        return result
    (scheduler_output, pending), runner._waymark_pending = runner._waymark_pending, None
    if pending is None:
        return result
    if not hasattr(result, "get_output"):
        return _with_rows(result, scheduler_output, pending)
    get_output = result.get_output
    result.get_output = lambda: _with_rows(get_output(), scheduler_output, pending)
    return result


def _with_rows(output: Any, scheduler_output: Any, pending: Pending) -> Any:
    """The output of a step, with the rows of its requests."""
    sampled = np.zeros(len(pending.names), np.int64)
    for i, name in enumerate(pending.names):
        sampled[i] = len(output.sampled_token_ids[output.req_id_to_index[name]])
    drafts = scheduler_output.scheduled_spec_decode_tokens
    count = np.array([len(drafts.get(name, ())) for name in pending.names], np.int64)
    # A step that ends within a prompt samples nothing, and has no drafts.
    rejected = np.where(sampled > 0, count + 1 - sampled, 0).clip(0)
    pending.enqueue_cpu_copy(sampled, rejected)
    output.aux_output_connector_output = pending.process_output()
    return output
