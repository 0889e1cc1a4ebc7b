"""Rows by key: where a capture puts and finds them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._core import TierStats
from ._errors import InvalidArgumentError
from ._fetching import Source, _native_source
from ._source_url import source_of
from ._types import integer

__all__ = ["Tier", "TierStats"]


@dataclasses.dataclass(frozen=True)
class Tier:
    """A page source in which engines find the rows of KV that they did not compute: each puts the
    complete pages that it seals with a key, and looks up, by the keys of a take(), rows that no
    step of its own wrote. Threads of the library do both. Rows that come are valid *by key*; others
    are missing (*capacity*), with the source's cause::

        tier = waymark.Tier(waymark.RedisSource(time_to_live=3600), space="tenant a")
        cap = waymark.Capture(..., tier=tier)
        cap.name_weights(1, "s3://.../step_100")     # the same in all engines

    Keys must be cryptographic hashes of all that decides the routing. A source that is a Python
    object takes the GIL of this process."""

    source: Source
    put: Source | None = None
    """Another connection to the same store, for puts, so that reads do not wait for them; None:
    ``source``."""
    space: str = ""
    """The namespace. Tenants need different ones, and so do models that have a tokenizer in
    common."""
    key: bytes = b""
    """16 to 64 secret bytes that all engines have, by which pages are named and authenticated;
    empty: the source is trusted."""
    publisher: str = ""
    """The engine, the same on all its pipeline stages and no other's; empty: a random one."""
    publish: bool = True
    """False: only reads."""
    look_up: bool = True
    """False: takes ask for nothing. Rows that a Publisher publishes name the pages instead, so that
    a Fetcher with a tier finds them."""
    lost: bool = False
    """Also look up rows that a step here computed and that were lost (capacity)."""
    timeout: float = 0.25
    """Seconds that the rows of one take may wait. Until then absent pages are asked for again."""
    skip: float = 10.0
    """Seconds for which the source is not called after it failed, or was late, three times in a
    row."""
    put_timeout: float = 5.0
    """Seconds, of each put."""
    max_waiting: int = 4096
    """Sealed pages that wait to be put; more are dropped."""
    max_bytes: int = 0
    """Bytes put within ``time_to_live``; more are dropped; 0: no limit."""
    time_to_live: float = 0.0
    """Seconds for which the source keeps a page, as Tier() was given; 0: for ever."""

    def __post_init__(self) -> None:
        for name in ("timeout", "skip", "put_timeout", "time_to_live"):
            seconds = getattr(self, name)
            if not 0 <= seconds < math.inf:
                raise InvalidArgumentError(f"{name}: at least 0 s, and finite, got {seconds}")
        integer("max_waiting", self.max_waiting, 1, 2**32)
        integer("max_bytes", self.max_bytes, 0, 2**63 - 1)

    @staticmethod
    def _of(
        given: str | dict[str, Any], space: str, make: Callable[[str], Source] = source_of
    ) -> Tier:
        """Of an adapter's option: a URL, or a dict of it, key_file, fields of Tier, and weights,
        which is the adapter's. space: the namespace, unless the option has one. make: of a URL; one
        of a process of its own is made once, others for each direction."""
        spec = dict(given) if isinstance(given, dict) else {"url": given}
        if "url" not in spec:
            raise InvalidArgumentError("url is required")
        url, _ = spec.pop("url"), spec.pop("weights", "")
        key = Path(spec.pop("key_file")).read_bytes() if "key_file" in spec else b""
        put = None if url.startswith("python:") else make(url)
        return Tier(make(url), put, key=key, **{"space": space, **spec})

    def _native(self) -> tuple[Any, ...]:
        source = _native_source(self.source)
        put = source if self.put is None else _native_source(self.put)
        return (
            source, put, self.space, self.key, self.publisher, self.publish,
            self.look_up, self.lost, self.timeout, self.skip, self.put_timeout, self.max_waiting,
            self.max_bytes, self.time_to_live,
        )  # fmt: skip
