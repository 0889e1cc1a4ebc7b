"""Where the plugin begins, in every process of vLLM: few of its names are replaced."""

from __future__ import annotations

from typing import Any

from .._hooks import Function, Refused, module, name_of, put
from . import _checks, _cpu, _options, _tier
from ._checks import logger
from ._scheduler import SchedulerConnector
from ._worker import WorkerConnector


def register() -> None:
    """The entry point. Imports what every process of vLLM has imported; the rest is replaced when
    an engine makes its scheduler and workers. An engine that is not captured is vLLM's own."""
    config = name_of("vllm.config.VllmConfig")
    if not hasattr(config, "_verify_aux_output_compatibility"):
        if _options.switched_on():
            raise Refused(f"waymark: this vLLM is refused: {_checks.TOO_OLD}")
        return
    put(config, "_verify_aux_output_compatibility", _verify)
    put(name_of("vllm.config.SchedulerConfig"), "get_scheduler_cls", _get_scheduler_cls)
    put(name_of("vllm.v1.worker.worker_base.WorkerBase"), "__init__", _make_worker)


def _verify(function: Function, config: Any) -> None:
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
    _options.check(options)
    _checks.check(config, bool(options.tier))
    config.aux_output_config.enable_return_routed_experts = True
    # Every process has the options, also on machines with another environment.
    if isinstance(config.additional_config, dict):
        given = {**config.additional_config, _options.KEY: options._asdict()}
        config.additional_config = given


def _get_scheduler_cls(function: Function, config: Any) -> Any:
    """The engine core is about to make its scheduler; its executor is made."""
    put(name_of(_checks.SCHEDULER), "__init__", _make_scheduler)
    put(name_of("vllm.v1.engine.core.EngineCore"), "set_weight_version", _tier.named)
    kinds = [name_of("vllm.v1.executor.abstract.Executor")]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if "collective_rpc" in vars(kind):
            put(kind, "collective_rpc", _tier.counted)
    return function(config)


def _make_scheduler(function: Function, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    function(scheduler, *args, **kwargs)
    options = _options.of(scheduler.vllm_config)
    if options is not None:
        scheduler.aux_output_connector = SchedulerConnector(scheduler, options)
        _checks.log_start(scheduler.vllm_config, options)


def _make_worker(function: Function, worker: Any, *args: Any, **kwargs: Any) -> None:
    function(worker, *args, **kwargs)
    if _options.of(worker.vllm_config) is None:
        return
    if worker.vllm_config.use_v2_model_runner:
        runner = module("vllm.v1.worker.gpu.model_runner")
        put(runner, "get_aux_output_connector", _get_aux_output_connector)
    else:
        _cpu.hook(name_of("vllm.v1.worker.cpu_model_runner.CPUModelRunner"))


def _get_aux_output_connector(
    function: Function, model: Any, vllm_config: Any, kv_cache_config: Any
) -> Any:
    options = _options.of(vllm_config)
    if options is None:
        return function(model, vllm_config, kv_cache_config)
    return WorkerConnector(model, vllm_config, kv_cache_config, options)
