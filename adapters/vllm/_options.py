"""Options of the plugin: of one engine, from its ``additional_config``."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from .. import _options

SWITCH = "WAYMARK_VLLM"
KEY = "waymark"
CONFIG = f'additional_config["{KEY}"]'


class Options(NamedTuple):
    """Of one engine; every process of it has the same."""

    layers: str = "moe"
    """Layers of ``routed_experts``: "moe", those with routers; "all": dense layers are zeros."""
    store: dict[str, Any] = {}
    """Further arguments of Capture."""
    tier: str | dict[str, Any] = ""
    """Where rows of KV that was not computed here are found by key: a URL of waymark.source_of, or
    a dict: url; weights, the name of the weights with which the engine starts; key_file; fields of
    waymark.Tier."""
    reasons: bool = False
    """A missing row is -1 minus the number of its Reason, in the place of -1."""


def of(config: Any) -> Options | None:
    """The options of this VllmConfig's engine; None: it is not captured."""
    options = _given(config)
    return None if options is not None and _without_routing(config) else options


def nothing(config: Any) -> str:
    """Why an engine runs without a capture, though one was asked for; or nothing."""
    return _without_routing(config) if _given(config) is not None else ""


def _without_routing(config: Any) -> str:
    model = getattr(config, "model_config", None)
    if not getattr(model, "is_moe", True):
        return "it has no routed experts"
    if getattr(model, "runner_type", "generate") != "generate":
        return "it does not generate tokens"
    return ""


def _given(config: Any) -> Options | None:
    every = getattr(config, "additional_config", None)
    given = every.get(KEY, "") if isinstance(every, dict) else ""
    more = ", or a dict of options"
    asked = [switched_on(), isinstance(given, dict) or _options.switched(CONFIG, given, more)]
    if False in asked or True not in asked:
        return None
    if not isinstance(given, dict):
        return Options()
    if unknown := sorted(set(given) - set(Options._fields)):
        why = f"{unknown[0]!r} is none of {', '.join(Options._fields)}"
        raise _options.refused(CONFIG, why, given)
    return Options(**given)


def switched_on() -> bool | None:
    """By the environment. None: not said."""
    return _options.switched(SWITCH, os.environ.get(SWITCH, ""))


def check(options: Options) -> None:
    """What is wrong is Refused before a model is loaded."""
    given = options._asdict()
    _options.check(CONFIG, given)
    if options.layers not in ("moe", "all") or not isinstance(options.reasons, bool):
        why = "layers is 'moe' or 'all', and reasons true or false"
        raise _options.refused(CONFIG, why, given)


def weights_of(options: Options) -> str:
    """The name of the weights with which the engine starts; "": they have none."""
    return str(options.tier.get("weights", "")) if isinstance(options.tier, dict) else ""


def asks(params: Any, resumable: bool) -> bool:
    """Whether a request gets rows. params: its SamplingParams, or None."""
    if params is None or resumable:
        return False
    asked = params.extra_args.get(KEY, True) if params.extra_args else True
    # An HTTP client has no booleans in vllm_xargs.
    return asked is True or bool(asked) and str(asked).strip().lower() not in _options.OFF
