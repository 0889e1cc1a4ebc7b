"""What is refused before the model is loaded, and the names of vLLM that the adapter reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._hooks import Refused, class_of, logger, module

OLDEST, NEWEST = (0, 32), (0, 33)  # that were run

# Of vLLM's classes, the attributes that are read, and functions that are called, with arguments.
NAMES = {
    "vllm.v1.core.sched.output.SchedulerOutput": (
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens "
        "kv_cache_block_copies aux_output_connector_metadata"
    ),
    "vllm.v1.core.sched.output.NewRequestData": "req_id block_ids num_computed_tokens",
    "vllm.v1.core.sched.output.CachedRequestData": (
        "req_ids resumed_req_ids new_block_ids num_computed_tokens"
    ),
    "vllm.v1.core.sched.scheduler.Scheduler": "__init__ update_from_output",
    "vllm.v1.outputs.ModelRunnerOutput": "aux_output_connector_output",
    "vllm.config.VllmConfig": "_verify_aux_output_compatibility aux_output_config",
    "vllm.model_executor.layers.fused_moe.layer.MoERunner": "",
    "vllm.model_executor.layers.fused_moe.routed_experts_capturer.RoutedExpertsCapturer": "capture",
    "vllm.model_executor.layers.fused_moe.routed_experts_capturer.RoutedExpertsCaptureSource": "",
    "vllm.model_executor.layers.fused_moe.routed_experts_capturer.bind_routed_experts_capturer": "",
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


def check(config: Any, tier: bool = False) -> None:
    """Refused if an engine of this VllmConfig cannot be captured, or cannot have a tier."""
    for what, refused, why in _refused(config, tier):
        if refused:
            raise Refused(f"waymark: {what} is refused: {why}")


def _refused(config: Any, tier: bool) -> Iterator[tuple[str, bool, str]]:
    parallel, model, cache = config.parallel_config, config.model_config, config.cache_config
    device = config.device_config.device_type
    cpu, named = device == "cpu", f"model {model.model}"
    not_served = "vLLM's capture does not serve it"
    yield (f"vLLM {'.'.join(map(str, version()))}", (0, 0) < version() < OLDEST,
           "the oldest that is served is 0.32")  # fmt: skip
    yield (named, bool(_ask(model, "is_diffusion", False)),
           "it computes each token several times, and the last pass alone counts")  # fmt: skip
    yield (named, str(getattr(model.hf_config, "model_type", "")).startswith("deepseek_v4"),
           "it computes tokens of the prefix cache again into shared blocks")  # fmt: skip
    yield (f"device {device}", device not in ("cpu", "cuda"),
           "the plugin serves the CPU and CUDA")  # fmt: skip
    if not cpu:
        rocm = module("vllm.platforms").current_platform.is_rocm()
        yield f"device {device}", rocm, "ROCm has not been tried"
        yield ("model runner V1", not _ask(config, "use_v2_model_runner", False),
               "set VLLM_USE_V2_MODEL_RUNNER=1")  # fmt: skip
    yield ("torch.compile on a CPU",
           cpu and int(getattr(config.compilation_config, "mode", 0) or 0) > 0,
           "vLLM's capture is compiled away there: set enforce_eager")  # fmt: skip
    yield ("sequence-parallel MoE on a CPU",
           cpu and bool(_ask(parallel, "use_sequence_parallel_moe", False)),
           "no rank routes all tokens")  # fmt: skip
    yield ("pipeline_parallel_size", parallel.pipeline_parallel_size > 1,
           "vLLM returns what the last stage captured alone")  # fmt: skip
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        yield name, _ask(parallel, name, 1) > 1, not_served
    adaptive = getattr(config.speculative_config, "enable_adaptive_verification", False)
    yield "adaptive speculative verification", bool(adaptive), not_served
    on_failure = getattr(config.kv_transfer_config, "kv_load_failure_policy", "")
    yield (f"kv_load_failure_policy={on_failure}", on_failure == "recompute",
           "behind a load that failed, vLLM may not go back to its first token (vLLM issue 49250)"
           )  # fmt: skip
    yield ("kv_sharing_fast_prefill", bool(getattr(cache, "kv_sharing_fast_prefill", False)),
           "some layers run for a part of the tokens")  # fmt: skip
    algorithm = str(cache.prefix_caching_hash_algo) if tier else ""
    yield (f"tier with prefix_caching_hash_algo={algorithm}",
           tier and not algorithm.startswith("sha256"),
           "its hashes are not cryptographic, so that other tokens may have the same")  # fmt: skip
    scheduler = config.scheduler_config.get_scheduler_cls()
    own = class_of("vllm.v1.core.sched.scheduler.Scheduler")
    yield (f"scheduler {scheduler.__qualname__}", not issubclass(scheduler, own),
           "it is not derived from vLLM's")  # fmt: skip


def check_names() -> None:
    """Refused if vLLM lacks a name that is replaced or read later."""
    for name, fields in NAMES.items():
        owner = class_of(name)
        # A field without a default is no attribute of its class.
        bases = getattr(owner, "__mro__", ())
        known = {one for base in bases for one in vars(base).get("__annotations__", ())}
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
    if not OLDEST <= version() <= NEWEST:
        logger.warning(
            "waymark: vLLM %s is not known to Waymark %s, which was run with 0.32 and 0.33: every "
            "name that it needs is there, and what they mean may have changed",
            module("vllm").__version__,
            package.__version__,
        )


def steps_in_flight(config: Any) -> int:
    """How many steps of a worker may not have landed. Steps of a small model take less time than
    the landing thread may wait for a core, and the engine runs ahead of its results."""
    return 64 * max(int(_ask(config, "max_concurrent_batches", 1)), 1)


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
