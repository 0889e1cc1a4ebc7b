"""Where the plugin begins, in every process of vLLM."""

from __future__ import annotations

from typing import Any

from . import _hooks, _options


def register() -> None:
    """Installs the hooks, once in a process: the entry point. Does next to nothing if the capture is
    switched off."""
    if not _options.enabled():
        from vllm.config import VllmConfig

        _hooks.wrap(VllmConfig, "__post_init__", _watch_config)
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
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from ._results import hook_front_end

    _options.options()  # a mistake is reported before the model is loaded
    _hooks.wrap(EngineCore, "__init__", _start_engine_core)
    _hooks.wrap(WorkerWrapperBase, "initialize_from_config", _start_worker)
    hook_front_end(OutputProcessor, CompletionOutput, RequestOutput)


def _start_engine_core(function: Any) -> Any:
    def call(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        from . import _scheduler, _versions

        _versions.check(vllm_config)
        result = function(self, vllm_config, *args, **kwargs)
        _scheduler.attach(self, _options.options())
        return result

    return call


def _start_worker(function: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        from . import _worker

        _worker.hook(type(self.worker.model_runner))
        return function(self, *args, **kwargs)

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
