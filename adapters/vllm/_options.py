"""Options of the plugin: of one engine, from its ``additional_config``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .._capture import Capture
from .._errors import InvalidArgumentError
from .._fetching import MemorySource, Source
from .._hooks import Refused
from .._source_url import source_of
from .._tier import Tier

SWITCH = "WAYMARK_VLLM"
KEY = "waymark"
CONFIG = f'additional_config["{KEY}"]'

_OFF = ("", "0", "false", "no", "off", "none", "null")
_ON = ("1", "true", "yes", "on")
# Arguments of Capture that the engine decides, for the smallest store.
_DECIDED: dict[str, Any] = {
    "num_layers": 1, "top_k": 1, "num_experts": 2**16 - 1, "num_blocks": 1, "max_step_rows": 1,
    "layer_ids": (), "layer_names": (), "null_blocks": (), "recorder": None,
    "row_gather": None, "engine": None, "tier": None,
}  # fmt: skip


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
    asked = [switched_on(), isinstance(given, dict) or _switched(CONFIG, given)]
    if False in asked or True not in asked:
        return None
    if not isinstance(given, dict):
        return Options()
    if unknown := sorted(set(given) - set(Options._fields)):
        raise _refused(f"{unknown[0]!r} is none of {', '.join(Options._fields)}", given)
    return Options(**given)


def switched_on() -> bool | None:
    """By the environment. None: not said."""
    return _switched(SWITCH, os.environ.get(SWITCH, ""))


def _switched(where: str, given: Any) -> bool | None:
    text = str(given).strip().lower()
    if not text or text in _ON + _OFF:
        return text in _ON if text else None
    more = ", or a dict of options" if where == CONFIG else ""
    raise Refused(f"waymark: {where}: 1 or 0 (true or false){more}, got {given!r}")


def _refused(why: str, given: Any) -> Refused:
    shown = re.sub(r"//[^\s\"'/]*@", "//", repr(given))  # without passwords of URLs
    return Refused(f"waymark: {CONFIG}: {why}; got {shown}")


def check(options: Options) -> None:
    """What is wrong is Refused before a model is loaded: the smallest store is made with it."""
    given, what = options._asdict(), "tier"
    try:
        if options.tier:
            tier_of(options, "", _source)
        what, store = "store", dict(options.store)
        if 1 < store.get("num_pages", 1) < 2**32 - 1:
            store["num_pages"] = 1  # any number is right, and takes memory
        Capture(**_DECIDED, **store)
    except Exception as error:
        raise _refused(f"{what}: {error}", given) from None
    if options.layers not in ("moe", "all") or not isinstance(options.reasons, bool):
        raise _refused("layers is 'moe' or 'all', and reasons true or false", given)


def tier_of(options: Options, model: str, make: Callable[[str], Source] = source_of) -> Tier:
    """Of the option ``tier``. model: the namespace, unless the option has one."""
    spec = options.tier if isinstance(options.tier, dict) else {"url": options.tier}
    return Tier._of({name: spec[name] for name in spec if name != "weights"}, model, make)


def weights_of(options: Options) -> str:
    """The name of the weights with which the engine starts; "": they have none."""
    return str(options.tier.get("weights", "")) if isinstance(options.tier, dict) else ""


def _source(url: str) -> Source:
    """Of a URL that is checked: starts no process."""
    if not url.startswith("python:"):
        return source_of(url)
    if not re.fullmatch(r"python:[\w.]+:\w+", url):
        raise InvalidArgumentError(f"url: python:module:factory, got {url!r}")
    return MemorySource(1)


def asks(params: Any, resumable: bool) -> bool:
    """Whether a request gets rows. params: its SamplingParams, or None."""
    if params is None or resumable:
        return False
    asked = params.extra_args.get(KEY, True) if params.extra_args else True
    # An HTTP client has no booleans in vllm_xargs.
    return asked is True or bool(asked) and str(asked).strip().lower() not in _OFF
