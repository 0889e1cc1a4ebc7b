"""Blocks of requests whose first tokens a KV connector loads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ._hooks import wrap


def hook_loads(manager: type, half_of: Callable[[Any], Any]) -> None:
    """Wraps what gives blocks to requests whose tokens a connector loads, and what takes them back:
    no SchedulerOutput has a request whose load goes on beside the forwards. manager: the class of
    the KVCacheManager. half_of: the SchedulerHalf of an object, or None."""

    def allocate_slots(function: Any) -> Any:
        names = list(inspect.signature(function).parameters)[2:]

        def call(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = function(self, request, *args, **kwargs)
            if blocks is not None and (half := half_of(self)):
                try:
                    given = {**dict(zip(names, args)), **kwargs}
                    if external := given.get("num_external_computed_tokens"):
                        local = given.get("num_new_computed_tokens", 0)
                        later = bool(given.get("delay_cache_blocks"))
                        half.loads(request.request_id, local, external, later)
                except Exception as error:
                    half.fail(error)
            return blocks

        return call

    def free(function: Any) -> Any:
        def call(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if half := half_of(self):
                try:
                    half.freed(request)
                except Exception as error:
                    half.fail(error)
            return function(self, request, *args, **kwargs)

        return call

    wrap(manager, "allocate_slots", allocate_slots)
    wrap(manager, "free", free)
