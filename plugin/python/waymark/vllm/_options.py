"""Options of the plugin, from the environment."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

SWITCH = "WAYMARK_VLLM"
OPTIONS = "WAYMARK_VLLM_OPTIONS"


class Options(NamedTuple):
    """Every process of an engine has the same."""

    layers: str = "moe"
    """Layers of ``routed_experts``: "moe", those with routers; "all": dense layers are zeros."""
    store: dict[str, Any] = {}
    """Further arguments of Store."""


def enabled() -> bool:
    """Whether the capture is switched on in this process."""
    return os.environ.get(SWITCH, "0") not in ("", "0")


def options() -> Options:
    """What WAYMARK_VLLM_OPTIONS has, as JSON; ValueError for an unknown option."""
    given = json.loads(os.environ.get(OPTIONS) or "{}")
    unknown = set(given) - set(Options._fields)
    if unknown or given.get("layers", "moe") not in ("moe", "all"):
        raise ValueError(
            f"waymark: options are layers ('moe' or 'all') and store, got {given!r}"
        )
    return Options(**given)


def switch_on(given: Any) -> None:
    """Switches the capture on for this process and those that it starts. given: of
    ``additional_config``: True, or a dict of options."""
    os.environ[SWITCH] = "1"
    if isinstance(given, dict):
        os.environ[OPTIONS] = json.dumps(given)


def asks(params: Any, resumable: bool) -> bool:
    """Whether a request gets rows. params: its SamplingParams, or None."""
    if params is None or resumable:
        return False
    # An HTTP client has no booleans in vllm_xargs.
    return not params.extra_args or params.extra_args.get("waymark", True) not in (0, "0", "false")


def may_stop_at_string(params: Any, resumable: bool) -> bool:
    """Whether a request that gets rows may be ended by the front end, which finds stop strings. The
    front end and the engine core must agree on it."""
    return asks(params, resumable) and bool(params.stop)
