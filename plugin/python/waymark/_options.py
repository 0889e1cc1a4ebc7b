"""What a user tells an adapter, checked before its engine loads a model."""

from __future__ import annotations

import re
from typing import Any

from ._capture import Capture
from ._errors import InvalidArgumentError
from ._fetching import MemorySource, Source
from ._hooks import Refused
from ._source_url import source_of
from ._tier import Tier

OFF = ("", "0", "false", "no", "off", "none", "null")
ON = ("1", "true", "yes", "on")
# Arguments of Capture that an engine decides, for the smallest store.
_DECIDED: dict[str, Any] = {
    "num_layers": 1, "top_k": 1, "num_experts": 2**16 - 1, "num_blocks": 1, "max_step_rows": 1,
    "layer_ids": (), "layer_names": (), "null_blocks": (), "recorder": None,
    "row_gather": None, "engine": None, "tier": None,
}  # fmt: skip


def switched(where: str, given: Any, more: str = "") -> bool | None:
    """What a switch says; None: nothing. Refused, by where it is, if it is neither on nor off.
    more: what else it may be, for the text."""
    text = str(given).strip().lower()
    if not text or text in ON + OFF:
        return text in ON if text else None
    raise Refused(f"waymark: {where}: 1 or 0 (true or false){more}, got {given!r}")


def check(where: str, options: dict[str, Any]) -> None:
    """Refused if ``store``, arguments of Capture that no engine decides, or ``tier``, as Tier._of
    takes it, is wrong: the smallest store is made with it."""
    what, store = "tier", dict[str, Any]()
    try:
        if tier := options["tier"]:
            Tier._of(tier, "", _source)
        what, store = "store", dict(options["store"])
        if 1 < store.get("num_pages", 1) < 2**32 - 1:
            store["num_pages"] = 1  # any number is right, and takes memory
        Capture(**_DECIDED, **store)
    except Exception as error:
        raise refused(where, f"{what}: {error}", options) from None


def refused(where: str, why: str, given: Any) -> Refused:
    """With what was given, without passwords of URLs."""
    shown = re.sub(r"//[^\s\"'/]*@", "//", repr(given))
    return Refused(f"waymark: {where}: {why}; got {shown}")


def _source(url: str) -> Source:
    """Of a URL that is checked: starts no process."""
    if not url.startswith("python:"):
        return source_of(url)
    if not re.fullmatch(r"python:[\w.]+:\w+", url):
        raise InvalidArgumentError(f"url: python:module:factory, got {url!r}")
    return MemorySource(1)
