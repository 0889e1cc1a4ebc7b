"""What is refused before the model is loaded, and what the adapter asks of a configuration."""

from __future__ import annotations

import logging
import re
from typing import Any

from .._hooks import Refused, module, name_of

logger = logging.getLogger("vllm.waymark")

OLDEST, NEWEST = (0, 32), (0, 33)  # that were run
TOO_OLD = "the oldest that is served is 0.32"
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"


def version() -> tuple[int, int]:
    """vLLM's version; (0, 0) for a build from source without a tag."""
    numbers = re.match(r"(\d+)\.(\d+)", module("vllm").__version__)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def asks_before_loads() -> bool:
    """Whether vLLM asks its seam how far hits and loads may go."""
    return version() == (0, 0) or version() >= (0, 33)


def _ask(owner: object, name: str, default: Any) -> Any:
    """An attribute that not every version has; some are properties that raise."""
    value = getattr(owner, name, default)
    return value() if callable(value) else value


def check(config: Any, tier: bool = False) -> None:
    """Refused if an engine of this VllmConfig cannot be captured, or cannot have a tier."""

    def refuse(what: str, when: object, why: str) -> None:
        if when:
            raise Refused(f"waymark: {what} is refused: {why}")

    parallel, model, cache = config.parallel_config, config.model_config, config.cache_config
    device = config.device_config.device_type
    cpu, named = device == "cpu", f"model {model.model}"
    not_served = "vLLM's capture does not serve it"
    refuse(f"vLLM {module('vllm').__version__}", (0, 0) < version() < OLDEST, TOO_OLD)
    refuse(named, _ask(model, "is_diffusion", False),
           "it computes each token several times, and the last pass alone counts")  # fmt: skip
    refuse(named, str(getattr(model.hf_config, "model_type", "")).startswith("deepseek_v4"),
           "it computes tokens of the prefix cache again into shared blocks")  # fmt: skip
    refuse(f"device {device}", device not in ("cpu", "cuda"), "the plugin serves the CPU and CUDA")
    if not cpu:
        rocm = module("vllm.platforms").current_platform.is_rocm()
        refuse(f"device {device}", rocm, "ROCm has not been tried")
        v2 = _ask(config, "use_v2_model_runner", False)
        refuse("model runner V1", not v2, "set VLLM_USE_V2_MODEL_RUNNER=1")
    compiled = int(getattr(config.compilation_config, "mode", 0) or 0) > 0
    refuse("torch.compile on a CPU", cpu and compiled,
           "vLLM's capture is compiled away there: set enforce_eager")  # fmt: skip
    refuse("sequence-parallel MoE on a CPU",
           cpu and _ask(parallel, "use_sequence_parallel_moe", False), "no rank routes all tokens")
    refuse("pipeline_parallel_size", parallel.pipeline_parallel_size > 1,
           "vLLM returns what the last stage captured alone")  # fmt: skip
    if _ask(parallel, "use_ubatching", False) and parallel.data_parallel_size > 1:
        capturing = module("vllm.model_executor.layers.fused_moe.routed_experts_capturer")
        refuse("dual-batch overlap", not hasattr(capturing, "dbo_current_ubatch_token_offset"),
               "vLLM 0.32 writes the ids of each micro-batch to the place of the first")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        refuse(name, _ask(parallel, name, 1) > 1, not_served)
    adaptive = getattr(config.speculative_config, "enable_adaptive_verification", False)
    refuse("adaptive speculative verification", adaptive, not_served)
    on_failure = getattr(config.kv_transfer_config, "kv_load_failure_policy", "")
    refuse(f"kv_load_failure_policy={on_failure}", on_failure == "recompute", "behind a load that "
           "failed, vLLM may not go back to its first token (vLLM issue 49250)")  # fmt: skip
    refuse("kv_sharing_fast_prefill", getattr(cache, "kv_sharing_fast_prefill", False),
           "some layers run for a part of the tokens")  # fmt: skip
    algorithm = str(cache.prefix_caching_hash_algo) if tier else "sha256"
    refuse(f"tier with prefix_caching_hash_algo={algorithm}", not algorithm.startswith("sha256"),
           "its hashes are not cryptographic, so that other tokens may have the same")  # fmt: skip
    scheduler = config.scheduler_config.get_scheduler_cls()
    refuse(f"scheduler {scheduler.__qualname__}", not issubclass(scheduler, name_of(SCHEDULER)),
           "it is not derived from vLLM's")  # fmt: skip


def log_start(config: Any, options: Any) -> None:
    """One line that the capture is on, and one if this vLLM is not known."""
    import waymark as package

    logger.info("waymark %s (%s) captures the routing of %s: layers %r, store %r",
                package.__version__, package.__path__[0], config.model_config.model,
                options.layers, options.store)  # fmt: skip
    if not OLDEST <= version() <= NEWEST:
        logger.warning("waymark: vLLM %s is not known to Waymark %s, which was run with 0.32 and "
                       "0.33: what its names mean may have changed",
                       module("vllm").__version__, package.__version__)  # fmt: skip


def steps_in_flight(config: Any) -> int:
    """How many steps of a worker may not have landed. Steps of a small model take less time than
    the landing thread may wait for a core, and the engine runs ahead of its results."""
    return 64 * max(int(_ask(config, "max_concurrent_batches", 1)), 1)


def kv_group(kv_cache_config: Any) -> tuple[int, int]:
    """The number, and tokens of a block, of the KV cache group whose blocks carry the rows: full
    attention (MLA included), whose blocks a request keeps to its end."""
    kv = module("vllm.v1.kv_cache_interface")

    def full(spec: Any) -> bool:
        if hasattr(spec, "kv_cache_specs"):  # one for each layer
            return all(map(full, spec.kv_cache_specs.values()))
        kinds = {kind.__name__ for kind in type(spec).__mro__}
        return isinstance(spec, kv.FullAttentionSpec) and "RSWASpec" not in kinds

    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        if full(group.kv_cache_spec) and not getattr(group, "host_resident", False):
            return number, group.kv_cache_spec.block_size
    raise Refused("waymark: a model without full attention is refused: no group of its KV cache "
                  "keeps the blocks of a request to its end")  # fmt: skip
