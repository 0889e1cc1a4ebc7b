"""Where the plugin begins, in every process of vLLM."""

from __future__ import annotations

import functools
from typing import Any

from . import _front_end, _hooks, _options
from ._hooks import Function, class_of
from ._versions import on_device
from ._weights import digest


def register() -> None:
    """Installs the hooks that see an engine's configuration, once in a process: the entry point.
    They do nothing for an engine that is not captured."""
    wrap, around = _hooks.wrap, _hooks.around
    try:
        with _hooks.whole():
            wrap(class_of("vllm.config.VllmConfig"), "__post_init__", around(_watch_config))
            wrap(class_of("vllm.v1.executor.abstract.Executor"), "__init__", around(_start_core))
            worker = class_of("vllm.v1.worker.worker_base.WorkerWrapperBase")
            wrap(worker, "init_device", around(_start_worker))
    except (ImportError, _hooks.Refused) as error:
        if _options.of(None) is not None:
            raise
        _hooks.logger.warning("waymark: the capture cannot be switched on here: %s", error)


def _watch_config(call: Function, config: Any) -> Any:
    """A mistake in the options is refused before anything is started."""
    result = call()
    if _options.of(config) is not None:
        _start_front_end()
    return result


def _start_front_end() -> None:
    """Before an engine is made: a process that makes its configuration has its front end."""
    outputs = "vllm.v1.engine.output_processor"
    with _hooks.whole():
        _front_end.hook(
            class_of(f"{outputs}.OutputProcessor"),
            class_of(f"{outputs}.RequestState"),
            _hooks.module("vllm.outputs"),
        )
        for name in ("llm_engine.LLMEngine", "async_llm.AsyncLLM"):
            engine = class_of(f"vllm.v1.engine.{name}")
            _hooks.wrap(engine, "__init__", _hooks.around(_make_engine))


def _make_engine(call: Function, engine: Any, vllm_config: Any) -> None:
    call()
    if _options.of(vllm_config) is not None:
        _front_end.serve(engine.output_processor)


def _start_core(call: Function, executor: Any, vllm_config: Any) -> Any:
    """An executor is made before the model is loaded, and before the scheduler."""
    options = _options.of(vllm_config)
    if options is not None:
        from . import _scheduler_hooks, _versions, _weights

        _versions.check(vllm_config, bool(options.tier))
        _versions.check_names()
        _scheduler_hooks.check()
        with _hooks.whole():
            _scheduler_hooks.hook(vllm_config.scheduler_config.get_scheduler_cls())
            _weights.hook(type(executor))
        _versions.mark(vllm_config, options)
        _versions.log_start(vllm_config, options)
    result = call()
    if options is not None:
        executor._waymark = _weights.Weights(executor)
    elif why := _options.nothing(vllm_config):
        model = vllm_config.model_config.model
        _hooks.logger.warning("waymark: nothing of %s is captured: %s", model, why)
    return result


def _start_worker(call: Function, wrapper: Any) -> Any:
    """A worker initializes its device before the model is loaded."""
    result = call()
    if _options.of(wrapper.vllm_config) is not None:
        worker = wrapper.worker
        worker.waymark_report = functools.partial(worker_report, worker)
        worker.waymark_weights = functools.partial(digest, worker)
        with _hooks.whole():
            if on_device(wrapper.vllm_config):
                from . import _device

                _device.hook(type(worker), type(worker.model_runner))
            else:
                from . import _worker

                _worker.hook(type(worker.model_runner))
    return result


def worker_report(worker: Any) -> dict[str, Any]:
    """For tests and operators, by ``llm.collective_rpc("waymark_report")``, whose list has one of
    each worker: counters of the store and of the publisher, missing rows by reason, findings of the
    audit, hook_times() of the process. Empty in a worker that stores nothing."""
    runner = getattr(worker, "model_runner", None) or worker.worker.model_runner
    half = getattr(runner, "_waymark", None)
    if half is None:
        return {}
    late = getattr(half, "late", None)
    stats = half.store.stats()
    return {
        "store": stats.as_dict(),
        "missing": {str(reason): n for reason, n in stats.missing.items()},
        "findings": [finding.text for finding in half.store.take_findings()],
        "steps_without_ids": half.steps_without_ids,
        "steps_without_slots": late.unknown + late.given_up if late is not None else 0,
        "failure": half.failure,
        "tier": half.store.tier_stats().as_dict(),
        "published": half.publications.stats() if half.publications is not None else {},
        "hook_us": _hooks.hook_times(),
    }
