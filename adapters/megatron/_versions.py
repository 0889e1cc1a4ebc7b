"""All differences between the versions of megatron-core that are served, and what is refused."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from .._weights import digest
from ._hooks import Refused, logger, module

MOST_EXPERTS = 32768  # Megatron's arrays are int16, and so are the session's
KNOWN = ("0.18.2", "0.19.2")
"""The versions of megatron-core whose engines were captured and compared."""

UNNAMED = 1 << 48
"""Versions from here on are weights that nobody named."""

# What is read of Megatron's objects, beside the methods that are wrapped.
_CONTEXT = (
    "active_token_count", "block_size_tokens", "is_creating_cuda_graphs",
    "is_tensor_state_allocated", "kv_cache_management_mode", "max_tokens", "moe_routing_metadata",
    "padded_active_token_count", "paused_request_count", "request_ids",
    "request_in_prefill_status_tensor", "request_kv_length_offsets", "request_query_lengths",
    "request_to_kv_block_ids", "token_to_block_idx", "token_to_local_position_within_kv_block",
    "total_request_count", "using_cuda_graph_this_step",
)  # fmt: skip
_ALLOCATOR = ("block_routing", "dummy_block_idx")
_METADATA = ("context", "routing_indices_buffer")
_ENGINE = ("_generation_epoch",)
_REPLAY = ("get_recorded_indices", "recorded_topk_idx")
_ROUTERS = ("InferenceTopKRouter", "TopKRouter")  # the first is derived from the second
_CHOOSES = ("forward", "routing")


class MoELayer(NamedTuple):
    """A layer whose router is captured."""

    layer_id: int
    """The model's number of the layer, from 0; Megatron's layer_number is from 1."""
    replay: Any
    """Its RouterReplay."""


def check(context: Any) -> None:
    """Refused if a DynamicInferenceContext cannot be captured."""
    allocator = getattr(context, "kv_block_allocator", None)
    if allocator is None:
        raise Refused(
            "waymark: attach takes a DynamicInferenceEngine or a DynamicInferenceContext, got "
            f"{type(context).__name__}"
        )
    if not hasattr(allocator, "store_routing_per_block"):
        raise Refused(
            f"waymark: {type(context).__name__} is refused: its allocator keeps no routing by "
            "block (megatron-core 0.18 or later is needed)"
        )
    mode: Any = getattr(getattr(context, "config", None), "async_sched_mode", None)
    if getattr(mode, "name", "LEGACY") != "LEGACY":
        raise Refused(
            f"waymark: async_sched_mode {mode.name} is refused: Megatron records no routing in it"
        )


def read(owner: Any, *names: str) -> Any:
    """The attribute of an attribute ... of an object. Refused, by its name, if one does not
    exist."""
    for name in names:
        if not hasattr(owner, name):
            raise Refused(f"waymark: {type(owner).__name__} is refused: it has no {name}")
        owner = getattr(owner, name)
    return owner


def version() -> str:
    """The running megatron-core's."""
    return str(getattr(sys.modules.get("megatron.core"), "__version__", KNOWN[0]))


def check_names(context: Any, engine: Any, layers: list[MoELayer]) -> None:
    """Refused, by its name, if something that is read does not exist. An unknown version of
    megatron-core is named in the log."""
    allocator = context.kv_block_allocator
    objects = [
        (context, _CONTEXT),
        (getattr(context, "moe_routing_metadata", None), _METADATA),
        (allocator, _ALLOCATOR + (() if hasattr(allocator, "total_count") else ("pool_size",))),
        *((layer.replay, _REPLAY) for layer in layers),
    ]
    if engine is not None:
        objects.append((engine, _ENGINE))
    for owner, names in objects:
        for name in names:
            read(owner, name)
    if version().split("+")[0] not in KNOWN:
        logger.warning(
            "waymark: megatron-core %s is none of those that were compared (%s); all names that "
            "are read are there",
            version(), ", ".join(KNOWN),
        )  # fmt: skip


def check_model(config: Any) -> None:
    """Refused if a model of this TransformerConfig cannot be captured."""
    read(config, "num_moe_experts"), read(config, "moe_router_topk")
    _refuse({
        **_without_replay(config, "record nothing", "does not record what it chooses"),
        "num_moe_experts": (
            (config.num_moe_experts or 0) > MOST_EXPERTS
            and f"it is {config.num_moe_experts}, more than {MOST_EXPERTS}"
        ),
        "pipeline_model_parallel_size": (
            getattr(config, "pipeline_model_parallel_size", 1) > 1
            and "each stage has the rows of its own layers only, and Megatron returns the first's"
        ),
    })  # fmt: skip


def check_replay(config: Any) -> None:
    """Refused if the routers of a model of this TransformerConfig do not do what a RouterReplay
    says."""
    _refuse({
        **_without_replay(config, "have no RouterReplay", "chooses the experts itself"),
        "moe_expert_capacity_factor": (
            getattr(config, "moe_expert_capacity_factor", None) is not None
            and "tokens beyond the capacity are dropped from the experts that they are given"
        ),
        "overlap_moe_expert_parallel_comm": (
            getattr(config, "overlap_moe_expert_parallel_comm", False)
            and "the forward of one micro-batch runs inside the backward of another"
        ),
    })  # fmt: skip


