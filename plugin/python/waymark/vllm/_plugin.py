"""Where the plugin begins, in every process of vLLM."""

from __future__ import annotations

from typing import Any

from . import _front_end, _hooks, _options


def register() -> None:
    """Installs the hooks, once in a process: the entry point. Does next to nothing if the capture is
    switched off."""
    if not _options.enabled():
        _hooks.wrap(_hooks.module("vllm.config").VllmConfig, "__post_init__", _watch_config)
        return
    _install()


def _watch_config(function: Any) -> Any:
    """``additional_config`` switches the capture on for this process and those that it starts."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(self, *args, **kwargs)
        given = self.additional_config
        if isinstance(given, dict) and given.get("waymark"):
            _options.switch_on(given["waymark"])
            _install()
        return result

    return call


def _install() -> None:
    _options.options()  # a mistake is reported before the model is loaded
    vllm = _hooks.module
    wrap = _hooks.wrap
    wrap(vllm("vllm.v1.executor.abstract").Executor, "__init__", _check_config)
    wrap(vllm("vllm.config").SchedulerConfig, "get_scheduler_cls", _start_scheduler)
    wrap(vllm("vllm.v1.worker.worker_base").WorkerWrapperBase, "init_device", _start_worker)
    front_end = vllm("vllm.v1.engine.output_processor")
    _front_end.hook(front_end.OutputProcessor, front_end.RequestState, vllm("vllm.outputs"))


def _check_config(function: Any) -> Any:
    """An executor is made before the model is loaded."""

    def call(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        from . import _versions

        _versions.check(vllm_config)
        _versions.mark(vllm_config)
        return function(self, vllm_config, *args, **kwargs)

    return call


def _start_scheduler(function: Any) -> Any:
    """A process of an engine core loads its plugins when its EngineCore is being made already; the
    class of the scheduler is looked up afterwards."""

    def call(self: Any) -> Any:
        from . import _scheduler

        scheduler = function(self)
        _scheduler.hook(scheduler, _options.options())
        return scheduler

    return call


def _start_worker(function: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        from . import _worker

        result = function(self, *args, **kwargs)
        _worker.hook(type(self.worker.model_runner), _options.options())
        return result

    return call


def worker_report(worker: Any) -> dict[str, Any]:
    """For tests and operators, by ``llm.collective_rpc(waymark.vllm.worker_report)``: counters of the
    store and session, findings of the audit, hook_times() of the process. Empty in a worker that
    stores nothing."""
    runner = getattr(worker, "model_runner", None) or worker.worker.model_runner
    half = getattr(runner, "_waymark", None)
    if half is None:
        return {}
    return {
        "store": half.store.stats().as_dict(),
        "session": half.session.stats().as_dict(),
        "findings": [finding.text for finding in half.store.take_findings()],
        "steps_without_ids": half.steps_without_ids,
        "failure": half.failure,
        "hook_us": _hooks.hook_times(),
    }
