"""Where the plugin begins, in every process of vLLM."""

from __future__ import annotations

from typing import Any

from . import _front_end, _hooks, _options


def register() -> None:
    """Installs the hooks that see an engine's configuration, once in a process: the entry point.
    They do nothing for an engine that is not captured."""
    wrap = _hooks.wrap
    try:
        with _hooks.whole():
            wrap(_class("vllm.config", "VllmConfig"), "__post_init__", _watch_config)
            wrap(_class("vllm.v1.executor.abstract", "Executor"), "__init__", _start_core)
            wrap(_class("vllm.v1.worker.worker_base", "WorkerWrapperBase"), "init_device",
                 _start_worker)  # fmt: skip
    except (ImportError, _hooks.Refused) as error:
        if _options.of(None) is not None:
            raise
        _hooks.logger.warning("waymark: the capture cannot be switched on here: %s", error)


def _class(module: str, name: str) -> Any:
    owner = getattr(_hooks.module(module), name, None)
    if owner is None:
        raise _hooks.Refused(f"waymark: this vLLM is refused: {module}.{name} is not there")
    return owner


def _watch_config(function: Any) -> Any:
    """A mistake in the options is refused before anything is started."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(self, *args, **kwargs)
        if _options.of(self) is not None:
            _start_front_end()
        return result

    return call


def _start_front_end() -> None:
    """Before an engine is made: a process that makes its configuration has its front end."""
    outputs = "vllm.v1.engine.output_processor"
    with _hooks.whole():
        _front_end.hook(
            _class(outputs, "OutputProcessor"),
            _class(outputs, "RequestState"),
            _hooks.module("vllm.outputs"),
        )
        for where, name in (("llm_engine", "LLMEngine"), ("async_llm", "AsyncLLM")):
            _hooks.wrap(_class(f"vllm.v1.engine.{where}", name), "__init__", _make_engine)


def _make_engine(function: Any) -> Any:
    given = _hooks.Argument(function, "vllm_config")

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        if _options.of(given(args, kwargs)) is not None:
            _front_end.serve(self.output_processor)

    return call


def _start_core(function: Any) -> Any:
    """An executor is made before the model is loaded, and before the scheduler."""
    given = _hooks.Argument(function, "vllm_config")

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = given(args, kwargs)
        options = _options.of(config)
        if options is not None:
            from . import _scheduler, _versions

            _versions.check(config)
            scheduler = config.scheduler_config.get_scheduler_cls()
            _versions.check_names(scheduler)
            with _hooks.whole():
                _scheduler.hook(scheduler)
            _versions.mark(config, options)
            _versions.log_start(config, options)
        return function(self, *args, **kwargs)

    return call


def _start_worker(function: Any) -> Any:
    """A worker initializes its device before the model is loaded."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(self, *args, **kwargs)
        if _options.of(self.vllm_config) is not None:
            from . import _worker

            with _hooks.whole():
                _worker.hook(type(self.worker.model_runner))
        return result

    return call


def worker_report(worker: Any) -> dict[str, Any]:
    """For tests and operators, by ``llm.collective_rpc(waymark.vllm.worker_report)``: counters of
    the store, findings of the audit, hook_times() of the process. Empty in a worker that stores
    nothing."""
    runner = getattr(worker, "model_runner", None) or worker.worker.model_runner
    half = getattr(runner, "_waymark", None)
    if half is None:
        return {}
    return {
        "store": half.store.stats().as_dict(),
        "findings": [finding.text for finding in half.store.take_findings()],
        "steps_without_ids": half.steps_without_ids,
        "failure": half.failure,
        "hook_us": _hooks.hook_times(),
    }
