"""All differences between the versions of vLLM that are served, and what is refused at the
start."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ._hooks import Refused, class_of, logger, module

OLDEST, NEWEST = (0, 30), (0, 33)  # that were run

# Fields that the half in the engine core reads.
_FIELDS = {
    "vllm.v1.core.sched.output.SchedulerOutput": (
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens"
    ),
    "vllm.v1.core.sched.output.NewRequestData": "req_id block_ids num_computed_tokens",
    "vllm.v1.core.sched.output.CachedRequestData": (
        "req_ids resumed_req_ids new_block_ids num_computed_tokens"
    ),
    "vllm.v1.engine.EngineCoreOutput": (
        "request_id new_token_ids finish_reason routed_experts trace_headers"
    ),
    "vllm.v1.engine.EngineCoreOutputs": "outputs",
    "vllm.v1.request.RequestStatus": "PREEMPTED FINISHED_ABORTED FINISHED_IGNORED FINISHED_ERROR",
}


class KVGroup(NamedTuple):
    """The KV cache group whose blocks carry the rows."""

    number: int
    block_tokens: int


def version() -> tuple[int, int]:
    """vLLM's version; (0, 0) for a build from source without a tag."""
    numbers = re.match(r"(\d+)\.(\d+)", module("vllm").__version__)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _ask(owner: object, name: str, default: Any) -> Any:
    """An attribute that not every version has; some are properties that raise."""
    value = getattr(owner, name, default)
    return value() if callable(value) else value


def on_device(config: Any) -> bool:
    """Whether ids and slots are in a device's memory."""
    return bool(config.device_config.device_type != "cpu")


def _runner_v2(config: Any) -> bool:
    return bool(_ask(config, "use_v2_model_runner", False))


def _halves_have_offsets() -> bool:
    """Whether vLLM says where the rows of a half of a forward begin (0.33)."""
    return hasattr(module("vllm.v1.worker.ubatching"), "dbo_current_ubatch_token_offset")


def check(config: Any, tier: bool = False) -> None:
    """Refused if an engine of this VllmConfig cannot be captured, or cannot have a tier."""
    parallel, model = config.parallel_config, config.model_config
    device, cuda = config.device_config.device_type, on_device(config)
    on_failure = getattr(config.kv_transfer_config, "kv_load_failure_policy", "")
    hash_algo = str(config.cache_config.prefix_caching_hash_algo) if tier else ""
    refused = {
        f"vLLM {'.'.join(map(str, version()))}": (
            (0, 0) < version() < OLDEST and "older than 0.30, the oldest that is served"
        ),
        f"model {model.model}": (
            (
                _ask(model, "is_diffusion", False)
                and "it computes each token several times, and the last pass alone counts"
            )
            or (
                str(getattr(model.hf_config, "model_type", "")).startswith("deepseek_v4")
                and "it computes tokens of the prefix cache again into shared blocks"
            )
        ),
        f"device {device}": (
            (device not in ("cpu", "cuda") and "the plugin serves the CPU and CUDA")
            or (
                device == "cuda"
                and module("vllm.platforms").current_platform.is_rocm()
                and "ROCm has not been tried"
            )
        ),
        "decode_context_parallel_size": (
            _ask(parallel, "decode_context_parallel_size", 1) > 1
            and "no rank has the slots of all tokens"
        ),
        "prefill_context_parallel_size": (
            _ask(parallel, "prefill_context_parallel_size", 1) > 1 and "no rank routes all tokens"
        ),
        "enable_dbo": (
            _ask(parallel, "use_ubatching", False)
            and not (cuda and _runner_v2(config) and _halves_have_offsets())
            and "two threads run the halves of a forward"
        ),
        "sequence-parallel MoE on a CPU": (
            not cuda
            and _ask(parallel, "use_sequence_parallel_moe", False)
            and "no rank routes all tokens"
        ),
        f"kv_load_failure_policy={on_failure}": (
            on_failure == "recompute"
            and (_runner_v2(config) or config.scheduler_config.async_scheduling)
            and "behind a load that failed, model runner V2 and async scheduling do not go back "
            "to its first token (vLLM issue 49250)"
        ),
        f"tier with prefix_caching_hash_algo={hash_algo}": (
            tier
            and not hash_algo.startswith("sha256")
            and "its hashes are not cryptographic, so that other tokens may have the same"
        ),
        "kv_sharing_fast_prefill": (
            cuda
            and getattr(config.cache_config, "kv_sharing_fast_prefill", False)
            and "some layers run for a part of the tokens"
        ),
    }
    for what, why in refused.items():
        if why:
            raise Refused(f"waymark: {what} is refused: {why}")


