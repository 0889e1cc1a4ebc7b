"""Where the plugin begins, in every process of vLLM: three of its names are replaced."""

from __future__ import annotations

from typing import Any

from . import _checks, _cpu, _options, _tier
from ._hooks import Function, after_import, hook_times, logger, put
from ._scheduler import SchedulerConnector
from ._worker import WorkerConnector


def register() -> None:
    """The entry point. For an engine that is not captured everything is vLLM's own."""
    after_import("vllm.config.vllm", lambda module: _put(
        module.VllmConfig, "_verify_aux_output_compatibility", _verify))  # fmt: skip
    after_import("vllm.v1.core.sched.scheduler", lambda module: _put(
        module.Scheduler, "__init__", _make_scheduler))  # fmt: skip
    after_import("vllm.v1.worker.gpu.model_runner", lambda module: _put(
        module, "get_aux_output_connector", _make_worker))  # fmt: skip
    after_import("vllm.v1.worker.worker_base", lambda module: setattr(
        module.WorkerBase, "waymark_report", worker_report))  # fmt: skip
    after_import("vllm.v1.executor.abstract", lambda module: _put(
        module.Executor, "collective_rpc", _tier.counted))  # fmt: skip
    after_import("vllm.v1.engine.core", lambda module: _put(
        module.EngineCore, "set_weight_version", _tier.named))  # fmt: skip
    after_import("vllm.v1.worker.cpu_model_runner", lambda module: _cpu.hook(
        module.CPUModelRunner))  # fmt: skip


def _put(owner: Any, name: str, make: Function) -> None:
    """A name that is not there is named when an engine is to be captured: _checks."""
    if hasattr(owner, name):
        put(owner, name, make)


def _verify(function: Function) -> Function:
    def verify(config: Any) -> None:
        """A configuration is complete: what cannot be captured is refused here."""
        options = _options.of(config)
        if options is None:
            if why := _options.nothing(config):
                if config.model_config.runner_type == "draft":
                    return  # of an engine that is captured, whose drafts are not
                name = config.model_config.model
                logger.warning("waymark: nothing of %s is captured: %s", name, why)
            function(config)
            return
        _checks.check(config, bool(options.tier))
        _checks.check_names()
        config.aux_output_config.enable_return_routed_experts = True
        # Every process has the options, also on machines with another environment.
        if isinstance(config.additional_config, dict):
            given = {**config.additional_config, _options.KEY: options._asdict()}
            config.additional_config = given

    return verify


def _make_scheduler(function: Function) -> Function:
    def make(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        function(scheduler, *args, **kwargs)
        options = _options.of(scheduler.vllm_config)
        if options is not None:
            scheduler.aux_output_connector = SchedulerConnector(scheduler, options)
            _checks.log_start(scheduler.vllm_config, options)

    return make


def _make_worker(function: Function) -> Function:
    def make(model: Any, vllm_config: Any, kv_cache_config: Any) -> Any:
        options = _options.of(vllm_config)
        if options is None:
            return function(model, vllm_config, kv_cache_config)
        return WorkerConnector(model, vllm_config, kv_cache_config, options)

    return make


def worker_report(worker: Any) -> dict[str, Any]:
    """For tests and operators, by ``llm.collective_rpc("waymark_report")``, whose list has one
    of each worker: counters of the store, missing rows by reason, findings of the audit,
    hook_times() of the process. Empty in a worker that stores nothing."""
    runner = getattr(worker, "model_runner", None) or worker.worker.model_runner
    half = getattr(runner, "aux_output_connector", None)
    if not isinstance(half, WorkerConnector) or half.store is None:
        return {}
    store = half.store
    stats = store.stats()
    return {
        "store": stats.as_dict(),
        "missing": {str(reason): n for reason, n in stats.missing.items()},
        "findings": [finding.text for finding in store.take_findings()],
        "failure": half.failure,
        "tier": store.tier_stats().as_dict(),
        "hook_us": hook_times(),
    }
