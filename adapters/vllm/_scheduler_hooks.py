"""The hooks of the half in the engine core's process: the methods of vLLM that tell it what happens
to requests and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._hooks import Function, around, class_of, module, starting, whole, wrap
from ._options import Options, of
from ._scheduler import SchedulerHalf


def attach(scheduler: Any, options: Options) -> None:
    """Starts the capture of a Scheduler that was just made."""
    half = SchedulerHalf(scheduler, options)
    manager = scheduler.kv_cache_manager
    managers = [type(one) for one in manager.coordinator.single_type_managers]
    hook_blocks(type(manager.block_pool), *managers)
    if scheduler.connector is not None:
        hook_loads(type(manager))
    hook_weights(module("vllm.v1.engine.core").EngineCore)
    # The last statements: what raises before leaves a scheduler without a capture.
    scheduler._waymark = manager.block_pool._waymark = manager._waymark = half


def check() -> None:
    """Refused, before the model is loaded, if vLLM's own classes lack a method, or an argument of
    it, that is wrapped when a scheduler is made."""
    with whole(install=False):
        hook_blocks(
            class_of("vllm.v1.core.block_pool.BlockPool"),
            class_of("vllm.v1.core.single_type_kv_cache_manager.SingleTypeKVCacheManager"),
        )
        hook_loads(class_of("vllm.v1.core.kv_cache_manager.KVCacheManager"))
        hook_weights(class_of("vllm.v1.engine.core.EngineCore"))


def _half(owner: Any) -> SchedulerHalf | None:
    half: SchedulerHalf | None = getattr(owner, "_waymark", None)
    return None if half is None or half.failure else half


def _tell(owner: Any, what: Callable[..., None], *args: Any, ended: bool = False) -> None:
    """Calls a method of the half of an object: a failure ends the capture, and never reaches
    vLLM. ended: also when it has ended."""
    half = getattr(owner, "_waymark", None) if ended else _half(owner)
    if half is not None:
        try:
            what(half, *args)
        except Exception as error:
            half.fail(error)


def hook(scheduler: type) -> None:
    """Wraps the methods of a scheduler's class, before one is made."""
    wrap(scheduler, "__init__", around(_init))
    wrap(scheduler, "schedule", around(_schedule))
    wrap(scheduler, "_preempt_request", around(_preempt_request))
    wrap(scheduler, "_free_request", around(_free_request))
    wrap(scheduler, "update_from_output", around(_update_from_output))
    wrap(scheduler, "has_finished_requests", around(_has_finished_requests))


# What a hook takes after `call` and the object are arguments of vLLM's method: around().
def _init(call: Function, scheduler: Any) -> None:
    call()
    options = of(scheduler.vllm_config)
    if options is not None and not hasattr(scheduler, "_waymark"):  # by the class that it extends
        with starting(), whole():
            attach(scheduler, options)


def _schedule(call: Function, scheduler: Any) -> Any:
    output = call()
    _tell(scheduler, SchedulerHalf.scheduled, output)
    return output


def _preempt_request(call: Function, scheduler: Any, request: Any) -> Any:
    _tell(scheduler, SchedulerHalf.preempted, request)
    return call()


def _free_request(call: Function, scheduler: Any, request: Any) -> Any:
    half: SchedulerHalf | None = getattr(scheduler, "_waymark", None)
    if half is not None:
        status = module("vllm.v1.request").RequestStatus
        aborted = request.status == status.FINISHED_ABORTED
        without = aborted or request.status in (status.FINISHED_IGNORED, status.FINISHED_ERROR)
        half.ended(request, aborted, not without)
    return call()


def _update_from_output(
    call: Function, scheduler: Any, scheduler_output: Any, model_runner_output: Any
) -> Any:
    """Returns the outputs."""
    outputs = call()
    half: SchedulerHalf | None = getattr(scheduler, "_waymark", None)
    if half is None:
        return outputs
    schedule = getattr(scheduler_output, "waymark", None)
    results = getattr(model_runner_output, "waymark", ())
    half.arrived(schedule)
    if results or half.holds:
        try:
            half.outputs(schedule, results, outputs)
        except Exception as error:
            half.fail(error)
            half.take(outputs)
            half.release(outputs)
    return outputs


def _has_finished_requests(call: Function, scheduler: Any) -> bool:
    """Whether there will be more outputs."""
    half = getattr(scheduler, "_waymark", None)
    return (half is not None and half.holds) or bool(call())


def hook_blocks(pool: type, *managers: type) -> None:
    """Wraps the reset of the prefix cache, and the copy on write of KV cache managers."""
    wrap(pool, "reset_prefix_cache", around(_reset_prefix_cache))
    for manager in managers:
        wrap(manager, "_apply_cow", around(_apply_cow))


def _reset_prefix_cache(call: Function, pool: Any) -> Any:
    done = call()
    if done:
        _tell(pool, SchedulerHalf.reset, ended=True)
    return done


def _apply_cow(call: Function, manager: Any, source_block: Any, cow_block: Any) -> Any:
    def copied(half: SchedulerHalf) -> None:
        half.copied(manager.kv_cache_group_id, source_block.block_id, cow_block.block_id)

    _tell(manager.block_pool, copied)
    return call()


def hook_weights(core: type) -> None:
    """Wraps what names the weights, and where nobody may have named them."""
    wrap(core, "set_weight_version", around(_set_weight_version))
    wrap(core, "reset_prefix_cache", around(_reset_cache_of_core))
    wrap(core, "add_request", around(_add_request))


def _set_weight_version(call: Function, core: Any, weight_version: str) -> Any:
    result = call()
    _tell(core.scheduler, _name_weights, core, weight_version)
    return result


def _name_weights(half: SchedulerHalf, core: Any, name: str) -> None:
    half.executors = core.model_executor._waymark
    half.executors.named()
    half.weights(name)


def _reset_cache_of_core(call: Function, core: Any) -> Any:
    _tell(core.scheduler, _compare_weights, core)
    return call()


def _add_request(call: Function, core: Any) -> Any:
    if not core.scheduler.requests:
        _tell(core.scheduler, _compare_weights, core, ended=True)
    return call()


def _compare_weights(half: SchedulerHalf, core: Any) -> None:
    """Nothing runs. Nobody changes the weights of another process without a call of its workers."""
    half.executors = weights = core.model_executor._waymark
    if weights.changes or not hasattr(core, "run_busy_loop"):
        weights.compare()


def hook_loads(manager: type) -> None:
    """Wraps what gives blocks to requests whose tokens a connector loads, and what takes them back:
    no SchedulerOutput has a request whose load goes on beside the forwards. manager: the class of
    the KVCacheManager."""
    wrap(manager, "allocate_slots", around(_allocate_slots))
    wrap(manager, "free", around(_free))


def _allocate_slots(
    call: Function, manager: Any, request: Any, num_new_computed_tokens: int,
    num_external_computed_tokens: int, delay_cache_blocks: bool,
) -> Any:  # fmt: skip
    blocks = call()
    if blocks is not None and num_external_computed_tokens:
        _tell(manager, SchedulerHalf.loads, request.request_id, num_new_computed_tokens,
              num_external_computed_tokens, bool(delay_cache_blocks))  # fmt: skip
    return blocks


def _free(call: Function, manager: Any, request: Any) -> Any:
    _tell(manager, SchedulerHalf.freed, request)
    return call()
