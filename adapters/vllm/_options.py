"""Options of the plugin: of one engine, from its ``additional_config`` and the environment."""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any, NamedTuple

from .._capture import Capture
from .._fetching import MemorySource
from .._source_url import source_of
from . import _tier
from ._hooks import Refused

SWITCH = "WAYMARK_VLLM"
OPTIONS = "WAYMARK_VLLM_OPTIONS"
KEY = "waymark"
CONFIG = f'additional_config["{KEY}"]'

_OFF = ("", "0", "false", "no", "off", "none", "null")
_ON = ("1", "true", "yes", "on")
# Arguments of Capture that the engine decides, or that are not JSON.
_NOT_GIVEN = {
    "self", "num_layers", "top_k", "num_experts", "num_blocks", "block_tokens", "layer_ids",
    "null_blocks", "max_step_rows", "recorder", "row_gather", "ids_layout",
    "layer_names", "max_results", "engine", "tier",
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
    """The options of this VllmConfig's engine; None: it is not captured. What is wrong, or is given
    twice, is Refused: the text names the variable or the key, and the value."""
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
    asked = [isinstance(given, dict) or _switched(CONFIG, given)]
    asked.append(_switched(SWITCH, os.environ.get(SWITCH, "")))
    if False in asked or True not in asked:
        return None
    text = os.environ.get(OPTIONS, "").strip()
    by_environment = _checked(OPTIONS, _parsed(text), _shown(text)) if text else None
    by_config = _checked(CONFIG, given, _shown(repr(given))) if isinstance(given, dict) else None
    if by_environment and by_config and by_environment != by_config:
        raise Refused(
            f"waymark: options are given twice: {OPTIONS} is {_shown(text)}, and {CONFIG} is "
            f"{_shown(repr(given))}"
        )
    return by_config or by_environment or Options()


def _switched(where: str, given: Any) -> bool | None:
    """None: not said."""
    text = str(given).strip().lower()
    if not text:
        return None
    if text in _ON:
        return True
    if text in _OFF:
        return False
    more = ", or a dict of options" if where == CONFIG else ""
    raise Refused(f"waymark: {where}: 1 or 0 (true or false){more}, got {given!r}")


def _shown(text: str) -> str:
    """Without users and passwords of URLs."""
    return re.sub(r"//[^\s\"'/]*@", "//", text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refused(f"waymark: {OPTIONS}: it must be JSON ({error}), got {text}") from None


def _checked(where: str, given: Any, shown: str) -> Options:
    if (
        not isinstance(given, dict)
        or set(given) - set(Options._fields)
        or given.get("layers", "moe") not in ("moe", "all")
        or not isinstance(given.get("store", {}), dict)
        or not isinstance(given.get("tier", ""), (str, dict))
        or not isinstance(given.get("reasons", False), bool)
    ):
        raise Refused(
            f"waymark: {where}: options are layers ('moe' or 'all'), store (a dict of arguments of "
            "waymark.Capture), tier (a URL, or a dict with url) and reasons (true or false), got "
            f"{shown}"
        )
    if tier := given.get("tier"):
        if why := _wrong_tier(json.dumps(tier, sort_keys=True, default=str)):
            raise Refused(f"waymark: {where}: tier: {why}")
    if store := given.get("store"):
        if why := _wrong_store(json.dumps(store, sort_keys=True)):
            raise Refused(f"waymark: {where}: store: {why}; got {shown}")
    return Options(**given)


@functools.cache
def _wrong_tier(text: str) -> str:
    """Why JSON of the option is refused, or nothing. Starts no process."""
    tier = json.loads(text)
    try:
        _tier.tier_of(tier, "", make=lambda url: MemorySource(1))
        url = tier["url"] if isinstance(tier, dict) else tier
        if not url.startswith("python:"):
            source_of(url)
        elif not re.fullmatch(r"python:[\w.]+:\w+", url):
            return f"url: python:module:factory, got {url!r}"
    except KeyError as error:
        return f"{error} is missing"
    except Exception as error:
        return str(error)
    return ""


@functools.cache
def _wrong_store(text: str) -> str:
    """Why JSON of arguments is refused, or nothing. The smallest store is made with them: a
    mistake is to be found before the model is loaded."""
    store = json.loads(text)
    if refused := sorted(set(store) & _NOT_GIVEN):
        return f"{refused[0]!r} is not an option: the plugin sets it from the model"
    smallest: dict[str, Any] = {
        "num_layers": 1, "top_k": 1, "num_experts": 2**16 - 1, "num_blocks": 1
    }  # fmt: skip
    pages = store.get("num_pages")
    if isinstance(pages, int) and 1 < pages < 2**32 - 1:
        store["num_pages"] = 1  # any number is right, and takes memory
    try:
        Capture(**smallest, max_step_rows=1, engine=None, **store)
    except TypeError:
        return "a value is of another type than the argument"
    except Exception as error:
        return str(error)
    return ""


def asks(params: Any, resumable: bool) -> bool:
    """Whether a request gets rows. params: its SamplingParams, or None."""
    if params is None or resumable:
        return False
    asked = params.extra_args.get(KEY, True) if params.extra_args else True
    # An HTTP client has no booleans in vllm_xargs.
    return asked is True or bool(asked) and str(asked).strip().lower() not in _OFF