def check_names() -> None:
    """Refused, before the model is loaded, if vLLM lacks a field that is read later."""
    for name, fields in _FIELDS.items():
        owner = class_of(name)
        # A field without a default is no attribute of its class.
        known = {one for base in owner.__mro__ for one in vars(base).get("__annotations__", ())}
        for field in fields.split():
            if field not in known and not hasattr(owner, field):
                raise Refused(
                    f"waymark: this vLLM is refused: {owner.__name__}.{field} is not there"
                )


def log_start(config: Any, options: Any) -> None:
    """One line that the capture is on, and one if this vLLM is not known."""
    import waymark as package

    logger.info(
        "waymark %s (%s) captures the routing of %s: layers %r, store %r",
        package.__version__,
        package.__path__[0],
        config.model_config.model,
        options.layers,
        options.store,
    )
    if on_device(config):
        logger.warning(
            "waymark: CUDA: the way of ids and slots from the device has run on a GPU with a small "
            "engine of Waymark's own, and not with vLLM"
        )
    if version() > NEWEST or version() == (0, 0):
        logger.warning(
            "waymark: vLLM %s is not known to Waymark %s, which was run with 0.30 to 0.33: every "
            "name that it needs is there, and what they mean may have changed",
            module("vllm").__version__,
            package.__version__,
        )


def steps_in_flight(config: Any) -> int:
    """How many steps of a worker may not have landed. Steps of a small model take less time than
    the landing thread may wait for a core, and the engine runs ahead of its results."""
    return 64 * max(steps_ahead(config), 1)


def kv_group(kv_cache_config: Any) -> KVGroup:
    """The group of full attention (MLA included), whose blocks a request keeps to its end."""
    kv = module("vllm.v1.kv_cache_interface")
    uniform = getattr(kv, "UniformTypeKVCacheSpecs", ())

    def full(spec: Any) -> bool:
        if uniform and isinstance(spec, uniform):
            return all(map(full, spec.kv_cache_specs.values()))
        return isinstance(spec, kv.FullAttentionSpec) and not isinstance(
            spec, tuple(filter(None, (getattr(kv, "RSWASpec", None),)))
        )

    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        if full(group.kv_cache_spec) and not getattr(group, "host_resident", False):
            return KVGroup(index, group.kv_cache_spec.block_size)
    kinds = ", ".join(
        type(group.kv_cache_spec).__name__ for group in kv_cache_config.kv_cache_groups
    )
    raise Refused(
        "waymark: a model without full attention is refused: no KV cache group "
        f"({kinds or 'none'}) keeps the blocks of a request to its end"
    )


def hash_block_tokens(scheduler: Any, group: KVGroup) -> int:
    """The tokens of one hash of the prefix cache. 0: hashes are coarser than blocks, which then
    have no keys (hybrid models without a prefix cache)."""
    tokens: int = getattr(scheduler, "hash_block_size", None) or group.block_tokens
    return tokens if group.block_tokens % tokens == 0 else 0


def sends_kv(config: Any) -> bool:
    """Whether other engines load KV that this one computes."""
    transfer = config.kv_transfer_config
    return transfer is not None and bool(transfer.is_kv_producer)


def blocks_of_requests(scheduler: Any, group: KVGroup) -> dict[str, Any]:
    """The blocks of each request, in order; each has a block_id."""
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[group.number]
    blocks: dict[str, Any] = manager.req_to_blocks
    return blocks


