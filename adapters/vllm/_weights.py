"""Whether the workers may have other weights than those that were named: nobody said so means
unknown, and the next steps are of weights without a name."""

from __future__ import annotations

from typing import Any

from ._hooks import Function, logger, module, wrap

FIRST_WEIGHTS = "default"  # vLLM's own name of weights that were not named

# The calls of workers with a model that keep the weights, of vLLM 0.30 to 0.33. Any other call,
# a function or a method of a worker extension too, may have changed them.
_KEEPS = frozenset(
    "execute_model sample_tokens execute_dummy_batch take_draft_token_ids check_health profile "
    "add_lora remove_lora pin_lora list_loras reset_mm_cache reset_encoder_cache shutdown "
    "synchronize_device wake_up discard update_max_model_len save_sharded_state "
    "get_supported_tasks get_model_inspection get_encoder_timing_stats "
    "get_kv_cache_spec get_supported_kv_cache_layouts set_kv_cache_layout "
    "determine_available_memory get_simple_cpu_offload_num_cpu_blocks "
    "initialize_from_config compile_or_warm_up_model "
    "get_kv_connector_handshake_metadata compute_weight_checksums checkpoint_prepare "
    "init_weight_transfer_engine shutdown_weight_transfer_engine "
    "waymark_report waymark_weights".split()
)
_SLEEP = {"kwargs": {"level": 1}}  # keeps them, too; deeper ones do not


class Weights:
    """Of one executor. The thread of the engine core, which also issues the steps: a call takes
    effect between those that were scheduled before it and those behind it."""

    def __init__(self, executor: Any) -> None:
        """The model is loaded."""
        self._executor = executor
        self.changes = 0
        """How often the weights may have changed."""
        self._digest: Any = None
        self.named()

    def named(self) -> None:
        """The weights that are there now have a name."""
        self._digest = self._look()

    def compare(self) -> None:
        """Finds what changed without a call: nothing is running."""
        if getattr(self._executor, "is_sleeping", False):
            return
        before, self._digest = self._digest, self._look()
        self.changes += self._digest is None or before not in (None, self._digest)

    def _look(self) -> Any:
        """None: nobody knows."""
        try:
            if not getattr(self._executor, "is_sleeping", False):
                return self._executor.collective_rpc("waymark_weights")
        except Exception as error:
            logger.warning("waymark: the weights cannot be compared: %s", error)
        return None


def hook(executor: type) -> None:
    """Wraps what calls the workers."""
    wrap(executor, "collective_rpc", _counted)


def _counted(function: Function) -> Function:
    def call(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        keeps = isinstance(method, str) and method in _KEEPS
        if not keeps and (method != "sleep" or args or kwargs != _SLEEP):
            weights: Weights | None = getattr(self, "_waymark", None)
            if weights is not None:
                weights.changes += 1
        return function(self, method, *args, **kwargs)

    return call


def digest(worker: Any) -> list[int]:
    """Sums of a worker's weights that say where the bytes are: those of routers, and all vectors,
    since a trainer may keep the routers."""
    torch, runner = module("torch"), worker.model_runner
    experts = runner.vllm_config.model_config.get_num_experts()
    sums, places = [], None
    with torch.no_grad():
        for weight in runner.get_model().parameters():
            if weight.ndim == 1 or (weight.ndim == 2 and weight.shape[0] == experts):
                data = weight.detach().contiguous().flatten().view(torch.uint8)
                if places is None or len(places) < len(data):
                    places = torch.arange(1, len(data) + 1, device=data.device)
                sums.append((data * places[: len(data)]).sum())
        found: list[int] = torch.stack(sums).tolist() if sums else []
    return found
