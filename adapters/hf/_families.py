"""The routers of transformers that are known, and how each weighs the experts of given ids. All
differences between families and versions are here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .._hooks import Refused

Weigh = Callable[[Any, Any, Any], Any]
"""(router, logits [T, E], ids [T, K]) -> scores [T, K]: what the router itself would have given to
these experts, with gradients."""


class Router(NamedTuple):
    """A router of a model: a module that returns (logits [T, E], scores [T, K], ids [T, K])."""

    layer_id: int
    """The model's number of its layer, from 0."""
    name: str
    """Of the module in the model."""
    module: Any
    top_k: int
    num_experts: int
    weigh: Weigh

    def __str__(self) -> str:
        return f"{type(self.module).__name__} of layer {self.layer_id}"


def _softmax(router: Any, logits: Any, ids: Any) -> Any:
    if router.norm_topk_prob:
        return _softmax_of_chosen_in_float(router, logits, ids).to(logits.dtype)
    return logits.float().softmax(-1).gather(1, ids).to(logits.dtype)


def _softmax_of_chosen_in_float(router: Any, logits: Any, ids: Any) -> Any:
    logits = logits.float()
    scores = logits.softmax(-1).gather(1, ids)
    total = scores.sum(-1, keepdim=True)
    # Of experts that the router would never choose, all probabilities may be 0 in float32. (Its own
    # sum to 1 / E at least, so that they get the very numbers of the router.)
    known = total > 1e-30
    apart = logits.gather(1, ids).softmax(-1)
    return (scores / total.where(known, 1.0)).where(known, apart)


def _sigmoid(router: Any, logits: Any, ids: Any) -> Any:
    # e_score_correction_bias takes part in the choice only.
    scores = logits.sigmoid().gather(1, ids)
    if router.norm_topk_prob:
        scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
    return scores * router.routed_scaling_factor


def _softmax_of_chosen(router: Any, logits: Any, ids: Any) -> Any:
    return logits.gather(1, ids).softmax(1, dtype=logits.dtype)


# By the class of the router. tests/integration/trainer/families.py runs models of Qwen3Moe, Olmoe,
# Mixtral, DeepseekV3 and GptOss, and compares the routers of all.
_OF_CHOSEN = "MixtralTopKRouter", "MiniMaxTopKRouter"
_SOFTMAX = ("Qwen3MoeTopKRouter", "OlmoeTopKRouter", "Qwen2MoeTopKRouter", "Qwen3NextTopKRouter",
            "Qwen3OmniMoeThinkerTextTopKRouter", "FlexOlmoTopKRouter")  # fmt: skip
_SIGMOID = ("DeepseekV3TopkRouter", "DeepseekV32TopkRouter", "Dots1TopkRouter",
            "ExaoneMoeTopkRouter", "Glm4MoeTopkRouter", "Glm4MoeLiteTopkRouter",
            "Glm4vMoeTextTopkRouter", "GlmMoeDsaTopkRouter", "SolarOpenTopkRouter")  # fmt: skip
FAMILIES: dict[str, Weigh] = {
    **dict.fromkeys(_SOFTMAX, _softmax),
    **dict.fromkeys(_OF_CHOSEN, _softmax_of_chosen_in_float),
    **dict.fromkeys(_SIGMOID, _sigmoid),
    "GptOssTopKRouter": _softmax_of_chosen,
}

_ROUTER = re.compile(r"Router$|MoE.*Gate$")
_BLOCK = re.compile(r"Moe|MoE|MOE|Experts")
_LAYER = re.compile(r"(?:(.*)\.)?layers\.(\d+)\.")


def routers_of(model: Any) -> list[Router]:
    """The routers of a model, by layer. Refused if one of them is not known: a model is replayed as
    a whole or not at all."""
    if not hasattr(model, "named_modules"):
        raise Refused(f"waymark: {type(model).__name__} is refused: it is no module of torch")
    routers: dict[int, Router] = {}
    block = ""
    idle: list[Any] = []
    for name, module in model.named_modules():
        idle += _idle(module)
        if any(module is one for one in idle):
            continue
        kind = type(module).__name__
        # Sharding derives a class from the module's.
        known = [of.__name__ for of in type(module).__mro__ if of.__name__ in FAMILIES]
        if not known:
            if _ROUTER.search(kind):
                raise Refused(
                    f"waymark: {kind} ({name}) is refused: how it weighs the experts of given "
                    f"ids is not known. Known are {', '.join(sorted(FAMILIES))}"
                )
            block = block or (kind if _BLOCK.search(kind) and name else "")
            continue
        found = _LAYER.match(name + ".")
        if found is None:
            raise Refused(f"waymark: {kind} ({name}) is refused: its name has no layers.N")
        absent = [of for of in ("top_k", "num_experts") if not hasattr(module, of)]
        if absent:
            raise Refused(
                f"waymark: {kind} ({name}) is refused: it has no {absent[0]}: in this version of "
                "transformers another module chooses the experts"
            )
        layer = int(found[2])
        if layer in routers:
            raise Refused(
                f"waymark: {type(model).__name__} is refused: {routers[layer].name} and {name} are "
                f"both routers of layer {layer}; give the part that is to be replayed"
            )
        weigh = FAMILIES[known[0]]
        routers[layer] = Router(
            layer, name, module, int(module.top_k), int(module.num_experts), weigh
        )
    if not routers:
        why = "none of its modules routes to experts"
        if block:
            why = (
                f"{block} has no router that is a module of its own (transformers 5.6 or later is "
                "needed)"
            )
        raise Refused(f"waymark: {type(model).__name__} is refused: {why}")
    return _alike(model, [routers[layer] for layer in sorted(routers)])


def _alike(model: Any, routers: list[Router]) -> list[Router]:
    first = routers[0]
    for router in routers:
        if router[3:5] != first[3:5]:
            raise Refused(
                f"waymark: {type(model).__name__} is refused: {router} chooses {router.top_k} of "
                f"{router.num_experts} experts, {first} {first.top_k} of {first.num_experts}"
            )
    return routers


def _idle(module: Any) -> list[Any]:
    """Of PEFT's ``modules_to_save`` around a module: those that do not run now."""
    saved = getattr(module, "modules_to_save", None)
    if saved is None or not hasattr(module, "original_module"):
        return []
    active = [saved[name] for name in module.active_adapters if name in saved]
    runs = active[0] if active and not module.disable_adapters else module.original_module
    return [one for one in (module.original_module, *saved.values()) if one is not runs]


def decoder_of(model: Any, routers: list[Router]) -> Any:
    """The module whose layers have the routers: every forward goes through it, and it gets the
    attention mask."""
    found = _LAYER.match(routers[0].name + ".")
    name = "" if found is None else found[1] or ""
    return dict(model.named_modules())[name]


def layer_ids(model: Any) -> tuple[int, ...]:
    """The model's numbers of the layers with routers, from 0, as ``Plan.fill`` takes them; dense
    layers have none. Refused for a model whose routers are not known."""
    return tuple(router.layer_id for router in routers_of(model))