def slots(runner: Any, group: KVGroup) -> Any:
    """int64 [rows]: the slots of the batch, in its order: the tensor that vLLM writes before every
    forward, from when the KV cache was made."""
    if _runner_v2(runner.vllm_config):
        return runner.block_tables.slot_mappings[group.number]
    return runner.input_batch.block_table[group.number].slot_mapping.gpu


def rows(runner: Any, scheduler_output: Any) -> int:
    """Behind a forward, of which sample_tokens has not taken what it left: its rows. Runner V2 may
    leave out drafts of what was scheduled."""
    if _runner_v2(runner.vllm_config):
        return int(runner.execute_model_state.input_batch.num_tokens)
    return int(scheduler_output.total_num_scheduled_tokens)


def most_rows(config: Any) -> int:
    """Of a forward, padding included."""
    sizes = getattr(config.compilation_config, "cudagraph_capture_sizes", None) or [0]
    ranks = config.parallel_config.tensor_parallel_size
    most = max(config.scheduler_config.max_num_batched_tokens, *sizes)
    return int(-(-most // ranks) * ranks)


def steps_ahead(config: Any) -> int:
    """How many steps the engine issues before it has the output of the first."""
    return int(_ask(config, "max_concurrent_batches", 1))


def late_seconds(config: Any) -> float:
    """How late the ids of a step may be: later than vLLM itself waits for a forward. 0 on a CPU."""
    if not on_device(config):
        return 0.0
    return float(module("vllm.envs").VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS) + 60.0


def writer(config: Any, buffer: Any) -> Callable[[int, Any], None]:
    """A function that writes the ids of a layer, by its number among those captured, where the rows
    of this engine's tokens lie in `buffer`: where ranks or halves of a forward share the tokens,
    vLLM's own, which may gather them from the tensor-parallel ranks."""
    parallel = config.parallel_config
    if (
        parallel.data_parallel_size > 1
        or _ask(parallel, "use_sequence_parallel_moe", False)
        or _ask(parallel, "use_ubatching", False)
    ):
        where = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
        kind = module(where).RoutedExpertsCapturer
        capturer = kind.__new__(kind)  # its __init__ makes a buffer
        capturer.device_buffer = buffer
        capturer.dp_rank = parallel.data_parallel_rank
        capturer.tp_size = parallel.tensor_parallel_size
        capture: Callable[[int, Any], None] = capturer.capture
        return capture

    of_first = 0

    def write(layer: int, ids: Any) -> None:
        nonlocal of_first
        rows = ids.shape[0]
        of_first = rows if layer == 0 else of_first
        # A layer that ran for a part of the tokens is silent: nobody knows which they were.
        if rows == of_first <= buffer.shape[0]:
            buffer[:rows, layer].copy_(ids)

    return write


def own_rows(parallel_config: Any) -> Any:
    """A function of expert ids that returns this engine's tokens' ids, where a router may
    choose for the tokens of all data-parallel engines at once; else None."""
    if parallel_config.data_parallel_size == 1:
        return None
    rank = parallel_config.data_parallel_rank
    context = module("vllm.forward_context").get_forward_context

    def own(ids: Any) -> Any:
        metadata = context().dp_metadata
        if metadata is None:
            return ids
        tokens = metadata.num_tokens_across_dp_cpu.tolist()
        if len(ids) != sum(tokens):
            return ids
        first = sum(tokens[:rank])
        return ids[first : first + tokens[rank]]

    return own


def compiles(config: Any) -> bool:
    """Whether the model is compiled."""
    mode = getattr(config.compilation_config, "mode", 0)
    return bool(int(mode or 0))


def mark(config: Any, options: Any) -> None:
    """Code that was compiled without a capture is not to be found in vLLM's cache of compiled code;
    and processes on machines with another environment have the same options."""
    if isinstance(config.additional_config, dict):
        config.additional_config = {**config.additional_config, "waymark": options._asdict()}