def _without_replay(config: Any, all_do: str, one_does: str) -> dict[str, Any]:
    """Options with which routers pass their RouterReplay by, and why they are refused: what all
    routers, or one that passes it by, would do."""
    balancing = getattr(config, "moe_router_load_balancing_type", None) or ()
    passing = [name for name in ("sinkhorn", "quantile_balancing") if name in balancing]
    return {
        "moe_enable_routing_replay": (
            not getattr(config, "moe_enable_routing_replay", False)
            and f"it is off, and routers {all_do}: set it before the model is made"
        ),
        "moe_router_fusion": (
            getattr(config, "moe_router_fusion", False) and f"the fused router {one_does}"
        ),
        "moe_router_load_balancing_type": passing and f"{passing[0]} {one_does}",
    }


def _refuse(reasons: dict[str, Any]) -> None:
    for what, why in reasons.items():
        if why:
            raise Refused(f"waymark: {what} is refused: {why}")


def num_blocks(allocator: Any) -> int:
    """All blocks of the pool; main calls them pool_size."""
    total: int = getattr(allocator, "total_count", None) or allocator.pool_size
    return total


def inner_model(model: Any) -> Any:
    """The model inside of Float16Module, DistributedDataParallel and the like."""
    for wrapper in range(8):
        if hasattr(model, "decoder") or not hasattr(model, "module"):
            break
        model = model.module
    return model


def routers(model: Any) -> list[Any]:
    """The routers of the decoder. MTP layers' routers count from 1 again, and are not in it.
    Refused if one is none of which it was proven that it chooses what its RouterReplay shows."""
    model = inner_model(model)
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        decoder = getattr(getattr(model, "language_model", None), "decoder", None)
    found = []
    for one in decoder.modules() if decoder is not None else ():
        classes = {of.__name__: of for of in reversed(type(one).__mro__)}
        if hasattr(one, "router_replay") or "Router" in classes:
            _check_router(one, next((classes[name] for name in _ROUTERS if name in classes), None))
            found.append(one)
    return found


def _check_router(router: Any, proven: Any) -> None:
    why = ""
    if any(getattr(type(router), of, 0) is not getattr(proven, of, 1) for of in _CHOOSES):
        why = (
            "that its RouterReplay shows the experts that it chooses is known of "
            f"{' and '.join(_ROUTERS[::-1])} with their own {' and '.join(_CHOOSES)}"
        )
    elif router.router_replay is None:
        why = "it has no RouterReplay: set moe_enable_routing_replay before the model is made"
    if why:
        layer = (getattr(router, "layer_number", None) or 0) - 1
        raise Refused(f"waymark: {type(router).__name__} of layer {layer} is refused: {why}")


class Digest:
    """Notices weights of routers that have changed while nobody said so."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sums: list[int] | None = self._take()
        self.unnamed = UNNAMED - 1  # the version of such weights
        # Whether the engine was idle, its cache was reset, or it was suspended since the last look.
        self.unsure = False

    def told(self) -> None:
        """There are new weights, from the next step on."""
        self.unsure, self._sums = True, None

    def differs(self) -> bool:
        """In a step. Waits for the device, if it is unsure."""
        if not self.unsure:
            return False
        before, self._sums, self.unsure = self._sums, self._take(), False
        if before in (None, self._sums):
            return False
        self.unnamed += 1
        logger.warning(
            "waymark: the weights of routers have changed, and nobody said so: rows are of version "
            "%d until weights are named, and other engines do not get them", self.unnamed,
        )  # fmt: skip
        return True

    def _take(self) -> list[int]:
        """Of all that a router chooses by."""
        names = ("weight", "bias", "expert_bias")
        found = [getattr(one, name, None) for one in routers(self._model) for name in names]
        return digest(one for one in found if one is not None)


def moe_layers(model: Any) -> list[MoELayer]:
    """The layers that are captured, in their order. Up to 0.18 only the router knows its number."""
    found = []
    for router in routers(model):
        found.append(MoELayer(int(router.layer_number) - 1, router.router_replay))
        if len(router.weight) != router.config.num_moe_experts:
            raise Refused(
                f"waymark: num_moe_experts is refused: it is {router.config.num_moe_experts}, and "
                f"the router of layer {found[-1].layer_id} has {len(router.weight)} experts"
            )
    if not found:
        name = type(inner_model(model)).__name__
        raise Refused(f"waymark: {name} is refused: no layer of its decoder has a router")
    return sorted(found, key=lambda layer: layer.layer_id)


def all_replays() -> list[Any]:
    """The RouterReplay of every router of this process, in the order of RoutingMetadata's
    buffer."""
    router_replay = module("megatron.core.transformer.moe.router_replay")
    replays: list[Any] = router_replay.RouterReplay.global_router_replay_instances
    return replays


class Tokens:
    """The blocks and positions of a context's tokens, as numpy arrays of the memory that Megatron
    writes before every forward. A resume makes new tensors."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._lent: Any = None
        self._pairs: tuple[Any, Any] = (None, None)

    def pairs(self) -> tuple[Any, Any]:
        """[max_tokens] each."""
        blocks = self._context.token_to_block_idx
        if blocks is not self._lent:
            self._lent = blocks
            positions = self._context.token_to_local_position_within_kv_block
            self._pairs = (blocks.numpy(), positions.numpy())
        return self._pairs


def recompute_on_resume(context: Any) -> bool:
    """Whether a suspend forgets the KV cache: running requests begin again when it is resumed."""
    mode = getattr(context, "kv_cache_management_mode", None)
    return bool(getattr(mode, "name", "") == "RECOMPUTE")


def generation_epoch(engine: Any) -> int | None:
    """The number of the engine's weights; None: it has none."""
    epoch: int | None = getattr(engine, "_generation_epoch", None)
    return epoch
